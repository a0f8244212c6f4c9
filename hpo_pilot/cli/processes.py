"""Commands that run for long, or look at the machine: serve, pilot, doctor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hpo_pilot.advice import command
from hpo_pilot.cli.monitor import say_link
from hpo_pilot.cli.network import (
    AuthorityOption,
    BehindProxyOption,
    HostOption,
    IssuersOption,
    PublicUrlOption,
    TlsCertOption,
    TlsKeyOption,
)
from hpo_pilot.cli.options import (
    JsonOption,
    LogFormatOption,
    ServerOption,
    SlotsOption,
    StoreOption,
    WorkDirOption,
    on_client,
)
from hpo_pilot.cli.show import advised, dump
from hpo_pilot.client.search_client import SearchClient


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(serve)
    app.command(
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(pilot)
    app.command()(on_client(doctor))


def serve(
    slots: SlotsOption = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The embedded server's port.", show_default=False)
    ] = None,
    api_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The REST API's port.", show_default=False)
    ] = None,
    host: HostOption = "127.0.0.1",
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    ca: AuthorityOption = None,
    public_url: PublicUrlOption = None,
    insecure_behind_proxy: BehindProxyOption = False,
    queues: Annotated[
        Path | None,
        typer.Option(
            "--queues",
            metavar="FILE",
            help="The embedded server's queues (YAML, see deploy/queues.yaml). Default: any name is one.",
            show_default=False,
        ),
    ] = None,
    server: ServerOption = None,
    issuers: IssuersOption = None,
    log_format: LogFormatOption = None,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Run the steering service until stopped; with the embedded PanDA server and a local pilot, or at another one."""
    from hpo_pilot.logs import configure_logging
    from hpo_pilot.service.api_process import ApiProcess
    from hpo_pilot.service.embedded import EmbeddedPanda
    from hpo_pilot.service.reach import Reach
    from hpo_pilot.service.run import serve as run_service

    configure_logging("service", form=log_format)
    reach = Reach(
        host=host,
        port=port,
        certificate=tls_cert,
        key=tls_key,
        authority=ca,
        public_url=public_url,
        behind_proxy=insecure_behind_proxy,
        issuers=issuers,
    )

    def ready(panda: EmbeddedPanda | str, api: ApiProcess) -> None:
        if isinstance(panda, EmbeddedPanda):
            typer.echo(f"serving; the embedded PanDA server is at {panda.url}, its tokens are in {panda.token_folder}")
        else:
            typer.echo(f"serving; searches go to the PanDA server {panda}")
        trust = ("--ca", api.authority_file) if api.authority_file is not None else ()
        again = command("list", "--service", api.url, "--token-file", api.token_file, *trust)
        typer.echo(f"the REST API is at {api.url}: {again}")
        typer.echo(f"the monitor is at {api.url}")
        if sys.stdout.isatty():
            say_link(api)
        else:
            # A journal is read by others: whoever may read the work folder asks for a link when it is wanted.
            typer.echo(advised("a link that signs you in: `hpo-pilot monitor --link`"))
        if api.authority_file is not None:
            typer.echo(f"clients elsewhere must trust {api.authority_file} (--ca)")

    run_service(
        workdir,
        store=store,
        slots=slots,
        reach=reach,
        queues=queues,
        server=server,
        api_port=api_port,
        on_ready=ready,
        on_warning=lambda warning: typer.echo(f"warning: {warning}", err=True),
    )


def pilot(context: typer.Context) -> None:
    """Run a pilot: take jobs of a queue from a PanDA server and run them here (see hpo-pilot pilot --help)."""
    from hpo_pilot.pilot.__main__ import main

    raise typer.Exit(main(context.args))


def doctor(
    client: SearchClient,
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="Try this PanDA server too: token, upload, queues.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look at this machine: container runtimes, launchers, GPUs, Horovod, panda-client, store; or at a service.

    With --server, at a PanDA server as well: whether it answers and takes your credentials, who you are there, whether
    a small file goes up, and which queues there are. Nothing is submitted.
    """
    findings = client.doctor(server)
    if as_json:
        dump(findings)
    else:
        width = max(len(finding["what"]) for finding in findings)
        for finding in findings:
            typer.echo(f"{'ok  ' if finding['ok'] else 'none'}  {finding['what']:<{width}}  {finding['detail']}")
    if any(finding["needed"] and not finding["ok"] for finding in findings):
        raise typer.Exit(3)
