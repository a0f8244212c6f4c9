"""No launcher: the payload is one process."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_pilot.errors import InputError
from hpo_pilot.launchers.launcher import Launcher
from hpo_pilot.launchers.placement import Placement


class Plain(Launcher):
    """Starts one process where the command is started."""

    name = "plain"

    @property
    def programs(self) -> tuple[str, ...]:
        """None."""
        return ()

    def command(self, argv: Sequence[str], placement: Placement) -> list[str]:
        """See Launcher."""
        if placement.ranks > 1:
            raise InputError(
                f"the launcher plain starts one process, not {placement.ranks}: name another as launcher of the site"
            )
        return list(argv)
