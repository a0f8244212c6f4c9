"""The interface to batch systems: allocation requests, job scripts, batch jobs, and the calls of their commands."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hpo_pilot.errors import InputError, TryAgainError

if TYPE_CHECKING:
    from hpo_pilot.hpc.site_profile import SiteProfile

_WALLTIME = re.compile(r"(?:(?P<days>\d{1,3})-)?(?P<hours>\d{1,4}):(?P<minutes>[0-5]\d)")


def walltime_minutes(text: str) -> int:
    """Returns the minutes of a walltime such as 2:00 (two hours) or 1-12:00 (a day and a half).

    Raises:
        InputError: the text is not a walltime, or is zero.
    """
    match = _WALLTIME.fullmatch(text.strip())
    parts = {name: int(value or 0) for name, value in match.groupdict().items()} if match else {}
    minutes = parts.get("days", 0) * 1440 + parts.get("hours", 0) * 60 + parts.get("minutes", 0)
    if not minutes:
        raise InputError(f"--walltime {text!r}: give hours and minutes, such as 2:00, or days too, such as 1-12:00")
    return minutes


def walltime_text(minutes: int) -> str:
    """Returns a walltime as hours and minutes, e.g. 2:00 or 36:00: for people, and for LSF."""
    return f"{minutes // 60}:{minutes % 60:02d}"


class BatchState(StrEnum):
    """The state of a batch job, in words common to all batch systems."""

    WAITING = "waiting"  #: starts as soon as nodes are free
    HELD = "held"  #: cannot start yet: held, scheduled for later, or beyond a limit on eligible jobs
    RUNNING = "running"  #: has its nodes
    ENDED = "ended"  #: its script ended with status 0, or the batch system has forgotten how it ended
    TIMED_OUT = "timed out"  #: it reached its walltime
    CANCELLED = "cancelled"  #: on request
    FAILED = "failed"  #: its script ended with another status, or a node failed

    @property
    def is_over(self) -> bool:
        """True if the job has no nodes and will get none."""
        return self not in (BatchState.WAITING, BatchState.HELD, BatchState.RUNNING)


@dataclass(frozen=True)
class BatchJob:
    """One job of this user, submitted by this program or not.

    Attributes:
        id: the job's identifier at the batch system.
        name: the job's name, as submitted.
        state: the job's state.
        queue: the queues, partitions or QOS whose limits count the job; some batch systems have two kinds at once.
        reason: the reason for the state, in the batch system's words; empty: it gives none.
    """

    id: str
    name: str
    state: BatchState
    queue: tuple[str, ...] = ()
    reason: str = ""


#: The output of script and pilot, in the allocation's folder.
OUTPUT_FILE = "output.log"


@dataclass(frozen=True)
class Allocation:
    """An allocation that this program submitted; times are in seconds since the epoch.

    Attributes:
        name: the unique name of the batch job.
        site: the name of the site profile.
        system: the name of the batch system.
        nodes: number of nodes.
        minutes: the walltime.
        server: the PanDA server of its pilot.
        panda_queue: the PanDA queue that its pilot serves.
        queue: the batch queue; None: the batch system's default.
        folder: the folder of script and output.
        kept: whether `pilots keep` submitted it.
        submitted: the time of submission.
        job_id: its identifier at the batch system; None: its submission is under way.
        state: its state; None: its submission is under way.
        reason: the reason for the state, in the batch system's words.
        started: when it was first seen running; None: not yet.
        changed: when `state` was first seen.
        missing: since when the batch system has not shown it, which may be a passing error; None: it shows it.
    """

    name: str
    site: str
    system: str
    nodes: int
    minutes: int
    server: str
    panda_queue: str
    queue: str | None
    folder: str
    kept: bool
    submitted: float
    job_id: str | None = None
    state: BatchState | None = None
    reason: str = ""
    started: float | None = None
    changed: float = 0.0
    missing: float | None = None

    @property
    def output(self) -> Path:
        """The file with the output of script and pilot."""
        return Path(self.folder) / OUTPUT_FILE

    @property
    def is_over(self) -> bool:
        """True if the allocation has no nodes and will get none."""
        return self.state is not None and self.state.is_over

    def now(self, state: BatchState, reason: str, at: float) -> Allocation:
        """Returns the allocation with the state that the batch system shows now."""
        started = at if self.started is None and state is BatchState.RUNNING else self.started
        changed = at if state is not self.state else self.changed
        return replace(self, state=state, reason=reason, started=started, changed=changed)

    def document(self) -> dict[str, Any]:
        """Returns the allocation as a JSON object."""
        return asdict(self)

    @classmethod
    def read(cls, document: dict[str, Any]) -> Allocation:
        """Reads an allocation from a JSON object; leaves out unknown keys, which a later version may have added.

        Raises:
            TypeError: a key is missing.
            ValueError: the state is unknown.
        """
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        state = values.get("state")
        return cls(**{**values, "state": BatchState(state) if state is not None else None})


#: Old versions of PBS take job names of up to 15 characters (qsub(1B), -N).
LONGEST_NAME = 15

#: The variables that activate a virtual environment, a conda environment or modules.
_ACTIVE = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUSERBASE"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_WORD = re.compile(r"[A-Za-z0-9_.-]+")
#: Some batch systems give other characters a meaning in their options: %j, {{id}}, blanks.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@,=-]*")


@dataclass(frozen=True)
class AllocationSpec:
    """An allocation to submit.

    Attributes:
        site: the profile of the machine.
        nodes: number of nodes.
        minutes: the walltime.
        name: the unique name of the job, used to find it again.
        folder: the working and output folder of the script; login and compute nodes must both see it.
        command: the words of the command that runs once, on the first node.
        queue: the queue, partition or QOS; None: the profile's.
        account: the project to charge, without the profile's suffix; None: the profile's.
        proxy: URL of the web proxy that compute nodes use; None: the profile's.
        environment: the variables of the software environment that is active at submission.
        node_cores: cores of each node; None: the profile's.
        node_gpus: GPUs of each node; None: the profile's.
    """

    site: SiteProfile
    nodes: int
    minutes: int
    name: str
    folder: Path
    command: tuple[str, ...]
    queue: str | None = None
    account: str | None = None
    proxy: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    node_cores: int | None = None
    node_gpus: int | None = None

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise InputError(f"--nodes {self.nodes}: at least one")
        if self.minutes < 1:
            raise InputError(f"--walltime of {self.minutes} minutes: at least one")
        if not _NAME.fullmatch(self.name) or len(self.name) > LONGEST_NAME:
            raise InputError(f"{self.name!r} cannot name a batch job: letters, digits, - and _, {LONGEST_NAME} at most")
        for option, value in (("--queue", self.queue), ("--account", self.account)):
            if value is not None and not _WORD.fullmatch(value):
                raise InputError(f"{option} {value!r}: letters, digits, '.', '-' and '_'")
        if not _PLAIN_PATH.fullmatch(str(self.folder)):
            raise InputError(
                f"the folder {str(self.folder)!r} has characters that mean something to batch systems: choose another "
                "with --folder, of letters, digits and _./+@,=-"
            )
        if self.proxy is not None and not re.fullmatch(r"https?://[^\s/@]+/?", self.proxy):
            raise InputError(f"--proxy {self.proxy!r}: give a URL without a login, such as http://login1:3128")

    @property
    def queue_name(self) -> str | None:
        """The queue of the job; None: the batch system's default."""
        return self.queue or self.site.batch.queue

    @property
    def account_name(self) -> str | None:
        """The account as the batch system knows it; None: the batch system's default."""
        name, suffix = self.account or self.site.batch.account, self.site.batch.account_suffix
        return name if name is None or name.endswith(suffix) else name + suffix

    @property
    def cores(self) -> int:
        """The cores of each node.

        Raises:
            InputError: they are not known, and the batch system would give one core.
        """
        if cores := self.node_cores or self.site.node.cores:
            return cores
        raise InputError(
            f"site {self.site.name}: the batch system gives the cores and GPUs of a node that the script asks for, and "
            "the profile does not say how many there are: give --node-cores and --node-gpus, or set node.cores and "
            "node.gpus"
        )

    @property
    def gpus(self) -> int:
        """The GPUs of each node; 0: none, or not known."""
        return self.site.node.gpu_count if self.node_gpus is None else self.node_gpus

    @property
    def output(self) -> Path:
        """The output file of the script."""
        return self.folder / OUTPUT_FILE

    @property
    def script_file(self) -> Path:
        """The file with the script as submitted."""
        return self.folder / "job.sh"


def active_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a process that activate a software environment."""
    return {name: environment[name] for name in _ACTIVE if environment.get(name)}


_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


def _body(spec: AllocationSpec) -> Iterator[str]:
    """Yields the lines of the job script after those for the batch system."""
    site = spec.site
    # Some batch systems pass the environment on, others do not. The site's modules and variables come later and win.
    for name, value in spec.environment.items():
        if name == "PATH":
            yield f'[ "$PATH" = {shlex.quote(value)} ] || export PATH={shlex.quote(value)}"${{PATH:+:$PATH}}"'
        else:
            yield f"export {name}={shlex.quote(value)}"
    yield f"cd {shlex.quote(str(spec.folder))} || exit 1"
    if site.modules:
        # A batch shell is not a login shell, and not every batch system passes the function `module` on.
        yield "command -v module >/dev/null || . /etc/profile"
        yield from (f"module load {shlex.quote(module)} || exit 1" for module in site.modules)
    yield from (f"export {name}={shlex.quote(value)}" for name, value in site.environment.items())
    yield from site.setup
    if proxy := spec.proxy or site.network.proxy:
        yield from (f"export {name}={shlex.quote(proxy)}" for name in _PROXY_VARIABLES)
        # Calls to this machine itself must not go through the proxy.
        direct = shlex.quote(",".join(dict.fromkeys(("localhost", "127.0.0.1", *site.network.no_proxy))))
        yield from (f"export {name}={direct}" for name in ("no_proxy", "NO_PROXY"))
    # The pilot replaces the shell: it gets the signals to the batch script, and its end is the end of the job.
    yield f"exec {shlex.join(spec.command)}"


#: A busy controller may take long; callers ask it again then.
_COMMAND_SECONDS = 120.0

#: Makes commands print plain text, independent of the user's settings.
_PLAIN = {"LC_ALL": "C.UTF-8", "FLUX_F58_FORCE_ASCII": "1"}

#: The user's settings that change the format of the output, or the submission.
_IN_THE_WAY = (
    *("SLURM_TIME_FORMAT", "SQUEUE_", "SACCT_", "SBATCH_"),
    *("LSB_BJOBS_FORMAT", "LSB_DISPLAY_", "FLUX_JOBS_FORMAT"),
)


class CommandFailedError(TryAgainError):
    """A command ended with an error.

    Attributes:
        said: the output of the command, on one line.
    """

    def __init__(self, words: Sequence[str], status: int, said: str) -> None:
        """Builds the message.

        Args:
            words: the command.
            status: its exit status.
            said: its output, errors included.
        """
        self.said = " ".join(said.split())[:1000] or "(nothing)"
        super().__init__(f"{words[0]} ended with status {status}: {self.said}")


def run_command_unless_over(words: Sequence[str], phrases: Sequence[str]) -> str:
    """Runs a command that fails if a job it names is over, and passes over that failure.

    The command has then acted on the other jobs that it names.

    Args:
        words: program and arguments.
        phrases: texts of the failure; its output has one of them.

    Returns:
        The standard output of the command; empty if it failed in this way.
    """
    try:
        return run_command(words)
    except CommandFailedError as error:
        if any(phrase in error.said for phrase in phrases):
            return ""
        raise


def run_command(
    words: Sequence[str], *, text: str | None = None, kept_fd: int | None = None, seconds: float = _COMMAND_SECONDS
) -> str:
    """Runs a command and returns its standard output.

    Args:
        words: program and arguments.
        text: its standard input; None: empty.
        kept_fd: a file descriptor that the command inherits.
        seconds: its time limit.

    Raises:
        InputError: this machine does not have the program.
        CommandFailedError: its exit status is not 0.
        TryAgainError: it does not end in time.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_IN_THE_WAY)}
    try:
        done = subprocess.run(
            list(words),
            input=text if text is not None else "",
            env={**environment, **_PLAIN},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            pass_fds=() if kept_fd is None else (kept_fd,),
            check=False,
        )
    except FileNotFoundError as error:
        raise InputError(
            f"there is no {words[0]} in PATH here: it is a command of the batch system; run hpo-pilot on a login node "
            "of the site"
        ) from error
    except OSError as error:
        raise InputError(f"{words[0]} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise TryAgainError(f"{words[0]} has not answered for {seconds:.0f} s; try again later") from error
    if done.returncode != 0:
        raise CommandFailedError(words, done.returncode, f"{done.stderr} {done.stdout}")
    return done.stdout


class BatchSystem(ABC):
    """Submits, lists and cancels batch jobs with the batch system's own commands.

    Every call raises InputError if a command is missing, and TryAgainError if a command fails or does not answer. After
    a TryAgainError the action may have happened or not: look it up before repeating it.
    """

    #: The name in site profiles.
    name: ClassVar[str]

    #: The class that reads an allocation from inside.
    allocation: ClassVar[type[BatchAllocation]]

    #: The beginning of the script's lines with options.
    mark: ClassVar[str]

    #: The options that name the queue, unless the profile has `queue_option`, and the account.
    queue_option: ClassVar[str]
    account_option: ClassVar[str]

    #: The separator between an option and its value.
    between: ClassVar[str] = " "

    #: The commands that submit a script and cancel jobs, and what the latter says of jobs that are over.
    submitting: ClassVar[tuple[str, ...]]
    cancelling: ClassVar[tuple[str, ...]]
    over: ClassVar[tuple[str, ...]] = ()

    #: Whether it sends the pilot the signal `batch.warning` of the profile.
    warns: ClassVar[bool] = True

    #: Whether a job has one node only.
    one_node: ClassVar[bool] = False

    def script(self, spec: AllocationSpec) -> str:
        """Returns the job script, exactly as `submit` submits it.

        Raises:
            InputError: this batch system cannot provide the allocation.
        """
        options = (f"{self.mark} {option}" for option in (*self.options(spec), *spec.site.batch.options))
        return "\n".join(["#!/bin/bash", *options, "", *_body(spec), ""])

    @abstractmethod
    def options(self, spec: AllocationSpec) -> list[str]:
        """Returns the options of the script, one per line, without the site profile's options."""

    def queue_and_account(self, spec: AllocationSpec) -> list[str]:
        """Returns the options that name the queue and the account, where there are any."""
        queue = spec.site.batch.queue_option or self.queue_option
        named = ((queue, spec.queue_name), (self.account_option, spec.account_name))
        return [f"{option}{self.between}{name}" for option, name in named if name]

    def submit(self, spec: AllocationSpec, *, lock: int | None = None) -> str:
        """Submits the script in `spec.script_file`.

        Args:
            spec: the allocation.
            lock: a file descriptor that the submitting command inherits. So the lock is held as long as the submission
                may still succeed, even if this process is killed.

        Returns:
            The identifier of the job: the last word that the command prints.
        """
        said = run_command([*self.submitting, str(spec.script_file)], kept_fd=lock).split()
        if not said:
            raise TryAgainError(f"{self.submitting[0]} does not say which job it submitted")
        return said[-1]

    @abstractmethod
    def jobs(self) -> dict[str, BatchJob]:
        """Returns the jobs of this user by identifier: waiting and running jobs, and the latest ended ones."""

    def earlier(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """Returns jobs that `jobs` no longer lists, if the batch system has accounting that the user may read."""
        return {}

    def cancel(self, ids: Collection[str]) -> None:
        """Cancels jobs; jobs that are over stay as they are."""
        run_command_unless_over([*self.cancelling, *ids], self.over)


#: Runs a command of the batch system and returns its output.
RunCommand = Callable[[Sequence[str]], str]

_QUESTION_SECONDS = 60.0  # time limit of a command


@dataclass(frozen=True)
class AllocatedNode:
    """One node by the batch system's name, and its number of CPUs (hardware threads); 0: not known."""

    name: str
    cpus: int = 0


@dataclass(frozen=True)
class Remainder:
    """The remaining time of an allocation, and the nodes that it has lost.

    Attributes:
        lost: nodes that the batch system has taken away since the start.
        seconds: seconds until the end as it is planned now: a preemption brings it forward; infinity: not known.
    """

    lost: tuple[str, ...] = ()
    seconds: float = math.inf


class BatchAllocation(ABC):
    """Reads the nodes and the end of an allocation, from inside a job of the batch system."""

    #: The variable that jobs of the batch system have.
    variable: str

    def __init__(self, environment: Mapping[str, str], ask: RunCommand) -> None:
        self.environment, self.ask = environment, ask

    @property
    def job(self) -> str:
        """The identifier of the job."""
        return self.environment[self.variable]

    def number(self, variable: str) -> int:
        """Returns the value of a variable; 0: it is not set, or is not a number."""
        said = self.environment.get(variable, "")
        return int(said) if said.isdecimal() else 0

    def hosts(self, variable: str) -> Counter[str]:
        """Returns the names in the file that a variable names, with their numbers of lines.

        Raises:
            InputError: the file cannot be read.
        """
        file = self.environment.get(variable, "")
        try:
            return Counter(Path(file).read_text().split())
        except OSError as error:
            raise InputError(f"{variable} {file}: {error.strerror or error}") from error

    @abstractmethod
    def nodes(self) -> list[AllocatedNode]:
        """Returns the nodes for payloads, in the batch system's order.

        Raises:
            InputError: the nodes are not known.
        """

    @abstractmethod
    def seconds_left(self, now: float) -> float:
        """Returns the seconds until the end of the job.

        Args:
            now: seconds since the epoch.

        Raises:
            InputError: the end is not known.
        """

    def remainder(self, now: float) -> Remainder:
        """Returns the remaining time and the lost nodes; by default, the batch system is not asked.

        Args:
            now: seconds since the epoch.

        Raises:
            InputError: the batch system does not tell.
        """
        return Remainder()

    def gpus_per_node(self) -> int:
        """Returns the GPUs of each node, from the environment; 0: not known."""
        return 0

    def memory_mb(self) -> int:
        """Returns the memory of each node in MB, from the environment; 0: not known."""
        return 0


def ask_batch_system(words: Sequence[str]) -> str:
    """Runs a command inside an allocation and returns its output.

    Raises:
        InputError: the command fails or does not answer.
    """
    try:
        return run_command(words, seconds=_QUESTION_SECONDS).strip()
    except TryAgainError as error:
        raise InputError(str(error)) from error


def walltime_seconds(text: str) -> float:
    """Returns the seconds of [days-]hours:minutes[:seconds], or of hours:minutes as LSF writes it.

    Raises:
        ValueError: the text is not such a time.
    """
    days, _, clock = text.rpartition("-")
    parts = [float(part) for part in clock.split(":")]
    if not 2 <= len(parts) <= 3:
        raise ValueError(f"{text!r} is not a time such as 1:30:00")
    hours, minutes, seconds = (*parts, 0.0)[:3]
    return 86400 * float(days or 0) + 3600 * hours + 60 * minutes + seconds
