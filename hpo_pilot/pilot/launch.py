"""Runs commands through the site's launcher: the ranks of jobs, and tests whether the launcher works."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpo_pilot.errors import GiveUpError, InputError
from hpo_pilot.files import write_whole
from hpo_pilot.hpc.launcher import VISIBLE_GPUS, Launcher, Placement, site_variables
from hpo_pilot.logs import log_end
from hpo_pilot.pilot.execution import ORPHANS_PROGRAM, CommandWrapper, InContainer, by_our_python, ended_with_all
from hpo_pilot.pilot.job import Job, JobFailure, LauncherMissing
from hpo_pilot.pilot.machine import HERE, AssignedResources
from hpo_pilot.pilot.settings import Site
from hpo_pilot.transformation.container import Inside, gpu_kind
from hpo_pilot.transformation.job import PayloadSettings, without_secrets
from hpo_pilot.transformation.process import WORKER_MARK
from hpo_pilot.transformation.transformation import Prepared

log = logging.getLogger(__name__)

_FRESH = 10.0  # seconds for which a successful test counts for other jobs too
_FIRST_PAUSE = 2.0  # seconds before the first test of an outage; each further pause is twice as long
_LONGEST_PAUSE = 300.0
_OUTAGE = 1800.0  # seconds from the first failure until the allocation is given up


class LauncherOutage:
    """Detects that the launcher starts nothing anywhere: its controller is down, or its set-up is wrong.

    In this state every job would lose an attempt within seconds. So jobs are given back, no more are taken, and from
    time to time one process on one node is tested. When the test works, the pilot continues; after a long time without
    success the allocation is given up. Any thread may call any method.
    """

    def __init__(
        self,
        attempt: Callable[[Sequence[str]], str],
        *,
        others: Callable[[], Sequence[str]],
        over: Callable[[], None],
        give_up: Callable[[GiveUpError], None],
    ) -> None:
        """Begins in the state that the launcher works.

        Args:
            attempt: tests the launcher on these nodes; returns why it fails, or an empty text.
            others: returns the usable nodes.
            over: is called when the launcher works again.
            give_up: is called when it has failed for too long.
        """
        self._attempt, self._others, self._over, self._give_up = attempt, others, over, give_up
        self._lock = threading.Lock()
        self._trying = threading.Lock()
        self._stopped = threading.Event()
        self._worked = float("-inf")
        self.is_on = False  #: the launcher starts nothing

    def is_everywhere(self, nodes: Sequence[str]) -> bool:
        """Returns whether a launch without known reason failed because of the launcher, not because of the job.

        Args:
            nodes: nodes of the job, which still has them.
        """
        with self._trying:
            if self.is_on:
                return True
            if time.monotonic() - self._worked < _FRESH:
                return False
            if self._attempt(nodes):
                # A node of the job may be dead without any message.
                other = next((node for node in self._others() if node not in nodes), None)
                return other is None or bool(self._attempt([other]))
            self._worked = time.monotonic()
            return False

    def begin(self, why: str, nodes: Sequence[str]) -> None:
        """Begins an outage; returns at once.

        Args:
            why: message of the launcher.
            nodes: are tested first, because they are free.
        """
        with self._lock:
            if self.is_on or self._stopped.is_set():
                return
            self.is_on = True
        log.error("the launcher cannot start anything, so the pilot takes no jobs for now: %s", why)
        threading.Thread(target=self._run, args=[why, tuple(nodes)], name="outage", daemon=True).start()

    def stop(self) -> None:
        """Ends the tests, when the pilot ends."""
        self._stopped.set()

    def _run(self, why: str, nodes: Sequence[str]) -> None:
        began, pause = time.monotonic(), _FIRST_PAUSE
        in_turn = itertools.cycle([*nodes, *(node for node in self._others() if node not in nodes)])
        while not self._stopped.wait(pause):
            why = self._attempt([next(in_turn)])
            seconds = time.monotonic() - began
            if not why:
                self.is_on, self._worked = False, time.monotonic()
                log.warning("the launcher works again after %.0f s", seconds)
                self._over()
                return
            if seconds >= _OUTAGE:
                text = f"the launcher has started nothing for {seconds:.0f} s ({why}): see the batch system's state"
                self._give_up(GiveUpError(text))
                return
            pause = min(2 * pause, _LONGEST_PAUSE, max(1.0, began + _OUTAGE - time.monotonic()))
            log.warning("the launcher still starts nothing, it is tried again in %.0f s: %s", pause, why)


@dataclass(frozen=True)
class StepResult:
    """Result of a command that ran on some nodes.

    Attributes:
        text: output of the launcher and of all processes.
        status: exit status of the launcher.
        why_ended: why the step was ended early; empty: it ended by itself.
    """

    text: str
    status: int
    why_ended: str


_STEP_POLL_SECONDS = 0.1
_STEP_GRACE = 10.0  # seconds between TERM and KILL


def run_step(
    site: Site,
    argv: Sequence[str],
    nodes: Sequence[str],
    allocation: Sequence[str],
    *,
    seconds: float,
    is_over: Callable[[], bool] = lambda: False,
    memory_mb: int = 0,
    folder: Path | None = None,
) -> StepResult:
    """Runs a command of the pilot itself, with one process on each node.

    Args:
        site: the site with the launcher.
        argv: the command.
        nodes: each has a free core.
        allocation: all nodes.
        seconds: time limit.
        is_over: returns whether to end the step now.
        memory_mb: memory of each process; 0: not given.
        folder: where it runs; None: the current folder.

    Raises:
        OSError, InputError: the launcher cannot be started.
    """
    launcher = site.launcher.per_node
    placement = Placement(
        nodes=tuple(nodes),
        gpu_kind=site.gpu_kind,
        environment=site_variables(os.environ) | _expanded(site.environment),
        allocation=tuple(allocation),
        memory_mb=memory_mb,
    )
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            launcher.command(argv, placement),
            cwd=folder,
            env={**launcher.environment(placement, without_secrets(os.environ)), WORKER_MARK: ""},  # it is of no job
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        why_ended = _wait(process, seconds, is_over)
        output.seek(0)
        return StepResult(output.read().decode(errors="replace"), process.returncode, why_ended)


def _wait(process: subprocess.Popen[bytes], seconds: float, is_over: Callable[[], bool]) -> str:
    """Waits for a launcher to end, or ends it; returns why it was ended, or an empty text."""
    end = time.monotonic() + seconds
    why = ""
    while process.poll() is None:
        try:
            process.wait(_STEP_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            which = None
            if why and time.monotonic() > end:
                which = signal.SIGKILL
            elif not why and (is_over() or time.monotonic() > end):
                why = "it is not needed any more" if is_over() else f"it took more than {seconds:.0f} s"
                which, end = signal.SIGTERM, time.monotonic() + _STEP_GRACE
            if which is not None:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, which)
    return why


_AVOIDED, _MOST_AVOIDED = 60.0, 900.0  # seconds: the first time, and at most


class AvoidedTasks:
    """The tasks whose launcher is missing here. Any thread may call any method.

    The server gives this pilot no jobs of their searches for a while, then one try again, and shows the reason.
    """

    def __init__(self) -> None:
        """Begins without tasks."""
        self._until: dict[int, tuple[float, float]] = {}  # monotonic time, and seconds of the pause
        self._lock = threading.Lock()
        self.why = ""  #: the newest reason

    def add(self, task_id: int, why: str) -> None:
        """Avoids a task, each time twice as long."""
        now = time.monotonic()
        with self._lock:
            until, pause = self._until.get(task_id, (0.0, _AVOIDED / 2))
            if until < now:  # else several of its jobs came together
                pause = min(2 * pause, _MOST_AVOIDED)
                log.warning("no jobs of task %s and its search are taken for %.0f s: %s", task_id, pause, why)
                self._until[task_id] = now + pause, pause
            self.why = why

    def now(self) -> list[int]:
        """Returns the tasks to avoid now."""
        with self._lock:
            return [task_id for task_id, (until, _) in self._until.items() if until > time.monotonic()]


_PROBE_SECONDS = 60.0
_PROBE_MEMORY_MB = 64  # of each process
#: srun prints this while it waits for cores of other steps: the controller has answered.
_BUSY = "step creation temporarily disabled"
_SAID = 300  # characters of the launcher's message


def probe_launcher(site: Site, nodes: Sequence[str], allocation: Sequence[str]) -> str:
    """Tests the launcher on nodes; returns why it starts nothing, empty: it works.

    Args:
        site: the site with the launcher.
        nodes: each has a free core.
        allocation: all nodes.
    """
    launcher = site.launcher.per_node
    try:
        done = run_step(site, ["true"], nodes, allocation, seconds=_PROBE_SECONDS, memory_mb=_PROBE_MEMORY_MB)
    except (OSError, InputError) as error:
        return str(error)
    if done.why_ended:
        return "" if _BUSY in done.text else f"{launcher.name} has started nothing for {_PROBE_SECONDS:.0f} s"
    if done.status == 0:
        return ""
    words = " ".join((launcher.log_patterns.failure(done.text) or done.text).split())
    return words[:_SAID] or f"{launcher.name} ended with status {done.status}"


LAUNCH_DOCUMENT = "hpo_pilot_launch.json"
RUNNER_FILE = "hpo_pilot_runner.py"

#: The runner loads this file to use the document. The pilot provides it, because only the pilot knows the launcher.
_PROGRAM = Path(__file__).parent.parent / "runner" / "hpo_pilot_launch.py"

#: Placeholder for the folder where the payload runs; only the runner knows it, because a job may run several points.
_FOLDER = "%FOLDER"

#: Variables HPO_PILOT_<NAME> that the runner sets. Ranks on other nodes get only variables that are listed.
_RUNNER_TELLS = (
    *(
        "ATTEMPT",
        "CHECKPOINT_DIR",
        "CORES",
        "FOLD",
        "FOLDS",
        "GENERATION",
        "GPUS",
        "MEASURED",
        "NODES",
        "NUMBER",
        "SEARCH",
    ),
    *("SEED", "TRIAL", "UID"),
)
_LIFELINE = "HPO_PILOT_LIFELINE_FD"

#: The end of the runner's last line if the ranks were ended from outside: then it gives no verdict on the payload.
STEP_CANCELLED = "the job step was cancelled"

#: Runs a rank so that it ends together with all that it has started. The nodes of a site may lack the pilot's Python.
_ENDED_WITH_ALL = 'if [ -x "$0" ]; then exec "$0" -I -S "$@"; fi; shift; exec "$@"'

#: Script that limits ranks to their node's GPUs, if the launcher does not.
_VISIBLE_SCRIPT = "hpo_pilot_visible.sh"

#: Ports of jobs, below the range that systems assign themselves (from 32768).
_FIRST_PORT, _PORTS = 20_000, 12_000

_END_SECONDS = 60.0  # time limit for ending a job step
_READ = 64 * 1024  # bytes read from the end of a log


@dataclass(frozen=True)
class Staged:
    """The copies that a job uses on its nodes' own disks.

    Attributes:
        seconds: that staging took; None: there was nothing to stage.
        image: name of the staged image in the job; empty: the image is not staged.
        image_copy: path of the image on the nodes.
        folders: on the nodes, with files that the job's folder links to.
    """

    seconds: float | None = None
    image: str = ""
    image_copy: str = ""
    folders: tuple[Path, ...] = ()

    def words(self, words: Sequence[str]) -> list[str]:
        """Returns the words of a container runtime with the image replaced by its copy."""
        if not self.image:
            return list(words)
        image = self.image.rstrip("/")
        return [self.image_copy + word[len(image) :] if _is_of(word, image) else word for word in words]

    def beside(self, prepared: Prepared) -> Prepared:
        """Returns the job with the staged folders, which its container must mount."""
        return prepared._replace(elsewhere=[*prepared.elsewhere, *map(str, self.folders)])


#: The value for a job without files to stage.
NOTHING_STAGED = Staged()


def _is_of(word: str, image: str) -> bool:
    """Returns whether a word is the image, a path in it, or the image with options such as podman's `IMAGE:O`."""
    return word.startswith(image) and word[len(image) :][:1] in ("", "/", ":")


@dataclass(frozen=True)
class LaunchFailure:
    """A failure of the launcher.

    Attributes:
        why: one line of its message.
        nodes: that the message names.
        lost: nodes that the batch system has taken away.
        is_away: the message says that the launcher starts nothing anywhere.
    """

    why: str
    nodes: frozenset[str]
    lost: frozenset[str]
    is_away: bool


@dataclass(frozen=True)
class WithLauncher(CommandWrapper):
    """Runs the payload's command in a container, and the container through the launcher.

    The runner itself stays on this node, outside of both. The job's folder is on storage that all nodes share.
    """

    site: Site
    job: Job
    assignment: AssignedResources
    document: PayloadSettings
    container: InContainer
    staged: Staged = NOTHING_STAGED

    @property
    def launcher(self) -> Launcher:
        """The site's, or that for agents; a command that runs once may not need it."""
        launcher, (first, *others) = self.site.launcher, self.assignment.nodes
        if self.assignment.spread and (spread := launcher.by_agents(self.assignment.spread)) is not None:
            return spread
        if self.document.ranks_per_node or others:
            return launcher
        return launcher.once(first.partition(".")[0] in (HERE, platform.node().partition(".")[0]))

    def wrap(
        self, argv: Sequence[str], env: Mapping[str, str], binds: Sequence[Path], folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """See CommandWrapper. Our runner gets the launcher's words in a file and starts the payload with them."""
        if lacking := self.launcher.lacks(env.get("PATH")):
            raise LauncherMissing(f"at site {self.site.name!r} {lacking}")
        ours = (folder / RUNNER_FILE).is_file()
        try:
            placement = self.placement(env, _told(self.document) if ours else ())
            around = self._around(placement, binds, folder, workdir=_FOLDER if ours else str(folder))
            before = self.launcher.command(around, placement)
            started = self.launcher.environment(placement, env)
        except InputError as error:
            raise JobFailure(str(error)) from error
        if not ours:
            return ended_with_all([*before, *argv]), started
        self._tell(folder, before, placement, env)
        return by_our_python(argv), started

    def placement(self, env: Mapping[str, str], told: Iterable[str]) -> Placement:
        """Returns the placement of the ranks.

        Args:
            env: environment of the job.
            told: names of further variables that the runner will set.

        Raises:
            InputError: GPUs or cores cannot be divided among the ranks.
        """
        given, ranks = self.assignment, max(1, self.document.ranks_per_node)
        gpus = len(given.gpus.get(given.nodes[0], ()))
        if gpus % ranks:
            raise InputError(f"the job's {gpus} GPUs of each node cannot be divided among {ranks} ranks")
        if given.cores < ranks:
            raise InputError(f"the job has {given.cores} cores on each node, and {ranks} ranks: each needs one")
        named = {name: value for name, value in site_variables(env).items() if name != _LIFELINE}
        # The batch system sets it for all cores of this node, not for a job's share.
        named.pop("OMP_NUM_THREADS", None)
        panda = {name: value for name, value in env.items() if name.upper().startswith("PANDA")}
        first = given.nodes[0]
        return Placement(
            nodes=given.nodes,
            ranks_per_node=ranks,
            gpus_per_rank=gpus // ranks,
            cores_per_rank=given.cores // ranks,
            gpu_kind=self._gpu_kind(gpus),
            environment={**named, **panda, **dict.fromkeys(told, ""), **_expanded(self.site.environment)},
            allocation=given.allocation,
            gpus=given.gpus.get(first, ()),
            gpus_on=_others(given.gpus, first),
            memory_mb=given.memory_mb,
            port=_FIRST_PORT + self.job.panda_id % _PORTS,
            is_shared=given.is_shared,
            name=f"hpo-pilot-{self.job.panda_id}-{self.job.attempt}",
        )

    def launch_failure(self, folder: Path) -> LaunchFailure | None:
        """Returns the launcher's failure from its messages in the log; None: there is no such message."""
        said, log_patterns = _said(folder / "payload.log"), self.launcher.log_patterns
        why = log_patterns.failure(said)
        if not why:
            return None
        nodes = self.assignment.nodes
        return LaunchFailure(
            why,
            log_patterns.broken_nodes(said, nodes),
            log_patterns.lost_nodes(said, nodes),
            log_patterns.is_away(said),
        )

    def were_terminated(self, folder: Path) -> bool:
        """Returns whether the launcher says of each rank that failed that SIGTERM has ended it."""
        return self.launcher.log_patterns.were_terminated(_said(folder / "payload.log"))

    def end_step(self, folder: Path) -> None:
        """Ends the rest of the job's step after its launcher's process was killed."""
        if not (folder / LAUNCH_DOCUMENT).is_file() or self.launcher.step_commands(os.environ) is None:
            return
        try:
            words = [sys.executable, "-I", "-S", str(folder / _PROGRAM.name), "KILL"]
            subprocess.run(words, stdin=subprocess.DEVNULL, timeout=_END_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("processes of job %s may remain: %s", self.job.panda_id, error)

    def _around(self, placement: Placement, binds: Sequence[Path], folder: Path, workdir: str) -> list[str]:
        """Returns the words between the launcher and the payload: choice of GPUs, and container."""
        words: list[str] = []
        if self.assignment.allocation and self.launcher.programs:  # ranks are not below the runner
            shutil.copy(ORPHANS_PROGRAM, folder)
            words = ["/bin/sh", "-c", _ENDED_WITH_ALL, sys.executable, str(folder / ORPHANS_PROGRAM.name)]
        is_chosen_here = placement.is_shared or (placement.gpus_on and not self.launcher.chooses_gpus)
        if is_chosen_here and placement.gpu_kind in VISIBLE_GPUS:
            script = folder / _VISIBLE_SCRIPT
            starts_ranks = self.launcher.per_node is self.launcher  # else the payload's processes find theirs
            own = self.launcher.chooses_gpus and not self.launcher.settings.share_gpus
            by_rank = placement.is_shared and starts_ranks and own
            script.write_text(_visible_script(placement, by_rank=by_rank))
            words += ["/bin/sh", str(script)]
        if not self.job.container:
            return words
        names = dict(placement.environment) | dict.fromkeys(self.launcher.exported(placement), "")
        # The payload's words are appended, so `env` is the program here: podman's options name the program.
        # Launchers of MPI keep sockets and files of their ranks in /tmp.
        shared = replace(self.container, inside=self.container.inside._replace(shares_tmp=True))
        inside, _ = shared.wrap(["env"], names, binds, Path(workdir))
        return words + self.staged.words(inside)

    def _tell(self, folder: Path, before: Sequence[str], placement: Placement, env: Mapping[str, str]) -> None:
        patterns = asdict(self.launcher.log_patterns)
        said: dict[str, Any] = {name: patterns[name] for name in ("label", "dead", "own", "cancelled")}
        said |= {"before": before, "name": placement.name}
        if (steps := self.launcher.step_commands(env)) is not None:
            said |= asdict(steps)
        shutil.copy(_PROGRAM, folder)
        write_whole(folder / LAUNCH_DOCUMENT, json.dumps(said), mode=0o600, scratch=True)

    def _gpu_kind(self, gpus: int) -> str:
        if self.site.gpu_kind != "none" or not gpus:
            return self.site.gpu_kind
        here = gpu_kind(Inside())
        return "nvidia" if here == "none" else here


def _said(path: Path) -> str:
    """Returns the end of a log; empty: there is none."""
    try:
        return log_end(path, _READ).decode(errors="replace")
    except OSError:
        return ""


def _told(document: PayloadSettings) -> list[str]:
    """Returns the names of the variables that the runner sets for this payload."""
    names = [f"HPO_PILOT_{name}" for name in _RUNNER_TELLS]
    if document.segment:
        names.append("HPO_PILOT_SEGMENT")
    if "horovod_timeline.json" in document.outputs:
        names.append("HOROVOD_TIMELINE")
    if "ranks_timeline.json" in document.outputs:
        names.append("HPO_PILOT_TIMELINE")
    return names


def _others(by_node: Mapping[str, tuple[str, ...]], first: str) -> dict[str, tuple[str, ...]]:
    """Returns the nodes whose GPUs differ from the first node's."""
    return {node: own for node, own in by_node.items() if own != by_node[first]}


def _expanded(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: os.path.expandvars(value) for name, value in variables.items()}


def _visible_script(placement: Placement, *, by_rank: bool) -> str:
    """Returns a program that limits a process to the job's GPUs on its node, or to those of its rank there."""
    cases = [
        f"{node.partition('.')[0]}) gpus={','.join(placement.gpus_on.get(node, placement.gpus))} ;;"
        for node in placement.nodes
    ]
    count = placement.gpus_per_rank
    local = "${SLURM_LOCALID:-${FLUX_TASK_LOCAL_ID:-0}}"
    first = f"$(({local} * {count} + 1))"
    cut = f'gpus=$(echo "$gpus" | cut -d , -f {first}-$(({first} + {count - 1})))' if by_rank and count else ""
    node = 'case "${SLURMD_NODENAME:-$(uname -n | cut -d . -f 1)}" in'
    return "\n".join([node, *cases, "esac", cut, f"export {VISIBLE_GPUS[placement.gpu_kind]}=$gpus", 'exec "$@"', ""])
