"""What launchers leave in a job's log, and how a job step of theirs is reached."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

#: What ssh says of a host that it does not reach; several launchers start their helpers by it.
SSH_FAILED = r"ssh: (?:Could not resolve hostname|connect to host) ([\w.-]+)"


@dataclass(frozen=True)
class Traces:
    """How a launcher's own lines look, as regular expressions; empty: it has none. The runner uses the first three.

    Attributes:
        label: what it puts before each line of a rank; group 1 is the rank.
        dead: its word that a rank has failed, the first of which counts; group 1, if there is one, is the rank. What
            follows may be said by others that are being ended.
        own: lines of the launcher's that do not say what was wrong.
        broken: its word that a node is of no use; a group names it.
        lost: its word that the batch system has taken a node away; a group names it. It is one of `broken` too.
        not_started: its word that nothing was started, whoever's fault it is.
        away: its word that nothing is started anywhere, for what it asks itself does not answer.
    """

    label: str = ""
    dead: str = ""
    own: str = ""
    broken: str = ""
    lost: str = ""
    not_started: str = ""
    away: str = ""

    def broken_nodes(self, said: str, nodes: Collection[str]) -> frozenset[str]:
        """The nodes that a log calls of no use.

        Args:
            said: the log.
            nodes: of the job.
        """
        return self._named(self.broken, said, nodes)

    def lost_nodes(self, said: str, nodes: Collection[str]) -> frozenset[str]:
        """The nodes that the batch system has taken away, by a log; arguments as of `broken_nodes`."""
        return self._named(self.lost, said, nodes)

    def _named(self, pattern: str, said: str, nodes: Collection[str]) -> frozenset[str]:
        found = [match for line in self._own_lines(said) for match in re.finditer(pattern or "(?!)", line)]
        named = {name.rstrip(":,.") for match in found for name in match.groups() if name}
        return frozenset(node for node in nodes if {node, node.partition(".")[0]} & named)

    def failure(self, said: str) -> str:
        """The line of a log that says that the launcher did not start the ranks, or lost a node under them, if any."""
        patterns = [pattern for pattern in (self.broken, self.not_started, self.away) if pattern]
        return next((line for line in self._own_lines(said) if any(re.search(one, line) for one in patterns)), "")

    def is_away(self, said: str) -> bool:
        """Whether a log says that nothing is started anywhere."""
        return bool(self.away) and any(re.search(self.away, line) for line in self._own_lines(said))

    def _own_lines(self, said: str) -> list[str]:
        """Those that no rank said: a payload may print anything."""
        return [line for line in said.splitlines() if not (self.label and re.match(self.label, line))]


@dataclass(frozen=True)
class StepCommands:
    """How a launcher's job step is reached where its own process cannot do it.

    Attributes:
        steps: a command that prints the allocation's steps, a line each: identifier and name.
        signal: a command that sends one a signal: `%SIGNAL` stands for its name, the identifier is added.
    """

    steps: tuple[str, ...]
    signal: tuple[str, ...]
