"""The interface to batch systems: allocation requests, job scripts, batch jobs, and the calls of their commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from abc import ABC, abstractmethod
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
    """The minutes of a walltime such as 2:00 (two hours) or 1-12:00 (a day and a half).

    Raises:
        InputError: it is none, or is zero.
    """
    match = _WALLTIME.fullmatch(text.strip())
    parts = {name: int(value or 0) for name, value in match.groupdict().items()} if match else {}
    minutes = parts.get("days", 0) * 1440 + parts.get("hours", 0) * 60 + parts.get("minutes", 0)
    if not minutes:
        raise InputError(f"--walltime {text!r}: give hours and minutes, such as 2:00, or days too, such as 1-12:00")
    return minutes


def walltime_text(minutes: int) -> str:
    """E.g. 2:00, or 36:00; for people, and as LSF has it."""
    return f"{minutes // 60}:{minutes % 60:02d}"


class BatchState(StrEnum):
    """What a batch job does, in the words of none of the batch systems."""

    WAITING = "waiting"  #: could start as soon as there are nodes
    HELD = "held"  #: cannot start yet: held, after its time, or beyond a limit of jobs that may be eligible
    RUNNING = "running"  #: has its nodes
    ENDED = "ended"  #: its script ended with status 0, or how it ended is not known any more
    TIMED_OUT = "timed out"  #: the walltime was over
    CANCELLED = "cancelled"  #: on request
    FAILED = "failed"  #: its script ended otherwise, or a node did

    @property
    def is_over(self) -> bool:
        """True where it has its nodes no more and never will."""
        return self in _OVER

    @property
    def is_pending(self) -> bool:
        """True where it waits for its nodes."""
        return self in (BatchState.WAITING, BatchState.HELD)


_OVER = frozenset({BatchState.ENDED, BatchState.TIMED_OUT, BatchState.CANCELLED, BatchState.FAILED})


@dataclass(frozen=True)
class BatchJob:
    """One job of this user, whoever submitted it.

    Attributes:
        id: the batch system's.
        name: as it was submitted.
        state: what it does.
        queue: the queues, partitions or QOS that it counts in; some batch systems have two sorts at once.
        reason: why, in the batch system's words; empty: it says nothing.
    """

    id: str
    name: str
    state: BatchState
    queue: tuple[str, ...] = ()
    reason: str = ""


#: In an allocation's folder.
OUTPUT_FILE = "output.log"


@dataclass(frozen=True)
class Allocation:
    """One of ours; times are in seconds since the epoch.

    Attributes:
        name: of the batch job; unique.
        site: the profile's name.
        system: the batch system's name.
        nodes: how many.
        minutes: the walltime.
        server: the PanDA server that its pilot asks.
        panda_queue: the PanDA queue that its pilot serves.
        queue: the batch queue; None: the batch system's own.
        folder: where script and output are.
        kept: whether `pilots keep` submitted it.
        submitted: when.
        job_id: the batch system's; None: it is being submitted.
        state: what it does; None: it is being submitted.
        reason: why, in the batch system's words.
        started: when it was first seen running; None: never yet.
        changed: when `state` was first seen.
        missing: since when the batch system does not show it, which may be a mistake for a moment; None: it does.
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
        """What its script and pilot said."""
        return Path(self.folder) / OUTPUT_FILE

    @property
    def is_over(self) -> bool:
        """Whether it has its nodes no more and never will."""
        return self.state is not None and self.state.is_over

    def now(self, state: BatchState, reason: str, at: float) -> Allocation:
        """The same as the batch system shows it now."""
        started = at if self.started is None and state is BatchState.RUNNING else self.started
        changed = at if state is not self.state else self.changed
        return replace(self, state=state, reason=reason, started=started, changed=changed)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def read(cls, document: dict[str, Any]) -> Allocation:
        """From JSON; keys that a later version may have added are left out.

        Raises:
            TypeError: a key is missing.
            ValueError: there is no such state.
        """
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        state = values.get("state")
        return cls(**{**values, "state": BatchState(state) if state is not None else None})


#: PBS takes job names of up to 15 characters where it is old (qsub(1B), -N).
LONGEST_NAME = 15

#: What makes a virtual environment, a conda environment or loaded modules the active ones.
_ACTIVE = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_WORD = re.compile(r"[A-Za-z0-9_.-]+")
#: Other characters mean something in options of one batch system or another: %j, {{id}}, blanks.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@,=-]*")


@dataclass(frozen=True)
class AllocationSpec:
    """One allocation that is to be submitted.

    Attributes:
        site: the profile of the machine.
        nodes: how many.
        minutes: the walltime.
        name: the job's name, by which it is found again; unique.
        folder: what the login node and the compute nodes both see; the script runs there, its output goes there.
        command: the words of what runs on the first node, once.
        queue: the queue, partition or QOS; None: the profile's.
        account: the project that is charged, without the profile's suffix; None: the profile's.
        proxy: URL of the web proxy on the compute nodes' way out; None: the profile's.
        environment: the variables that tell which software environment is active where it is submitted.
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
        """The queue that it goes to; None: the batch system's own."""
        return self.queue or self.site.batch.queue

    @property
    def account_name(self) -> str | None:
        """The account as the batch system has it; None: the batch system's own."""
        name, suffix = self.account or self.site.batch.account, self.site.batch.account_suffix
        return name if name is None or name.endswith(suffix) else name + suffix

    @property
    def output(self) -> Path:
        """Where the script's output goes."""
        return self.folder / OUTPUT_FILE

    @property
    def script_file(self) -> Path:
        """Where the script is kept as it was submitted."""
        return self.folder / "job.sh"


def active_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of a process's variables that tell which software environment is active in it."""
    return {name: environment[name] for name in _ACTIVE if environment.get(name)}


_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


def job_script(spec: AllocationSpec, directives: list[str]) -> str:
    """The whole script.

    Args:
        spec: what it is for.
        directives: its lines for the batch system, as they stand.
    """
    return "\n".join(["#!/bin/bash", *directives, "", *_body(spec), ""])


def _body(spec: AllocationSpec) -> Iterator[str]:
    site = spec.site
    # Some batch systems pass the environment on, others do not. What the site loads and sets comes after it, and counts
    # more.
    for name, value in spec.environment.items():
        if name == "PATH":
            yield f'[ "$PATH" = {shlex.quote(value)} ] || export PATH={shlex.quote(value)}"${{PATH:+:$PATH}}"'
        else:
            yield f"export {name}={shlex.quote(value)}"
    yield f"cd {shlex.quote(str(spec.folder))} || exit 1"
    if site.modules:
        # Batch shells are no login shells, and not everywhere do they get the function from where the job comes.
        yield "command -v module >/dev/null || . /etc/profile"
        yield from (f"module load {shlex.quote(module)} || exit 1" for module in site.modules)
    yield from (f"export {name}={shlex.quote(value)}" for name, value in site.environment.items())
    yield from site.setup
    if proxy := spec.proxy or site.network.proxy:
        yield from (f"export {name}={shlex.quote(proxy)}" for name in _PROXY_VARIABLES)
        # A proxy is no way to this machine itself.
        direct = shlex.quote(",".join(dict.fromkeys(("localhost", "127.0.0.1", *site.network.no_proxy))))
        yield from (f"export {name}={direct}" for name in ("no_proxy", "NO_PROXY"))
    # The pilot takes the shell's place: signals to the batch script are its own, and its end is the job's.
    yield f"exec {shlex.join(spec.command)}"


#: A busy controller may take long; then it is asked again.
_COMMAND_SECONDS = 120.0

#: What makes commands speak plainly, whatever the user's settings are.
_PLAIN = {"LC_ALL": "C.UTF-8", "FLUX_F58_FORCE_ASCII": "1"}

#: What of the user's settings changes the form of what they print, or of what is submitted.
_IN_THE_WAY = ("SQUEUE_", "SACCT_", "SBATCH_", "LSB_BJOBS_FORMAT", "LSB_DISPLAY_", "FLUX_JOBS_FORMAT")


class CommandFailedError(TryAgainError):
    """A command said no.

    Attributes:
        said: what it said, on one line.
    """

    def __init__(self, words: Sequence[str], status: int, said: str) -> None:
        """Makes the message.

        Args:
            words: the command.
            status: what it ended with.
            said: its output, errors included.
        """
        self.said = " ".join(said.split())[:1000] or "(nothing)"
        super().__init__(f"{words[0]} ended with status {status}: {self.said}")


def run_command_unless_over(words: Sequence[str], phrases: Sequence[str]) -> str:
    """As `call`, for a command that fails where jobs it names are over; of several, the others had their due.

    Args:
        words: program and arguments.
        phrases: one of these is in what it says then.

    Returns:
        What it prints; empty where it failed so.
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
    """What a command prints.

    Args:
        words: program and arguments.
        text: its standard input; None: there is none.
        kept_fd: a file descriptor that the command holds too, as long as it runs.
        seconds: that it may take.

    Raises:
        InputError: there is no such program here.
        CommandFailedError: its status is not 0.
        TryAgainError: it does not end.
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
            f"there is no {words[0]} in PATH here: it is a command of the batch system's, which the site's login nodes "
            "have"
        ) from error
    except OSError as error:
        raise InputError(f"{words[0]} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise TryAgainError(f"{words[0]} has not answered for {seconds:.0f} s; try again later") from error
    if done.returncode != 0:
        raise CommandFailedError(words, done.returncode, f"{done.stderr} {done.stdout}")
    return done.stdout


def last_word(words: Sequence[str], said: str) -> str:
    """The identifier with which a submitting command ends what it says.

    Raises:
        TryAgainError: it says nothing, so that it is to be looked up whether it submitted anything.
    """
    if not said.split():
        raise TryAgainError(f"{words[0]} does not say which job it submitted")
    return said.rsplit(maxsplit=1)[-1]


class BatchSystem(ABC):
    """One batch system, as its own commands on this machine reach it.

    Every call raises InputError where those commands are missing, and TryAgainError where they fail or do not answer:
    what they were to do may then have happened or not, and is to be looked up before it is repeated.
    """

    #: Its name in site profiles.
    name: ClassVar[str]

    #: The beginning of the script's lines with options.
    mark: ClassVar[str]

    #: The options that name the queue, unless the profile has `queue_option`, and the account.
    queue_option: ClassVar[str]
    account_option: ClassVar[str]

    #: What stands between an option and its value.
    between: ClassVar[str] = " "

    def script(self, spec: AllocationSpec) -> str:
        """The job script, exactly as `submit` submits it.

        Raises:
            InputError: this batch system cannot give what is asked for.
        """
        options = [*self.options(spec), *spec.site.batch.options]
        return job_script(spec, [f"{self.mark} {option}" for option in options])

    @abstractmethod
    def options(self, spec: AllocationSpec) -> list[str]:
        """Returns the options of the script, one a line, without those of the site profile."""

    def queue_and_account(self, spec: AllocationSpec) -> list[str]:
        """Returns the options that name the queue and the account, where there are any."""
        queue = spec.site.batch.queue_option or self.queue_option
        named = ((queue, spec.queue_name), (self.account_option, spec.account_name))
        return [f"{option}{self.between}{name}" for option, name in named if name]

    @abstractmethod
    def submit(self, spec: AllocationSpec, *, lock: int | None = None) -> str:
        """Submits the script that lies in `spec.script_file`.

        Args:
            spec: what it is for.
            lock: a file descriptor that whatever submits holds too: as long as it might still succeed, the lock
                behind it is held, even if this process is killed.

        Returns:
            The job's id.
        """

    @abstractmethod
    def jobs(self) -> dict[str, BatchJob]:
        """The jobs of this user by their ids: those that wait and run, and of those that are over the latest ones."""

    def earlier(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """What became of jobs that `jobs` tells no more, where the batch system keeps books and lets us look."""
        return {}

    @abstractmethod
    def cancel(self, ids: Collection[str]) -> None:
        """Ends jobs, or has them never start; those that are over stay as they are."""


#: Runs a command of the batch system and gives what it prints.
RunCommand = Callable[[Sequence[str]], str]

_QUESTION_SECONDS = 60.0  # that a command may take


@dataclass(frozen=True)
class AllocatedNode:
    """One node as the batch system names it; 0: it does not say how many CPUs, that is hardware threads, it gave."""

    name: str
    cpus: int = 0


class BatchAllocation(ABC):
    """One batch system, asked from inside a job of it."""

    #: The variable by which a job of it is known.
    variable: str

    def __init__(self, environment: Mapping[str, str], ask: RunCommand) -> None:
        self.environment, self.ask = environment, ask

    @property
    def job(self) -> str:
        """The identifier of the job."""
        return self.environment[self.variable]

    @abstractmethod
    def nodes(self) -> list[AllocatedNode]:
        """The nodes for payloads, in the batch system's order.

        Raises:
            InputError: they are not known.
        """

    @abstractmethod
    def seconds_left(self, now: float) -> float:
        """Until the end of the job.

        Args:
            now: unix time.

        Raises:
            InputError: it is not known.
        """

    def lost(self) -> list[str]:
        """The nodes that the batch system has taken away since.

        Raises:
            InputError: it does not say.
        """
        return []

    #: Whether it may keep cores of the other nodes, where job steps ran when it took a node away: see `reclaim`.
    keeps_cores = False

    def reclaim(self, nodes: Sequence[str]) -> list[str]:
        """Those of some nodes that are wholly free again, after `lost`.

        Args:
            nodes: that may have cores which the batch system keeps.

        Raises:
            InputError: it does not say.
        """
        return list(nodes)

    def gpus_per_node(self) -> int:
        """As far as the environment says it; 0: it does not."""
        return 0

    def memory_mb(self) -> int:
        """Of each node, in MB, as far as the environment says it; 0: it does not."""
        return 0


def ask_batch_system(words: Sequence[str]) -> str:
    """Runs a command.

    Raises:
        InputError: it does not work.
    """
    try:
        return run_command(words, seconds=_QUESTION_SECONDS).strip()
    except TryAgainError as error:
        raise InputError(str(error)) from error


def walltime_seconds(text: str) -> float:
    """[days-]hours:minutes[:seconds], or hours:minutes as LSF writes it, in seconds.

    Raises:
        ValueError: it is no such thing.
    """
    days, _, clock = text.rpartition("-")
    parts = [float(part) for part in clock.split(":")]
    if not 2 <= len(parts) <= 3:
        raise ValueError(f"{text!r} is no time such as 1:30:00")
    hours, minutes, seconds = (*parts, 0.0)[:3]
    return 86400 * float(days or 0) + 3600 * hours + 60 * minutes + seconds
