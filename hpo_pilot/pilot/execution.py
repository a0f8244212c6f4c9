"""Starts and stops the process of a job's command."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from hpo_pilot.hpc.launcher import GPU_VARIABLES, index_gpus_once
from hpo_pilot.pilot.checkpoints import kept_checkpoint
from hpo_pilot.pilot.isolation import Confinement
from hpo_pilot.pilot.job import Job, JobFailure, PilotErrorCode
from hpo_pilot.pilot.report import Outcome, Progress
from hpo_pilot.pilot.settings import PilotSettings, worker_mark
from hpo_pilot.pilot.warm import WARM_MARK, WarmInterpreter, WarmInterpreters, WarmKind, last_line_or_error
from hpo_pilot.transformation.container import ContainerStart, Inside, choose_runtime
from hpo_pilot.transformation.job import PayloadSettings, kept_environment, without_secrets
from hpo_pilot.transformation.process import OWN_STATUS, SHORT_GRACE, end_leftovers, has_orphans, signal_group
from hpo_pilot.transformation.transformation import Prepared


class CommandWrapper(ABC):
    """Turns a job's command into the one that the pilot starts."""

    @abstractmethod
    def wrap(
        self, argv: Sequence[str], env: Mapping[str, str], binds: Sequence[Path], folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """Returns the command to start in `folder`, and its environment.

        Args:
            argv: the job's command.
            env: environment of its processes.
            binds: folders that they write.
            folder: where it runs.

        Raises:
            JobFailure: the command cannot be wrapped.
            TransformationFailure: its image cannot be run here.
        """


#: Ends what a command leaves behind.
ORPHANS_PROGRAM = Path(__file__).parent.parent / "runner" / "hpo_pilot_orphans.py"


def by_our_python(argv: Sequence[str]) -> list[str]:
    """Returns the command; the pilot's own Python starts our runner, the user's `python3` is for the payload."""
    if list(argv[:3]) == ["python3", "-I", "-S"]:
        return [sys.executable, *argv[1:]]
    return ended_with_all(argv)


def ended_with_all(argv: Sequence[str]) -> list[str]:
    """Returns a command that ends together with all processes that it has started; our runner does that itself."""
    return [sys.executable, "-I", "-S", str(ORPHANS_PROGRAM), *argv]


@dataclass(frozen=True)
class InContainer(CommandWrapper):
    """Runs the command in a container if the job has an image, otherwise unchanged.

    Attributes:
        runtime: container runtime, or auto.
        image: empty: none.
        inside: further settings of the container.
        confinement: of a command without container.
    """

    runtime: str
    image: str
    inside: Inside = field(default_factory=Inside)
    confinement: Confinement = field(default_factory=Confinement)

    def wrap(
        self, argv: Sequence[str], env: Mapping[str, str], binds: Sequence[Path], folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """See CommandWrapper."""
        if not self.image:
            return [*self.confinement.words, *by_our_python(argv)], self.confinement.environment(env)
        start = ContainerStart(argv, self.image, binds, env, folder, self.inside)
        return ended_with_all(choose_runtime(self.runtime, self.image).wrap(start)), dict(env)


log = logging.getLogger(__name__)

#: Reason for a stop by the payload's own fault. The runner makes it the verdict, because a retry would not help.
STOP_FILE = "hpo_pilot_stop.txt"
LOG_FILE = "runner.log"
#: The program of the job's command, and of one point of it.
RUNNER_FILES = ("hpo_pilot_runner.py", "hpo_pilot_point.py")
AUTHORITY_FILE = "hpo_pilot_ca.pem"


#: The commands of this pilot's jobs, until each is waited for.
_CLAIMED: set[int] = set()
_CLAIM = threading.Lock()


def _claimed(pid: int) -> int:
    """Returns the PID of a job's command after noting it.

    Raises:
        OSError: it is the command of another job.
    """
    with _CLAIM:
        if pid in _CLAIMED:
            raise OSError(f"process {pid} belongs to another job")
        _CLAIMED.add(pid)
    return pid


class Execution:
    """A running job. The thread that started it calls `wait`; any thread may call the other methods."""

    phase = "running"

    def __init__(
        self,
        settings: PilotSettings,
        job: Job,
        document: PayloadSettings,
        prepared: Prepared,
        root: Path,
        lifeline: int,
        variables: Mapping[str, str],
        wrapper: CommandWrapper,
    ) -> None:
        """Makes the execution; `start` starts the command.

        Args:
            settings: settings of the pilot.
            job: the job.
            document: description of its payload.
            prepared: its command and folder.
            root: the job's folder.
            lifeline: reading end of a pipe that closes when the pilot dies; the runner watches it.
            variables: added to its environment.
            wrapper: container and launcher of the command.
        """
        self.job, self.folder, self._root = job, Path(prepared.folder), root
        self.progress, self.report_seconds = Progress(self.folder, document), document.report_seconds
        self.started = 0.0
        self._python = "" if job.container else document.python
        self._argv, self._binds = prepared.argv, [root, *map(Path, prepared.elsewhere)]
        self._variables, self._wrapper = dict(variables), wrapper
        self._settings, self._lifeline = settings, lifeline
        self.function, self._import_seconds = document.function, 60 * (document.minutes or 10)
        self._interpreters: WarmInterpreters | None = None
        self._interpreter: WarmInterpreter | None = None  # the one that the command is forked from
        self._pid: int | None = None
        self._lock = threading.Lock()
        self._failure: JobFailure | None = None
        self._was_told = False
        self._insist_at = float("inf")
        self._ends_at = float("inf")

    @property
    def pid(self) -> int | None:
        """PID of the runner; None: it does not run."""
        with self._lock:
            return self._pid

    def warm_up(
        self, interpreters: WarmInterpreters, unpack: Callable[[Path], object], is_over: Callable[[], bool]
    ) -> None:
        """Takes a kept interpreter from which the command will be forked; not for containers and launchers.

        Args:
            interpreters: interpreters of the pilot.
            unpack: fills a folder with the job's sandbox.
            is_over: whether the job is not needed any more.
        """
        if self.job.container or not isinstance(self._wrapper, InContainer) or not self._is_ours():
            return
        kind = WarmKind(
            self.job.arguments.archive, self.function, (sys.executable, "-I", "-S"), (), self._wrapper.confinement
        )
        if self.function:
            env = self._environment()
            python = shutil.which(self._python or "python3", path=env.get("PATH"))
            if python is None:
                return
            kind = replace(kind, python=(python,), environment=tuple(sorted(_of_any_job(env).items())))
        fill = unpack if self.function else self._copy_runner
        self._interpreters = interpreters
        self._interpreter = interpreters.take(kind, fill, self._import_seconds, is_over)

    def keep_interpreter(self) -> None:
        """Gives the interpreter back for other jobs, when no process that was forked from it for this job is left."""
        if self._interpreters is not None and self._interpreter is not None:
            self._interpreters.give_back(self._interpreter)
        self._interpreter = None

    def _end_interpreter(self) -> None:
        if self._interpreter is not None:
            self._interpreter.end()
        self._interpreter = None

    def _marks_of_forked(self, interpreter: WarmInterpreter) -> dict[str, str]:
        """Returns the variables that identify the processes that were forked from an interpreter."""
        return worker_mark(self._settings) | {WARM_MARK: interpreter.mark}

    def _is_ours(self) -> bool:
        return self._argv[:3] == ["python3", "-I", "-S"] and bool(self.job.arguments.archive)

    def _copy_runner(self, folder: Path) -> None:
        for name in RUNNER_FILES:
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, folder)

    def _environment(self) -> dict[str, str]:
        env = index_gpus_once(_environment(self._settings, self.job, self.folder, self._lifeline) | self._variables)
        if self._python and (python := shutil.which(self._python, path=env.get("PATH"))):
            # So that starters of ranks such as torchrun come from this Python too; the runner does the rest.
            env["PATH"] = f"{Path(python).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
        return env

    def start(self) -> None:
        """Starts the command in a process group of its own.

        Raises:
            JobFailure: it cannot be started, or was stopped before.
            TransformationFailure: its image cannot be run here.
        """
        env = self._environment()
        if self._settings.ca is not None:
            self._copy_authority(self._settings.ca)
        own = self._wrapper.confinement.checkpoints if isinstance(self._wrapper, InContainer) else None
        binds = [*self._binds, own or self._settings.checkpoint_root]
        argv, env = self._wrapper.wrap(self._argv, env, binds, self.folder)
        with self._lock, self._new_file(LOG_FILE) as output:
            if self._failure is not None:
                raise self._failure
            self._pid = self._forked(env, output.fileno()) or self._started(argv, env, output.fileno())
        self.started = time.time()
        if self.job.walltime:
            self._ends_at = time.monotonic() + self.job.walltime + self._settings.walltime_grace

    def _forked(self, env: Mapping[str, str], output: int) -> int | None:
        """Returns the PID of the command, forked from a kept interpreter; None: there is none."""
        if self._interpreter is None:
            return None
        try:
            pid = _claimed(self._interpreter.fork(self._argv[3:], self.folder, env, output, self._lifeline))
            with contextlib.suppress(AttributeError, ProcessLookupError):  # macOS, or it has ended
                os.sched_setaffinity(pid, os.sched_getaffinity(0))  # the cores of this job, not of the interpreter
            return pid
        except OSError as error:
            log.warning("job %s: %s", self.job.panda_id, error)
            forked = self._marks_of_forked(self._interpreter)
            self._end_interpreter()
            end_leftovers(forked, SHORT_GRACE)  # it may have forked the job all the same
            return None

    def _started(self, argv: Sequence[str], env: Mapping[str, str], output: int) -> int:
        """Returns the PID of the command, started as a program."""
        try:
            process = subprocess.Popen(
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
            raise JobFailure(f"{argv[0]} cannot be started: {error}") from error
        process.returncode = 0  # `wait` waits for it, so this object need not
        return _claimed(process.pid)

    def _new_file(self, name: str) -> BinaryIO:
        """Opens a new file of the pilot in the job's folder.

        It follows no link: payloads of the search may have put one there, or in place of a folder, to make the pilot
        overwrite what they cannot.

        Raises:
            OSError: it cannot be made, or a folder is a link.
        """
        plain = os.O_NOFOLLOW | os.O_CLOEXEC
        place = os.open(self._root.parent, os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in (self._root.name, *Path(os.path.relpath(self.folder, self._root)).parts):
                place, above = os.open(part, os.O_DIRECTORY | plain, dir_fd=place), place
                os.close(above)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=place)
            return os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | plain, 0o600, dir_fd=place), "wb")
        finally:
            os.close(place)

    def _copy_authority(self, authority: Path) -> None:
        """Copies the certificates of the server's authorities into the job's folder, which a container can read."""
        try:
            with self._new_file(AUTHORITY_FILE) as file:
                file.write(authority.read_bytes())
        except OSError as error:
            raise JobFailure(f"{authority} cannot be copied into the job's folder: {error}") from error

    def wait(self) -> Outcome:
        """Waits for the command to end, ends the processes that it left, and returns the outcome."""
        pid = self._pid
        if pid is None:
            raise RuntimeError("wait before start")
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with self._lock:  # no thread may signal this PID any more: another process may get it
            signal_group(pid, signal.SIGKILL)
            with _CLAIM:
                _, status, usage = os.wait4(pid, 0)
                _CLAIMED.remove(pid)
            self._pid = None
        exit_code = os.waitstatus_to_exitcode(status)
        outcome = Outcome(
            exit_code=exit_code,
            last_line=last_line_or_error(self.folder / LOG_FILE),
            failure=self._failure,
            started=self.started,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            max_rss_kb=usage.ru_maxrss,
        )
        self._end_leftovers(exit_code)
        return outcome

    def stop(self, failure: JobFailure) -> None:
        """Ends the job; this attempt fails with the given failure."""
        with self._lock:
            if self._failure is None:
                self._failure = failure
                self._terminate()

    def stop_payload(self, reason: str) -> None:
        """Ends a payload that broke a limit; the runner reports the reason as its verdict."""
        with self._lock:
            if self._insist_at != float("inf"):
                return
            try:
                with self._new_file(STOP_FILE) as file:
                    file.write(reason.encode())
            except OSError as error:
                log.error("job %s: the reason for its end cannot be written: %s", self.job.panda_id, error)
            self._terminate()

    def check(self) -> None:
        """Enforces the time limit and kills a command that does not end; called about once a second."""
        now = time.monotonic()
        if now > self._ends_at:
            self._ends_at = float("inf")
            limit = self.job.walltime + self._settings.walltime_grace
            self.stop(JobFailure(f"still running {limit:.0f} s after its start", PilotErrorCode.REACHED_MAX_TIME))
        if now > self._insist_at:
            with self._lock:
                self._insist_at = float("inf")
                if self._pid is not None:
                    log.warning("job %s does not end and is killed", self.job.panda_id)
                    signal_group(self._pid, signal.SIGKILL)

    def _end_leftovers(self, status: int) -> None:
        """Ends the job's remaining processes and waits for them: only then may another attempt begin."""
        marks = _marks(self._settings, self.job)
        grace = SHORT_GRACE if self._was_told or status in OWN_STATUS else self._settings.grace
        if self._interpreter is not None:
            # Forked processes have the environment of their interpreter; it ends with them.
            forked = self._marks_of_forked(self._interpreter)
            if status == 0 and not has_orphans(forked):
                self.keep_interpreter()
            else:
                self._end_interpreter()
                end_leftovers(forked, grace, adopted=True)
        if status == 0 and not has_orphans(marks):
            return
        ended = end_leftovers(marks, grace, adopted=True)
        if ended.found:
            log.warning("%d processes of job %s outlived its command and were ended", ended.found, self.job.panda_id)
        if ended.left:
            log.error("processes %s of job %s do not end, even when killed", ended.left, self.job.panda_id)

    def _terminate(self) -> None:
        self._was_told = True
        self._insist_at = min(self._insist_at, time.monotonic() + self._settings.grace)
        if self._pid is not None:
            signal_group(self._pid, signal.SIGTERM)


def _environment(settings: PilotSettings, job: Job, folder: Path, lifeline: int) -> dict[str, str]:
    env = _base(settings, job)
    env.setdefault("OMP_NUM_THREADS", str(job.cores))  # a function is imported before the runner sets it
    env["PanDA_TaskID"] = str(job.task_id)
    kept = kept_checkpoint(job, settings.checkpoint_root)
    env["HPO_PILOT_CHECKPOINT_ROOT"] = str(kept.folder.parent if kept else settings.checkpoint_root)
    env["HPO_PILOT_LIFELINE_FD"] = str(lifeline)
    env |= _marks(settings, job)
    if job.points:
        env["HPO_PILOT_IDDS_URL"] = f"{settings.server}/points/{job.points}/idds"
        if settings.ca is not None:
            env["HPO_PILOT_IDDS_CA"] = str(folder / AUTHORITY_FILE)
    return env


def _of_any_job(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of a job's environment that is the same for all jobs of its search."""
    return {
        name: value
        for name, value in env.items()
        if not name.upper().startswith(("PANDA", "HPO_PILOT_")) and name not in GPU_VARIABLES
    }


def _marks(settings: PilotSettings, job: Job) -> dict[str, str]:
    """Returns the variables that identify the processes of an attempt."""
    return worker_mark(settings) | {"PANDAID": str(job.panda_id), "PANDA_ATTEMPTNR": str(job.attempt or 1)}


def _base(settings: PilotSettings, job: Job) -> dict[str, str]:
    """Returns the environment in which the job's search was submitted if it is stored here, otherwise the pilot's."""
    kept = None
    if settings.environments is not None and (found := kept_checkpoint(job, settings.environments)) is not None:
        kept = kept_environment(str(settings.environments), found.folder.name, os.environ)
    return without_secrets(os.environ) if kept is None else kept
