"""The command `hpo-pilot` and the list of its commands."""

from __future__ import annotations

import functools
import gc
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hpo_pilot import __version__
from hpo_pilot.cli import inspection, migrate, pilots, plan, searches, serve
from hpo_pilot.cli.output import about_place, advised
from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.logs import configure_logging


def _with_advice(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the needed options to the commands that the messages of `callback` name; Ctrl-C means "try again"."""

    @functools.wraps(callback)
    def called(*args: Any, **given: Any) -> Any:
        with about_place(given):
            try:
                return callback(*args, **given)
            except KeyboardInterrupt:
                raise TryAgainError("interrupted; the same command continues") from None
            except HpoPilotError as error:
                error.args = (advised(str(error)),)
                raise

    return called


app = typer.Typer(
    name="hpo-pilot",
    help="Hyper-parameter scanning on PanDA: a YAML search space in, containerised jobs out, the best point back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hpo-pilot {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what the service does, on stderr.")] = False,
    site_folder: Annotated[
        Path | None,
        typer.Option(
            "--sites",
            metavar="FOLDER",
            help="A folder of site profiles, looked through first (or HPO_PILOT_SITES).",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    configure_logging("cli", level=logging.INFO if verbose else logging.WARNING)
    if site_folder is not None:
        pilots.look_first_in(site_folder)


_SERVICE = "Service and pilots"
#: The parts of the help text, with their commands; groups of commands are in the service's.
_PARTS = {
    "Searching": ("validate", "plan", "run", "submit"),
    "Seeing": ("list", "status", "trials", "best", "log", "logs", "report", "export", "fetch", "monitor", "manual"),
    "Changing": ("pause", "resume", "stop", "extend", "retry", "note", "try"),
    _SERVICE: ("serve", "pilot", "doctor"),
    "Moving from other tools": ("import", "steer"),
}
_PART_OF = {name: part for part, names in _PARTS.items() for name in names}

for _add in (  # in the order of the help text, in which groups come last
    searches.add_run_commands,
    inspection.add_to,
    searches.add_control_commands,
    serve.add_serve_commands,
    migrate.add_to,
    plan.add_to,
    serve.add_manual_command,
    serve.add_token_commands,
    pilots.add_site_commands,
    pilots.add_pilot_commands,
):
    _add(app)
for _command in app.registered_commands:
    _command.rich_help_panel = _PART_OF[str(_command.name or getattr(_command.callback, "__name__", ""))]
for _registered in app.registered_groups:
    _registered.rich_help_panel = _SERVICE
for _group in (app, *(registered.typer_instance for registered in app.registered_groups)):
    for _command in _group.registered_commands if _group is not None else ():
        if _command.callback is not None:
            _command.callback = _with_advice(_command.callback)


def main() -> None:
    """Runs a command. Each of our errors ends it with one message and the error's own exit status."""
    gc.freeze()  # the modules stay: the collector would look at them each time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background commands without it
    try:
        app()
    except HpoPilotError as error:
        typer.echo(f"hpo-pilot: {error}", err=True)
        raise SystemExit(error.exit_code) from None
    except ModuleNotFoundError as error:
        if (error.name or "hpo_pilot").split(".")[0] == "hpo_pilot":
            raise
        typer.echo(
            f"hpo-pilot: this command needs {error.name}, which a pilot's installation does not have: "
            "pip install 'hpo-pilot[service]'",
            err=True,
        )
        raise SystemExit(2) from None
    except BrokenPipeError:
        # The reader of our output, such as `head`, has closed the pipe.
        sys.stderr.close()
        raise SystemExit(0) from None
