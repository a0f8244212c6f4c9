"""Starts, stops and ends the process of a job's command."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpo_pilot.pilot.checkpoints import kept_checkpoint
from hpo_pilot.pilot.job import Job, JobFailure, PilotErrorCode
from hpo_pilot.pilot.report import Outcome, Progress
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.transformation.container import Inside, choose_runtime
from hpo_pilot.transformation.job import PayloadDocument, kept_environment, without_secrets
from hpo_pilot.transformation.process import GRACE, SHORT_GRACE, WORKER_MARK, end_leftovers, has_orphans
from hpo_pilot.transformation.transformation import Prepared


def log_end(path: Path, size: int) -> str:
    """The last `size` bytes of a log, as text.

    Raises:
        OSError: there is none.
    """
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read().decode(errors="replace")


def last_line(path: Path) -> str:
    """The last line of a log that is not blank; empty: it has none.

    Raises:
        OSError: there is no log.
    """
    lines = log_end(path, 2000).strip().splitlines()
    return lines[-1] if lines else ""


class Wrapping(ABC):
    """Turns a job's command into the one that the pilot starts."""

    @abstractmethod
    def wrap(
        self, argv: Sequence[str], env: Mapping[str, str], binds: Sequence[Path], folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """The command to start in `folder`, and its environment.

        Args:
            argv: the job's command.
            env: what its processes are to find.
            binds: folders that they write.
            folder: where it runs.

        Raises:
            JobFailure: it cannot run so.
            TransformationFailure: its image cannot be run here.
        """


def by_our_python(argv: Sequence[str]) -> list[str]:
    """The command, its runner started by the Python that runs this: the user's `python3` is the payload's business."""
    return [sys.executable, *argv[1:]] if list(argv[:3]) == ["python3", "-I", "-S"] else list(argv)


@dataclass(frozen=True)
class InContainer(Wrapping):
    """The command in a container, if the job has an image, and else as it is.

    Attributes:
        runtime: of containers, or auto.
        image: empty: none.
        inside: what else is there.
    """

    runtime: str
    image: str
    inside: Inside = field(default_factory=Inside)

    def wrap(
        self, argv: Sequence[str], env: Mapping[str, str], binds: Sequence[Path], folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """See Wrapping."""
        if not self.image:
            return by_our_python(argv), dict(env)
        runtime = choose_runtime(self.runtime, self.image)
        return runtime.wrap(argv, self.image, binds, env, folder, self.inside), dict(env)


log = logging.getLogger(__name__)

#: What the runner reads when it is told to stop: then the end is the payload's own fault, and no retry would help.
STOP_FILE = "hpo_pilot_stop.txt"
LOG_FILE = "runner.log"
AUTHORITY_FILE = "hpo_pilot_ca.pem"

#: What the runner ends with; anything else was done to it.
_OWN_STATUS = (0, 1)


class Execution:
    """A running job. `wait` belongs to the thread that started it; the rest may be called from any."""

    phase = "running"

    def __init__(
        self,
        settings: PilotSettings,
        job: Job,
        prepared: Prepared,
        root: Path,
        lifeline: int,
        variables: Mapping[str, str],
        wrapping: Wrapping,
    ) -> None:
        """Prepares.

        Args:
            settings: of the pilot.
            job: what to run.
            prepared: its command, and where it runs.
            root: the job's folder.
            lifeline: a pipe's end that closes when the pilot dies; the runner watches it.
            variables: more of its environment.
            wrapping: what stands around the command.
        """
        self.job, self.folder = job, Path(prepared.folder)
        document = PayloadDocument.read(prepared.folder)
        self.progress, self.report_seconds = Progress(self.folder, document), document.report_seconds
        self.started = 0.0
        self._python = "" if job.container else document.python
        self._argv, self._binds = prepared.argv, [root, *map(Path, prepared.elsewhere)]
        self._variables, self._wrapping = dict(variables), wrapping
        self._settings, self._lifeline = settings, lifeline
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._failure: JobFailure | None = None
        self._was_told = False
        self._insist_at = float("inf")
        self._ends_at = float("inf")

    @property
    def pid(self) -> int | None:
        """The runner's process; None while there is none."""
        with self._lock:
            return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Starts the command in a process group of its own.

        Raises:
            JobFailure: it cannot be started, or was stopped before.
            TransformationFailure: its image cannot be run here.
        """
        env = _environment(self._settings, self.job, self.folder, self._lifeline) | self._variables
        if self._python and (python := shutil.which(self._python, path=env.get("PATH"))):
            # What starts ranks, such as torchrun, is that Python's own too; the runner does the rest.
            env["PATH"] = f"{Path(python).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
        if self._settings.ca is not None:
            self._copy_authority(self._settings.ca)
        binds = [*self._binds, self._settings.checkpoint_root]
        argv, env = self._wrapping.wrap(self._argv, env, binds, self.folder)
        with self._lock, (self.folder / LOG_FILE).open("wb") as output:
            if self._failure is not None:
                raise self._failure
            try:
                self._process = subprocess.Popen(
                    argv,
                    cwd=self.folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[self._lifeline],
                    process_group=0,
                )
            except OSError as error:
                raise JobFailure(
                    PilotErrorCode.PAYLOAD_EXECUTION_FAILURE, f"{argv[0]} cannot be started: {error}"
                ) from error
        self.started = time.time()
        if self.job.walltime:
            self._ends_at = time.monotonic() + self.job.walltime + self._settings.walltime_grace

    def _copy_authority(self, authority: Path) -> None:
        """Whom the payload must trust to reach the server: into its folder, for a container sees no other."""
        try:
            (self.folder / AUTHORITY_FILE).write_bytes(authority.read_bytes())
        except OSError as error:
            raise JobFailure(
                PilotErrorCode.PAYLOAD_EXECUTION_FAILURE, f"{authority} cannot be copied into the job's folder: {error}"
            ) from error

    def wait(self) -> Outcome:
        """Waits for the end of the command, ends all that it left running, and says how it was."""
        process = self._process
        if process is None:
            raise RuntimeError("wait before start")
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:  # from here on nobody may signal this pid: it will be another's
            _signal_group(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self._process = None
        outcome = Outcome(
            exit_code=process.returncode,
            last_line=_last_line(self.folder / LOG_FILE),
            failure=self._failure,
            started=self.started,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            max_rss_kb=usage.ru_maxrss,
        )
        self._end_leftovers(process.returncode)
        return outcome

    def stop(self, failure: JobFailure) -> None:
        """Ends the job; this attempt failed, and the reason is ours."""
        with self._lock:
            if self._failure is None:
                self._failure = failure
                self._terminate()

    def stop_payload(self, reason: str) -> None:
        """Ends the payload for its own fault: the runner reports the reason as its verdict."""
        with self._lock:
            if self._insist_at != float("inf"):
                return
            try:
                (self.folder / STOP_FILE).write_text(reason)
            except OSError as error:
                log.error("job %s: cannot leave the reason for its end: %s", self.job.panda_id, error)
            self._terminate()

    def check(self) -> None:
        """To be called every second or so: insists where a command does not end."""
        now = time.monotonic()
        if now > self._ends_at:
            self._ends_at = float("inf")
            limit = self.job.walltime + self._settings.walltime_grace
            self.stop(JobFailure(PilotErrorCode.REACHED_MAX_TIME, f"still running {limit:.0f} s after its start"))
        if now > self._insist_at:
            with self._lock:
                self._insist_at = float("inf")
                if self._process is not None:
                    log.warning("job %s does not end and is killed", self.job.panda_id)
                    _signal_group(self._process.pid, signal.SIGKILL)

    def _end_leftovers(self, status: int) -> None:
        """Returns when no process of the job runs any more: only then may another attempt begin."""
        marks = _marks(self._settings, self.job)
        if status == 0 and not has_orphans(marks):
            return
        was_told = self._was_told or status in _OWN_STATUS
        ended = end_leftovers(marks, SHORT_GRACE if was_told else GRACE)
        if ended.found:
            log.warning("%d processes of job %s outlived its command and were ended", ended.found, self.job.panda_id)
        if ended.left:
            log.error("processes %s of job %s do not end, even when killed", ended.left, self.job.panda_id)

    def _terminate(self) -> None:
        self._was_told = True
        self._insist_at = min(self._insist_at, time.monotonic() + self._settings.grace)
        if self._process is not None:
            _signal_group(self._process.pid, signal.SIGTERM)


def _environment(settings: PilotSettings, job: Job, folder: Path, lifeline: int) -> dict[str, str]:
    env = _base(settings, job)
    env["PanDA_TaskID"] = str(job.task_id)
    env["HPO_PILOT_CHECKPOINT_ROOT"] = str(settings.checkpoint_root)
    env["HPO_PILOT_LIFELINE_FD"] = str(lifeline)
    env |= _marks(settings, job)
    if job.points:
        env["HPO_PILOT_IDDS_URL"] = f"{settings.server}/points/{job.points}/idds"
        if settings.ca is not None:
            env["HPO_PILOT_IDDS_CA"] = str(folder / AUTHORITY_FILE)
    return env


def worker_mark(settings: PilotSettings) -> dict[str, str]:
    """The variable that all processes of this worker's jobs have, and no others."""
    return {WORKER_MARK: f"{settings.worker_name}@{settings.workdir}"}


def _marks(settings: PilotSettings, job: Job) -> dict[str, str]:
    """The variables that tell an attempt's processes from all others."""
    return worker_mark(settings) | {"PANDAID": str(job.panda_id), "PANDA_ATTEMPTNR": str(job.attempt or 1)}


def _base(settings: PilotSettings, job: Job) -> dict[str, str]:
    """The environment in which the job's search was submitted, where that is known here; else the pilot's own."""
    kept = None
    if settings.environments is not None and (found := kept_checkpoint(job, settings.environments)) is not None:
        kept = kept_environment(str(settings.environments), found.folder.name, os.environ)
    return without_secrets(os.environ) if kept is None else kept


def _signal_group(pid: int, which: signal.Signals) -> None:
    try:
        os.killpg(pid, which)
    except (ProcessLookupError, PermissionError) as error:
        log.debug("group %s: %s", pid, error)  # nobody is left in it


def _last_line(path: Path) -> str:
    try:
        return last_line(path)
    except OSError as error:
        return str(error)
