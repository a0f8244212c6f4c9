"""The command `hpo-pilot` and the list of its commands."""

from __future__ import annotations

import errno
import functools
import gc
import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hpo_pilot import __version__
from hpo_pilot.cli import db, inspection, mcp, migrate, pilots, plan, searches, serve
from hpo_pilot.cli.options import option
from hpo_pilot.cli.output import about_place, advised
from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.logs import configure_logging

#: A disk is full, read-only, or ends.
_DISK_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def _has_no_reader() -> bool:
    """Returns whether the reader of our output, such as `head`, has closed the pipe; then it goes to nobody."""
    output = select.poll()
    output.register(sys.stdout, 0)
    if not output.poll(0):  # of a pipe, it tells only this
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _with_advice(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the needed options to the commands in messages of `callback`; Ctrl-C and a full disk mean "try again"."""

    @functools.wraps(callback)
    def called(*args: Any, **given: Any) -> Any:
        with about_place(given):
            try:
                done = callback(*args, **given)
                if sys.stdout is not None:  # it was closed by `>&-`
                    sys.stdout.flush()
                return done
            except KeyboardInterrupt:
                raise TryAgainError("interrupted; the same command continues") from None
            except HpoPilotError as error:
                error.args = (advised(str(error)),)
                raise
            except OSError as error:
                if error.errno == errno.EPIPE and _has_no_reader():
                    raise typer.Exit from None
                if error.errno not in _DISK_FAILS:
                    raise
                where = error.filename or "the disk of the work folder, or of temporary files"
                raise TryAgainError(
                    f"{where}: {error.strerror}; nothing is lost: when it can be written, give the same command again"
                ) from error

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
        option(
            "--sites", metavar="FOLDER", help="A folder of site profiles, looked through first (or HPO_PILOT_SITES)."
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
#: The commands by the parts of the help text; groups of commands are in the service's. A command is named by the first
#: word of its function.
_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Searching": (searches.validate, searches.run, searches.submit, plan.plan),
    "Seeing": (
        *(inspection.list_searches, inspection.status, inspection.trials, inspection.best, inspection.log),
        *(inspection.logs, inspection.report, inspection.export, searches.fetch, serve.monitor, serve.manual),
    ),
    "Searches without payload": (searches.ask, searches.tell),
    "Changing": (
        *(searches.pause, searches.resume, searches.stop, searches.extend, searches.retry, searches.note),
        searches.try_point,
    ),
    _SERVICE: (serve.serve, serve.pilot, serve.doctor, mcp.mcp),
    "Moving from other tools": (migrate.import_file, migrate.steer),
}
#: The pilot reads its own options, `--help` among them.
_PILOT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

for _part, _functions in _COMMANDS.items():
    for _function in _functions:
        _name, _is_pilot = _function.__name__.partition("_")[0], _function is serve.pilot
        app.command(
            _name,
            rich_help_panel=_part,
            add_help_option=not _is_pilot,
            context_settings=_PILOT_SETTINGS if _is_pilot else None,
        )(_with_advice(_function))
for _add in (serve.add_token_commands, db.add_db_commands, pilots.add_site_commands, pilots.add_pilot_commands):
    _add(app)
for _registered in app.registered_groups:
    _registered.rich_help_panel = _SERVICE
    for _command in _registered.typer_instance.registered_commands if _registered.typer_instance else ():
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
