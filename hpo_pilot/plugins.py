"""Classes of other packages, found by entry points; reading them is slow, and needed only for names not built in."""

from __future__ import annotations

from typing import TypeVar

from hpo_pilot.errors import InputError

T = TypeVar("T")


class PluginError(InputError):
    """A package registers the name, but its class cannot be used: the message names package and remedy."""


def find_plugin(group: str, name: str, base: type[T]) -> type[T] | None:
    """Returns the class that an installed package registers under a name; None: none does.

    Args:
        group: the entry-point group, without `hpo_pilot.`, such as `launchers`.
        name: the name of the entry point.
        base: the class that it must implement.

    Raises:
        PluginError: it cannot be imported, or does not implement `base`.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - it takes 20 ms to load

    entry = next(iter(entry_points(group=f"hpo_pilot.{group}", name=name)), None)
    if entry is None:
        return None
    package = entry.dist.name if entry.dist is not None else entry.module
    place = f"{name!r} ({entry.value}, of the package {package})"
    try:
        found = entry.load()
    except Exception as error:
        raise PluginError(
            f"{place} cannot be imported: {type(error).__name__}: {error}; repair the package, or `pip uninstall "
            f"{package}` and choose another name"
        ) from error
    wanted = f"{base.__module__}.{base.__qualname__}"
    if not isinstance(found, type) or not issubclass(found, base):
        raise PluginError(f"{place} must be a subclass of {wanted}: correct the package")
    if (own := getattr(found, "name", name)) != name:
        raise PluginError(f"{place} has the name {own!r}: give class and entry point the same one")
    if missing := ", ".join(sorted(getattr(found, "__abstractmethods__", ()))):
        raise PluginError(f"{place} has no {missing}: correct the package; {wanted} describes them")
    return found
