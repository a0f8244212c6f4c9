"""Commands that run for long, or look at the machine: serve, pilot, doctor."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from hpo_pilot.cli.options import JsonOption, SlotsOption, StoreOption, WorkDirOption


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(serve)
    app.command(
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(pilot)
    app.command()(doctor)


def serve(
    slots: SlotsOption = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The embedded server's port.", show_default=False)
    ] = None,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Run the steering service, with the embedded PanDA server and a local pilot, until stopped."""
    from hpo_pilot.service.embedded import EmbeddedPanda
    from hpo_pilot.service.run import serve as run_service

    def ready(panda: EmbeddedPanda) -> None:
        typer.echo(f"serving; the embedded PanDA server is at {panda.url}, its tokens are in {panda.token_folder}")

    run_service(workdir, store=store, slots=slots, port=port, on_ready=ready)


def pilot(context: typer.Context) -> None:
    """Run a pilot: take jobs of a queue from a PanDA server and run them here (see hpo-pilot pilot --help)."""
    from hpo_pilot.pilot.__main__ import main

    raise typer.Exit(main(context.args))


def doctor(as_json: JsonOption = False, workdir: WorkDirOption = None, store: StoreOption = None) -> None:
    """Look at this machine: container runtimes, launchers, GPUs, Horovod, panda-client, store."""
    from hpo_pilot.service.doctor import examine

    findings = examine(workdir, store)
    if as_json:
        typer.echo(json.dumps([finding.__dict__ for finding in findings], indent=1))
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            typer.echo(f"{'ok  ' if finding.ok else 'none'}  {finding.what:<{width}}  {finding.detail}")
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(3)
