"""One process on each of some nodes, which copies or removes there."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.launchers import Placement, site_variables
from hpo_pilot.pilot.site import Site
from hpo_pilot.transformation.environment import without_secrets
from hpo_pilot.whole_file import write_whole

log = logging.getLogger(__name__)

_PROGRAM = Path(__file__).parent.parent.parent / "runner" / "hpo_pilot_stage.py"
_MARK = "hpo_pilot_stage: "
_LOOK = 0.1  # seconds
_GRACE = 10.0  # seconds between TERM and KILL
_SAID = 300  # characters of a launcher's last words


@dataclass(frozen=True)
class Answer:
    """What one node says.

    Attributes:
        there: where it has copies, by key.
        failed: why it has others not.
    """

    there: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


class NodeSteps:
    """Starts them, through the site's launcher."""

    def __init__(self, site: Site, folder: Path, allocation: Sequence[str]) -> None:
        """Prepares.

        Args:
            site: whose launcher it is.
            folder: an empty one that all nodes see.
            allocation: all its nodes.
        """
        self._site, self._folder, self._allocation = site, folder, tuple(allocation)
        self._program = folder / _PROGRAM.name
        shutil.copy(_PROGRAM, self._program)

    def run(
        self,
        what: str,
        request: Mapping[str, Any],
        nodes: Sequence[str],
        *,
        name: str,
        seconds: float,
        is_over: Callable[[], bool],
        memory_mb: int = 0,
    ) -> tuple[dict[str, Answer], str]:
        """Runs one step; nothing that goes wrong escapes.

        Args:
            what: copy or remove.
            request: as hpo_pilot_stage.py has it.
            nodes: one process on each.
            name: of its files, which nobody else has.
            seconds: that it may take.
            is_over: says whether to end it now.
            memory_mb: of each process; 0: not said.

        Returns:
            (what each node said that said something, why others may not have).
        """
        asked, said = self._folder / f"{name}.json", self._folder / f"{name}.log"
        try:
            write_whole(asked, json.dumps(request), mode=0o600)
            words, env = self._command(what, asked, nodes, memory_mb)
            with said.open("wb") as output:
                process = subprocess.Popen(
                    words,
                    cwd=self._folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            why = _wait(process, seconds, is_over)
            text = said.read_text(errors="replace")
        except (OSError, InputError) as error:
            return {}, str(error)
        finally:
            asked.unlink(missing_ok=True)
        said.unlink(missing_ok=True)
        return _by_node(_answers(text), nodes), why or _last_words(text)

    def _command(
        self, what: str, asked: Path, nodes: Sequence[str], memory_mb: int
    ) -> tuple[list[str], dict[str, str]]:
        launcher = self._site.launcher.per_node
        variables = site_variables(os.environ)
        variables |= {name: os.path.expandvars(value) for name, value in self._site.environment.items()}
        placement = Placement(
            nodes=tuple(nodes),
            gpu_kind=self._site.gpu_kind,
            environment=variables,
            allocation=self._allocation,
            memory_mb=memory_mb,
        )
        argv = [sys.executable, "-I", "-S", str(self._program), what, str(asked)]
        return launcher.command(argv, placement), launcher.environment(placement, without_secrets(os.environ))


def _wait(process: subprocess.Popen[bytes], seconds: float, is_over: Callable[[], bool]) -> str:
    """Waits for a launcher's end, or ends it; returns why it was ended."""
    end = time.monotonic() + seconds
    why = ""
    while process.poll() is None:
        try:
            process.wait(_LOOK)
        except subprocess.TimeoutExpired:
            if why and time.monotonic() > end:
                _signal(process, signal.SIGKILL)
            elif not why and (is_over() or time.monotonic() > end):
                why = "it is wanted no more" if is_over() else f"it took more than {seconds:.0f} s"
                end = time.monotonic() + _GRACE
                _signal(process, signal.SIGTERM)
    return why


def _signal(process: subprocess.Popen[bytes], which: signal.Signals) -> None:
    try:
        os.killpg(process.pid, which)
    except ProcessLookupError as error:
        log.debug("%s", error)  # it has just ended


def _answers(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        _, mark, said = line.partition(_MARK)
        if mark:
            try:
                answer = json.loads(said)
                found.append({**answer, "node": str(answer["node"])})
            except (ValueError, KeyError, TypeError):
                log.warning("a node's answer cannot be read: %.200s", line)
    return found


def _by_node(answers: Sequence[dict[str, Any]], nodes: Collection[str]) -> dict[str, Answer]:
    """Answers by the batch system's names of nodes.

    A node may call itself otherwise: then it has the name that is left, if the answers that are left are as many as the
    nodes, and alike.
    """
    short = {node.partition(".")[0]: node for node in nodes}
    found: dict[str, Answer] = {}
    others: list[Answer] = []
    for answer in answers:
        said = Answer(answer.get("there") or {}, answer.get("failed") or {})
        node = short.get(str(answer["node"]).partition(".")[0])
        if node is not None and node not in found:
            found[node] = said
        else:
            others.append(said)
    left = [node for node in nodes if node not in found]
    if len(others) == len(left) and all(other == others[0] for other in others):
        found.update(dict.fromkeys(left, others[0]) if others else {})
    return found


def _last_words(text: str) -> str:
    """What a launcher said last, where it was not a node's answer."""
    said = [line.strip() for line in text.splitlines() if line.strip() and _MARK not in line]
    return said[-1][:_SAID] if said else "the launcher said nothing"
