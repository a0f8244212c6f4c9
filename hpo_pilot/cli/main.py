"""The command `hpo-pilot` and the list of its commands."""

from __future__ import annotations

import functools
import logging
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from hpo_pilot import __version__
from hpo_pilot.errors import HpoPilotError
from hpo_pilot.logs import configure_logging

#: The commands that each module of this package adds, in the order of the help text. Groups come last, as in typer.
COMMANDS = (
    ("searches", "add_run_commands", ("validate", "run", "submit")),
    ("inspection", "add_to", ("list", "status", "trials", "best", "log", "logs", "report", "export")),
    ("searches", "add_control_commands", ("pause", "resume", "stop", "extend", "retry", "try", "fetch")),
    ("serve", "add_serve_commands", ("serve", "pilot", "doctor")),
    ("serve", "add_monitor_command", ("monitor",)),
    ("migrate", "add_import_command", ("import",)),
    ("migrate", "add_steer_command", ("steer",)),
    ("plan", "add_to", ("plan",)),
    ("serve", "add_manual_command", ("manual",)),
    ("serve", "add_token_commands", ("token",)),
    ("pilots", "add_site_commands", ("sites",)),
    ("pilots", "add_pilot_commands", ("pilots",)),
)

_ADDER_OF = {name: (module, adder) for module, adder, names in COMMANDS for name in names}


def commands_of(module: str, adder: str) -> dict[str, Any]:
    """Returns the commands that a module of this package adds, by name."""
    alone = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
    getattr(import_module(f"hpo_pilot.cli.{module}"), adder)(alone)
    group = get_group(alone)
    _advise_in(group)
    return dict(group.commands)


def _advise_in(group: Any) -> None:
    """Makes messages of a group's commands name other commands together with the options that they need."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            _advise_in(command)
        if command.callback is not None:
            command.callback = _with_advice(command.callback)


def _with_advice(callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def called(*args: Any, **given: Any) -> Any:
        from hpo_pilot.cli.output import about_place, advised
        from hpo_pilot.errors import HpoPilotError

        with about_place(given):
            try:
                return callback(*args, **given)
            except HpoPilotError as error:
                error.args = (advised(str(error)),)
                raise

    return called


class LazyGroup(TyperGroup):
    """The group of all commands. A command's module is imported when the command is asked for."""

    def __init__(self, **settings: Any) -> None:
        """Takes typer's settings. All names are known from the beginning, for help and suggestions."""
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(_ADDER_OF)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the command with this name; None: there is none."""
        if self.commands.get(cmd_name) is None and cmd_name in _ADDER_OF:
            self.commands |= commands_of(*_ADDER_OF[cmd_name])
        return self.commands.get(cmd_name)


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
        from hpo_pilot.cli import pilots

        pilots.look_first_in(site_folder)


def _interrupted(_signal: int, _frame: object) -> None:
    """Handles Ctrl-C if the command does not: it means "try again", not typer's exit status 130."""
    typer.echo("hpo-pilot: interrupted; the same command goes on", err=True)
    raise SystemExit(3)


def main() -> None:
    """Runs a command. Each of our errors ends it with one message and the error's own exit status."""
    signal.signal(signal.SIGINT, _interrupted)
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
