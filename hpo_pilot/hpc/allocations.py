"""The allocations of a work folder: checks them against the site's rules, submits, lists and cancels them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import try_lock, write_whole
from hpo_pilot.hpc.batch_system import (
    Allocation,
    AllocationSpec,
    BatchJob,
    BatchState,
    BatchSystem,
    CommandFailedError,
    walltime_text,
)
from hpo_pilot.hpc.batch_systems import make_batch_system

if TYPE_CHECKING:
    from hpo_pilot.hpc.keeper import PilotAccess

# This calls the commands of batch systems directly. PSI/J (psij-python 0.9.11) was tried first. Its Slurm adapter asks
# for all jobs of the user, and takes every job for failed if any of them ended in a way that it does not know (out of
# memory, a signal). It writes its own scripts: without setup lines, with options `--name=value` only, and with a shell
# in place of the pilot, which does not pass on the warning before the end. It cannot find a job by its name, which is
# needed to look up a submission after a crash. And it requires psutil 7.0 or older.


def check_shape(spec: AllocationSpec) -> None:
    """Checks an allocation against the rules of the site, as far as the profile has them.

    Raises:
        InputError: a rule forbids it; the message has the rule and the allowed values.
    """
    site, batch = spec.site, spec.site.batch
    if site.node.count is not None and spec.nodes > site.node.count:
        raise InputError(f"--nodes {spec.nodes}: {site.name} has {site.node.count}")
    if batch.has_one_node and spec.nodes > 1:
        raise InputError(
            f"--nodes {spec.nodes}: a job of {batch.system} has one node: give --nodes 1; "
            f"`hpo-pilot pilots keep --max-nodes {spec.nodes}` keeps {spec.nodes} pilots"
        )
    if batch.account_required and spec.account_name is None:
        raise InputError(
            f"{site.name} requires a project to charge: give --account, or set batch.account in the profile"
        )
    warning = batch.warning
    if warning is not None and make_batch_system(batch.system).warns and 60 * spec.minutes <= warning.seconds:
        raise InputError(
            f"--walltime {walltime_text(spec.minutes)}: {site.name} warns pilots {warning.seconds} s before the end, "
            "and then no trial starts: give more, or set batch.warning in the profile"
        )
    queue = site.batch.rules(spec.queue_name)
    where = f"{site.name}'s queue {spec.queue_name}"
    if (largest := queue.largest) is not None and spec.nodes > largest:
        raise InputError(f"--nodes {spec.nodes}: jobs in {where} have at most {largest}")
    longest = queue.hours(spec.nodes)
    if longest is None or spec.minutes <= round(longest * 60):
        return
    allowed = f"--walltime {walltime_text(round(longest * 60))} at most"
    enough = queue.smallest(spec.nodes, spec.minutes / 60)
    more = f", or --nodes {enough} or more" if enough is not None else ""
    raise InputError(
        f"--walltime {walltime_text(spec.minutes)}: in {where} jobs of {spec.nodes} nodes last "
        f"{walltime_text(round(longest * 60))} at most; give {allowed}{more}"
    )


def check_limits(spec: AllocationSpec, jobs: Collection[BatchJob]) -> None:
    """Checks that the queue accepts one more job of this user.

    Args:
        spec: the new allocation.
        jobs: the user's jobs, from `BatchSystem.jobs`.

    Raises:
        TryAgainError: the queue accepts none now.
    """
    limits, queued = spec.site.batch.rules(spec.queue_name).limits, count_jobs(spec, jobs)
    if limits.queued is not None and queued.total() >= limits.queued:
        raise TryAgainError(
            f"{spec.site.name} accepts {limits.queued} jobs of a user in {spec.queue_name}, and you have that many: "
            "wait, or cancel some"
        )


def room_for_more(spec: AllocationSpec, jobs: Collection[BatchJob]) -> int | None:
    """Returns the number of further jobs that the queue accepts from this user and does not hold; None: no limit."""
    limits, queued = spec.site.batch.rules(spec.queue_name).limits, count_jobs(spec, jobs)
    all_jobs = queued.total()
    waiting = all_jobs - queued[BatchState.RUNNING]
    there = ((limits.queued, all_jobs), (limits.eligible, waiting), (limits.running, all_jobs))
    return min((max(0, limit - count) for limit, count in there if limit is not None), default=None)


def count_jobs(spec: AllocationSpec, jobs: Collection[BatchJob]) -> Counter[BatchState]:
    """Counts the jobs of this user in the allocation's queue by state, without jobs that are over."""
    in_queue = (job.state for job in jobs if spec.queue_name is None or spec.queue_name in job.queue)
    return Counter(state for state in in_queue if not state.is_over)


#: Allocations that are over and stay in the file.
_KEPT = 500

#: Seconds to wait for the lock: a submission holds it until the batch system answers.
_LOCK_SECONDS = 150.0


class LockedAllocations:
    """The allocations of a work folder, under the lock; `put` writes the file at once."""

    def __init__(self, path: Path, lock: int) -> None:
        """Reads the file.

        Args:
            path: the file; it may be missing.
            lock: the file descriptor of the lock; a child process that inherits it holds the lock too.

        Raises:
            InputError: the file is damaged.
        """
        self._path = path
        self.lock = lock
        self._allocations = {one.name: one for one in _read(path)}

    @property
    def allocations(self) -> list[Allocation]:
        """All allocations, in the order of submission."""
        return list(self._allocations.values())

    def put(self, *changed: Allocation) -> None:
        """Adds or replaces allocations.

        Raises:
            TryAgainError: the file cannot be written, and is unchanged.
        """
        if all(self._allocations.get(one.name) == one for one in changed):
            return
        self._allocations.update({one.name: one for one in changed})
        over = [one.name for one in self._allocations.values() if one.is_over]
        for name in over[: max(0, len(over) - _KEPT)]:
            del self._allocations[name]
        text = json.dumps([one.document() for one in self._allocations.values()], indent=1)
        try:
            write_whole(self._path, text + "\n", 0o600)
        except OSError as error:
            raise TryAgainError(f"cannot write {self._path}: {error.strerror}") from error


class AllocationFile:
    """The file `allocations.json` of a work folder. Safe to use from any process of this machine."""

    def __init__(self, folder: Path) -> None:
        """Sets the file's path in the work folder; the first allocation creates the folder."""
        self._path = folder / "allocations.json"
        self._lock_path = folder / ".allocations.lock"

    def read(self) -> list[Allocation]:
        """Returns all allocations, without the lock.

        Raises:
            InputError: the file is damaged.
        """
        return _read(self._path)

    @contextmanager
    def open(self) -> Iterator[LockedAllocations]:
        """Locks the file for changes; other processes wait meanwhile.

        Raises:
            InputError: the folder cannot be written, or the file is damaged.
            TryAgainError: another process holds the lock for too long.
        """
        lock = _lock_file(self._lock_path)
        try:
            self._wait(lock)
            yield LockedAllocations(self._path, lock)
        finally:
            os.close(lock)

    @contextmanager
    def kept_by_one(self, *what: str) -> Iterator[None]:
        """Keeps a second `pilots keep` with the same purpose from running: both would submit for the same jobs.

        Args:
            what: the purpose: server, queue, site.

        Raises:
            InputError: the folder cannot be written.
            TryAgainError: another process runs with this purpose.
        """
        lock = _lock_file(self._path.with_name(f".keep-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.lock"))
        try:
            if not try_lock(lock):
                raise TryAgainError(f"another `pilots keep` does this already ({', '.join(what)}): end that one")
            yield
        finally:
            os.close(lock)

    def _wait(self, lock: int) -> None:
        end = time.monotonic() + _LOCK_SECONDS
        while not try_lock(lock):
            if time.monotonic() > end:
                raise TryAgainError(
                    f"another command has been submitting or looking for {_LOCK_SECONDS:.0f} s (it holds "
                    f"{self._lock_path}); try again later"
                )
            time.sleep(0.1)


def _lock_file(path: Path) -> int:
    """Opens a lock file, and makes it and its folder if they are missing; returns its descriptor."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; choose --workdir") from error


def _read(path: Path) -> list[Allocation]:
    try:
        documents = json.loads(path.read_text(encoding="utf-8"))
        return [Allocation.read(document) for document in documents]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}): move it away, and check its batch jobs with the commands of the batch "
            "system"
        ) from error


#: The site profile in the folder of an allocation, for its pilot.
SITE_FILE = "site.json"

_NEVER_SUBMITTED = "it did not reach the batch system: the submitting command was ended"
_FORGOTTEN = "the batch system has no record of it any more"
_NOT_SHOWN = "the batch system does not show it now"

#: Seconds for which a job that is not listed may still exist: a controller that has just started lists nothing at
#: first, and LSF answers from a cached list (lsf.conf, MBD_REFRESH_TIME).
_DOUBT = 60.0
#: Seconds after the end of the walltime, after which a job is certainly over.
_LATE = 600.0


def new_name() -> str:
    """Returns a new unique name for an allocation."""
    return f"hpo-{secrets.token_hex(5)}"


class AllocationManager:
    """Submits, looks up and cancels the allocations of one work folder.

    Each submission is written to the file first, under a unique name. The submitting command holds the file's lock,
    even if this process dies. So a process that holds the lock and finds a submission without a job id knows that no
    process is still submitting it, and looks up by its name whether the job exists.
    """

    def __init__(
        self,
        file: AllocationFile,
        *,
        systems: Callable[[str], BatchSystem] = make_batch_system,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Reads and sends nothing yet.

        Args:
            file: the file of the work folder.
            systems: makes a batch system by name.
            clock: seconds since the epoch.
        """
        self._file = file
        self._systems = systems
        self._clock = clock

    def submit(self, spec: AllocationSpec, *, server: str, panda_queue: str, kept: bool = False) -> Allocation:
        """Submits an allocation.

        Args:
            spec: the allocation; its name is from `new_name`.
            server: the PanDA server of its pilot.
            panda_queue: the PanDA queue that its pilot serves.
            kept: whether `pilots keep` submits it.

        Raises:
            InputError: the site's rules or the batch system refuse it.
            TryAgainError: the queue is full, or it is not known whether it was submitted: `refresh` finds out.
        """
        check_shape(spec)
        system = self._systems(spec.site.batch.system)
        script = system.script(spec)
        with self._file.open() as locked:
            check_limits(spec, system.jobs().values())
            _write_files(spec, script)
            intent = Allocation(
                name=spec.name,
                site=spec.site.name,
                system=system.name,
                nodes=spec.nodes,
                minutes=spec.minutes,
                server=server,
                panda_queue=panda_queue,
                queue=spec.queue_name,
                folder=str(spec.folder),
                kept=kept,
                submitted=self._clock(),
            )
            locked.put(intent)
            job_id = self._submit(system, spec, intent, locked)
            done = replace(intent, job_id=job_id).now(BatchState.WAITING, "", self._clock())
            locked.put(done)
            return done

    def _submit(self, system: BatchSystem, spec: AllocationSpec, intent: Allocation, locked: LockedAllocations) -> str:
        try:
            return system.submit(spec, lock=locked.lock)
        except CommandFailedError as error:
            # The command may have submitted the job although it failed for lack of an answer.
            found = next((job for job in system.jobs().values() if job.name == spec.name), None)
            if found is not None:
                return found.id
            locked.put(intent.now(BatchState.FAILED, error.said, self._clock()))
            raise InputError(f"{spec.site.name} refuses the job: {error}; its script is {spec.script_file}") from error
        except InputError as error:
            locked.put(intent.now(BatchState.FAILED, str(error), self._clock()))
            raise

    def refresh(self) -> list[Allocation]:
        """Returns all allocations with the states that the batch systems show now.

        Raises:
            TryAgainError: a batch system does not answer.
            InputError: its commands are missing here.
        """
        if all(one.is_over for one in self._file.read()):
            return self._file.read()
        with self._file.open() as locked:
            self._look(locked)
            return locked.allocations

    def _look(self, locked: LockedAllocations) -> None:
        going = [one for one in locked.allocations if not one.is_over]
        for name in sorted({one.system for one in going}):
            system = self._systems(name)
            jobs = system.jobs()
            ours = [one for one in going if one.system == name]
            names = {job.name: job for job in jobs.values()}
            lost = [one.job_id for one in ours if one.job_id is not None and one.job_id not in jobs]
            jobs |= system.earlier(lost) if lost else {}
            locked.put(*(self._seen(one, jobs, names) for one in ours))

    def _seen(self, one: Allocation, jobs: dict[str, BatchJob], names: dict[str, BatchJob]) -> Allocation:
        job = names.get(one.name) if one.job_id is None else jobs.get(one.job_id)
        now = self._clock()
        if job is not None:
            return replace(one, job_id=job.id, missing=None).now(job.state, job.reason, now)
        if not (one.started is not None and now > one.started + 60.0 * one.minutes + _LATE):
            if one.missing is None:
                return replace(one, missing=now, reason=_NOT_SHOWN)
            if now - one.missing < _DOUBT:
                return one
        if one.job_id is None:
            return one.now(BatchState.FAILED, _NEVER_SUBMITTED, now)
        return one.now(BatchState.ENDED, _FORGOTTEN, now)

    def cancel(self, names: Sequence[str]) -> list[Allocation]:
        """Cancels allocations. Allocations that are over do not change.

        Args:
            names: names or job ids.

        Returns:
            The allocations that were not over, with their states now. One without a job id was not cancelled: the batch
            system has not answered yet whether it was submitted.

        Raises:
            InputError: there is no such allocation.
            TryAgainError: a batch system does not answer.
        """
        with self._file.open() as locked:
            self._look(locked)
            chosen = [_find(locked, name) for name in dict.fromkeys(names)]
            going = [one for one in chosen if not one.is_over]
            for system in sorted({one.system for one in going}):
                if ids := [one.job_id for one in going if one.system == system and one.job_id]:
                    self._systems(system).cancel(ids)
            with suppress(TryAgainError):  # they are cancelled already; their states can be read later
                self._look(locked)
            chosen_names = {one.name for one in going}
            return [one for one in locked.allocations if one.name in chosen_names]

    def jobs(self, spec: AllocationSpec) -> list[BatchJob]:
        """Returns all jobs of this user at the batch system of `spec`."""
        return list(self._systems(spec.site.batch.system).jobs().values())


def _find(locked: LockedAllocations, name: str) -> Allocation:
    """Returns the allocation with that name or job id; the latest, if a batch system has used a job id again."""
    found = [one for one in locked.allocations if name in (one.name, one.job_id)]
    if not found:
        raise InputError(f"there is no allocation {name!r} in this work folder: `hpo-pilot pilots list` shows them")
    return found[-1]


def _write_files(spec: AllocationSpec, script: str) -> None:
    try:
        spec.folder.mkdir(mode=0o700, parents=True)
        _write(spec.script_file, script)
        _write(spec.folder / SITE_FILE, json.dumps(spec.site.model_dump(mode="json"), indent=1) + "\n")
    except OSError as error:
        raise InputError(f"cannot write into {spec.folder}: {error.strerror}; choose another with --folder") from error


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)


@dataclass(frozen=True)
class PilotCommand:
    """The command line of the pilots of a site; `words` adds the arguments of one allocation.

    Attributes:
        access: the PanDA server. Compute nodes must see the files that it names; the script has no token in it.
        root: the folder for all allocations, which login and compute nodes share.
        options: further options of `hpo-pilot pilot`.
        python: the interpreter, which compute nodes must see.
    """

    access: PilotAccess
    root: Path
    options: tuple[str, ...] = ()
    python: str = sys.executable

    def __post_init__(self) -> None:
        for option, path in (("--token-file", self.access.token_file), ("--ca", self.access.ca)):
            if path is not None and not path.is_file():
                raise InputError(f"{option} {path}: there is no such file")

    def folder(self, name: str) -> Path:
        """Returns the folder of the allocation with that name."""
        return self.root.absolute() / "allocations" / name

    def words(self, name: str) -> tuple[str, ...]:
        """Returns the command of an allocation's pilot.

        All allocations share checkpoints and outputs that no server keeps, so a job can go on in another allocation.
        """
        folder, root, access = self.folder(name), self.root.absolute(), self.access
        return (
            *(self.python, "-m", "hpo_pilot.pilot", "--server", access.server, "--queue", access.queue),
            *("--token-file", str(access.token_file.absolute()), "--site", str(folder / SITE_FILE), "--allocation"),
            *("--workdir", str(folder / "work"), "--checkpoints", str(root / "checkpoints")),
            *("--storage", str(root / "storage"), "--harvester-id", name),
            *(("--vo", access.vo) if access.vo else ()),
            *(("--ca", str(access.ca.absolute())) if access.ca is not None else ()),
            *self.options,
        )
