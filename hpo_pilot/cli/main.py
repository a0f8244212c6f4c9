"""The command `hpo-pilot`."""

from __future__ import annotations

import atexit
import gc
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from hpo_pilot import __version__
from hpo_pilot.cli.commands import LazyGroup
from hpo_pilot.errors import HpoPilotError
from hpo_pilot.logs import configure_logging

app = typer.Typer(
    name="hpo-pilot",
    cls=LazyGroup,
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
        from hpo_pilot.cli import sites

        sites.look_first_in(site_folder)


def _interrupted(_signal: int, _frame: object) -> None:
    """Ctrl-C where no command handles it in a way of its own: try again is its meaning, not typer's 130."""
    typer.echo("hpo-pilot: interrupted; the same command goes on", err=True)
    raise SystemExit(3)


def main() -> None:
    """Runs a command; every error of ours ends it with one clear message and its own status."""
    signal.signal(signal.SIGINT, _interrupted)
    # At its end nobody needs to look through all that is loaded for cycles, a tenth of a short command's time.
    atexit.register(gc.freeze)
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
        # The reader of our output, such as `head`, has seen enough.
        sys.stderr.close()
        raise SystemExit(0) from None
