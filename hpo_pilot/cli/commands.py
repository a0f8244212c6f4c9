"""The commands by name, each imported when it is wanted: shells wait for completions, and people for every command."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_group

#: What each module of this package adds, in the order in which help lists it; groups come last, as typer has them.
MODULES = {
    "searches": ("validate", "run", "submit"),
    "inspection": ("list", "status", "trials", "best", "log", "logs", "report", "export"),
    "control": ("pause", "resume", "stop", "extend", "retry", "try", "fetch"),
    "processes": ("serve", "pilot", "doctor"),
    "monitor": ("monitor",),
    "foreign": ("import",),
    "steer": ("steer",),
    "plan": ("plan",),
    "manual": ("manual",),
    "tokens": ("token",),
    "sites": ("sites",),
    "pilots": ("pilots",),
}

_MODULE_OF = {name: module for module, names in MODULES.items() for name in names}


class _Commands(Mapping[str, Any]):
    """All commands; a look at one of them imports its module."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded |= commands_of(_MODULE_OF[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULE_OF)

    def __len__(self) -> int:
        return len(_MODULE_OF)


def commands_of(module: str) -> dict[str, Any]:
    """The commands that a module of this package adds, by name."""
    alone = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
    import_module(f"hpo_pilot.cli.{module}").add_to(alone)
    group = get_group(alone)
    _advise_in(group)
    return dict(group.commands)


def _advise_in(group: Any) -> None:
    """Lets messages of all commands of a group name other commands with the options that those need."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            _advise_in(command)
        if command.callback is not None:
            command.callback = _with_advice(command.callback)


def _with_advice(callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def called(*args: Any, **given: Any) -> Any:
        from hpo_pilot.cli.show import about_place, advised
        from hpo_pilot.errors import HpoPilotError

        with about_place(given):
            try:
                return callback(*args, **given)
            except HpoPilotError as error:
                error.args = (advised(str(error)),)
                raise

    return called


class LazyGroup(TyperGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        """Takes what typer gives; of commands it has none, for none is registered."""
        super().__init__(**settings)
        self.commands = cast("dict[str, Any]", _Commands())  # it is read alone
