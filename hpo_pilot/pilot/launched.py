"""A job that a launcher starts: its ranks, on the nodes that are its own."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.launchers import Launcher, Placement, site_variables
from hpo_pilot.launchers.placement import VISIBLE_GPUS
from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode
from hpo_pilot.pilot.job import Job
from hpo_pilot.pilot.log_end import end_of
from hpo_pilot.pilot.room import Seat
from hpo_pilot.pilot.site import Site
from hpo_pilot.pilot.staging import NOTHING, Staged
from hpo_pilot.pilot.wrapping import InContainer, Wrapping, by_our_python
from hpo_pilot.transformation.payload_document import NAME as PAYLOAD_DOCUMENT
from hpo_pilot.transformation.payload_document import PayloadDocument
from hpo_pilot.whole_file import write_whole

log = logging.getLogger(__name__)

DOCUMENT = "hpo_pilot_launch.json"
RUNNER = "hpo_pilot_runner.py"

#: What the runner loads to use the document; it travels with the pilot, for only the pilot knows of launchers.
_PROGRAM = Path(__file__).parent.parent / "runner" / "hpo_pilot_launch.py"

#: Stands for the folder where the payload runs, which only the runner knows: it may run several points.
_FOLDER = "%FOLDER"

#: What the runner tells each payload, as HPO_PILOT_<NAME>: ranks on other nodes get only what is named.
_RUNNER_TELLS = (
    *("ATTEMPT", "CHECKPOINT_DIR", "FOLD", "FOLDS", "GENERATION", "GPUS", "MEASURED", "NODES", "NUMBER", "SEARCH"),
    *("SEED", "TRIAL", "UID"),
)
_LIFELINE = "HPO_PILOT_LIFELINE_FD"

#: Gives each node's ranks that node's own GPUs, where the launcher does not.
_VISIBLE_SCRIPT = "hpo_pilot_visible.sh"

#: Ports of jobs, below those that systems hand out by themselves (from 32768 on).
_FIRST_PORT, _PORTS = 20_000, 12_000

_END_SECONDS = 60.0  # for ending what is left of a job step
_READ = 64 * 1024  # bytes of a log's end


@dataclass(frozen=True)
class LaunchFailure:
    """What a launcher said when it failed.

    Attributes:
        why: one line of it.
        nodes: that it blames.
        lost: those of them that the batch system has taken away.
        is_away: whether it says that it starts nothing anywhere.
    """

    why: str
    nodes: frozenset[str]
    lost: frozenset[str]
    is_away: bool


@dataclass(frozen=True)
class Launched(Wrapping):
    """The launcher around the container around the payload's command.

    The runner itself stays on this node, outside of both: the job's folder is on storage that all nodes share.
    """

    site: Site
    job: Job
    seat: Seat
    document: PayloadDocument
    container: InContainer
    staged: Staged = NOTHING

    @property
    def launcher(self) -> Launcher:
        """The site's."""
        return self.site.launcher

    def wrap(
        self, argv: Sequence[str], env: Mapping[str, str], binds: Sequence[Path], folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """See Wrapping. Where the command is our runner, it is told in a file, and starts the payload so."""
        if missing := [name for name in self.launcher.programs if not shutil.which(name, path=env.get("PATH"))]:
            raise JobFailure(
                PilotErrorCode.PAYLOAD_EXECUTION_FAILURE,
                f"{missing[0]}, which starts the ranks at site {self.site.name!r}, is not in the pilot's PATH: load "
                "what brings it before the pilot starts, or name another launcher in the site's profile",
            )
        ours = (folder / RUNNER).is_file()
        try:
            placement = self.placement(env, _told(folder) if ours else ())
            around = self._around(placement, binds, folder, workdir=_FOLDER if ours else str(folder))
            before = self.launcher.command(around, placement)
            started = self.launcher.environment(placement, env)
        except InputError as error:
            raise JobFailure(PilotErrorCode.PAYLOAD_EXECUTION_FAILURE, str(error)) from error
        if not ours:
            return [*before, *argv], started
        self._tell(folder, before, placement, env)
        return by_our_python(argv), started

    def placement(self, env: Mapping[str, str], told: Iterable[str]) -> Placement:
        """Where the ranks run.

        Args:
            env: of the job.
            told: more variables that the runner will set.

        Raises:
            InputError: the parts do not fit.
        """
        seat, ranks = self.seat, max(1, self.document.ranks_per_node)
        gpus = len(seat.gpus.get(seat.nodes[0], ()))
        if gpus % ranks:
            raise InputError(f"the job's {gpus} GPUs of each node cannot be shared out to {ranks} ranks")
        if seat.cores < ranks:
            raise InputError(f"the job has {seat.cores} cores on each node, and {ranks} ranks: each needs one")
        named = {name: value for name, value in site_variables(env).items() if name != _LIFELINE}
        # What the batch system said of this node's cores does not hold for a job's share.
        named.pop("OMP_NUM_THREADS", None)
        panda = {name: value for name, value in env.items() if name.upper().startswith("PANDA")}
        first = seat.nodes[0]
        return Placement(
            nodes=seat.nodes,
            ranks_per_node=ranks,
            gpus_per_rank=gpus // ranks,
            cores_per_rank=seat.cores // ranks,
            gpu_kind=self._gpu_kind(gpus),
            environment={**named, **panda, **dict.fromkeys(told, ""), **_expanded(self.site.environment)},
            allocation=seat.allocation,
            gpus=seat.gpus.get(first, ()),
            gpus_on=_others(seat.gpus, first),
            memory_mb=seat.memory_mb,
            port=_FIRST_PORT + self.job.panda_id % _PORTS,
            name=f"hpo-pilot-{self.job.panda_id}-{self.job.attempt}",
        )

    def launch_failure(self, folder: Path) -> LaunchFailure | None:
        """The launcher's word that it failed; None: it did not say so."""
        said, traces = _said(folder / "payload.log"), self.launcher.traces
        why = traces.failure(said)
        if not why:
            return None
        nodes = self.seat.nodes
        return LaunchFailure(
            why, traces.broken_nodes(said, nodes), traces.lost_nodes(said, nodes), traces.is_away(said)
        )

    def end_step(self, folder: Path) -> None:
        """Ends what is left of the job's step, after its launcher's process was killed."""
        if not (folder / DOCUMENT).is_file() or self.launcher.step_commands(os.environ) is None:
            return
        try:
            words = [sys.executable, "-I", "-S", str(folder / _PROGRAM.name), "KILL"]
            subprocess.run(words, stdin=subprocess.DEVNULL, timeout=_END_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("what may be left of job %s is not ended: %s", self.job.panda_id, error)

    def _around(self, placement: Placement, binds: Sequence[Path], folder: Path, workdir: str) -> list[str]:
        """What stands between the launcher and the payload: which GPUs, and the container."""
        words: list[str] = []
        if placement.gpus_on and not self.launcher.chooses_gpus:
            script = folder / _VISIBLE_SCRIPT
            script.write_text(_visible_script(placement))
            words = ["/bin/sh", str(script)]
        if not self.job.container:
            return words
        names = dict(placement.environment) | dict.fromkeys(self.launcher.exported(placement), "")
        # The payload's words come last; podman takes the program apart from them.
        # Launchers of MPI keep in /tmp what ranks meet by.
        shared = replace(self.container, inside=self.container.inside._replace(shares_tmp=True))
        inside, _ = shared.wrap(["env"], names, binds, Path(workdir))
        return words + self.staged.words(inside)

    def _tell(self, folder: Path, before: Sequence[str], placement: Placement, env: Mapping[str, str]) -> None:
        if "hpo_pilot_launch" not in _text_of_runners(folder):
            raise JobFailure(
                PilotErrorCode.PAYLOAD_EXECUTION_FAILURE,
                "the job was packed by an earlier version, whose runner starts no launcher: submit the search anew",
            )
        traces, steps = self.launcher.traces, self.launcher.step_commands(env)
        said: dict[str, Any] = {"before": list(before), "name": placement.name}
        said |= {"label": traces.label, "dead": traces.dead, "own": traces.own}
        if steps is not None:
            said |= {"steps": list(steps.steps), "signal": list(steps.signal)}
        shutil.copy(_PROGRAM, folder)
        write_whole(folder / DOCUMENT, json.dumps(said), mode=0o600)

    def _gpu_kind(self, gpus: int) -> str:
        if self.site.gpu_kind != "none" or not gpus:
            return self.site.gpu_kind
        return "amd" if Path("/dev/kfd").exists() and not Path("/dev/nvidiactl").exists() else "nvidia"


def _said(path: Path) -> str:
    """The last part of a log; empty: there is none."""
    try:
        return end_of(path, _READ)
    except OSError:
        return ""


def _told(folder: Path) -> list[str]:
    """The names of the variables that the runner sets for this payload."""
    names = [f"HPO_PILOT_{name}" for name in _RUNNER_TELLS]
    try:
        document = json.loads((folder / PAYLOAD_DOCUMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{PAYLOAD_DOCUMENT}: {error}") from error
    if document.get("segment"):
        names.append("HPO_PILOT_SEGMENT")
    if "horovod_timeline.json" in (document.get("outputs") or ()):
        names.append("HOROVOD_TIMELINE")
    return names


def _text_of_runners(folder: Path) -> str:
    paths = (folder / RUNNER, folder / "hpo_pilot_point.py")
    return "".join(path.read_text(errors="replace") for path in paths if path.is_file())


def _others(by_node: Mapping[str, tuple[str, ...]], first: str) -> dict[str, tuple[str, ...]]:
    """What differs from the first node's."""
    return {node: own for node, own in by_node.items() if own != by_node[first]}


def _expanded(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: os.path.expandvars(value) for name, value in variables.items()}


def _visible_script(placement: Placement) -> str:
    variable = VISIBLE_GPUS[placement.gpu_kind]
    cases = [
        f"{node.partition('.')[0]}) export {variable}={','.join(placement.gpus_of(node))} ;;"
        for node in placement.nodes
    ]
    return "\n".join(['case "$(uname -n | cut -d . -f 1)" in', *cases, "esac", 'exec "$@"', ""])
