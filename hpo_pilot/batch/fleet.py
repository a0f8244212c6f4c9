"""The allocations of a work folder: submitted once, looked up, cancelled.

A submission is written down before it happens, under a name that no other has; whatever submits holds the book's lock,
even beyond the death of this process. So who finds a submission without a job id, and has the lock, knows that nobody
submits it any more, and finds by its name whether there is such a job.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpo_pilot.batch import make_batch_system
from hpo_pilot.batch.admission import check_limits, check_shape
from hpo_pilot.batch.allocation import Allocation
from hpo_pilot.batch.allocation_spec import AllocationSpec
from hpo_pilot.batch.batch_job import BatchJob, BatchState
from hpo_pilot.batch.batch_system import BatchSystem
from hpo_pilot.batch.book import Book, OpenBook
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.launchers.batch_commands import CommandFailedError

#: The profile's file in the folder of an allocation, for its pilot.
SITE_FILE = "site.json"

_NEVER_SUBMITTED = "it never came to the batch system: whatever submitted it was ended"
_FORGOTTEN = "the batch system does not know it any more"
_NOT_SHOWN = "the batch system does not show it now"

#: Seconds for which a job that is not shown may be there all the same: a controller that has just started knows nothing
#: for a moment, and LSF answers from a copy of its books (lsf.conf, MBD_REFRESH_TIME).
_DOUBT = 60.0
#: Seconds after the walltime's end when a job is over for sure.
_LATE = 600.0


def new_name() -> str:
    """A name for an allocation that no other has."""
    return f"hpo-{secrets.token_hex(5)}"


class Fleet:
    """The allocations of one work folder."""

    def __init__(
        self,
        book: Book,
        *,
        systems: Callable[[str], BatchSystem] = make_batch_system,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Knows nothing yet.

        Args:
            book: where they are written down.
            systems: batch systems by their names.
            clock: seconds since the epoch.
        """
        self._book = book
        self._systems = systems
        self._clock = clock

    def submit(self, spec: AllocationSpec, *, server: str, panda_queue: str, kept: bool = False) -> Allocation:
        """Submits one.

        Args:
            spec: what is asked for, under a name of `new_name`.
            server: the PanDA server that its pilot asks.
            panda_queue: the PanDA queue that its pilot serves.
            kept: whether `pilots keep` does it.

        Raises:
            InputError: the site's rules or the batch system refuse it.
            TryAgainError: not now; or whether it was submitted is not known yet, and `refresh` finds out.
        """
        check_shape(spec)
        system = self._systems(spec.site.batch.system)
        script = system.script(spec)
        with self._book.open() as book:
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
            book.put(intent)
            job_id = self._submit(system, spec, intent, book)
            done = replace(intent, job_id=job_id).now(BatchState.WAITING, "", self._clock())
            book.put(done)
            return done

    def _submit(self, system: BatchSystem, spec: AllocationSpec, intent: Allocation, book: OpenBook) -> str:
        try:
            return system.submit(spec, lock=book.lock)
        except CommandFailedError as error:
            # A command that failed for want of an answer may have done its work all the same.
            found = next((job for job in system.jobs().values() if job.name == spec.name), None)
            if found is not None:
                return found.id
            book.put(intent.now(BatchState.FAILED, error.said, self._clock()))
            raise InputError(f"{spec.site.name} refuses the job: {error}; its script is {spec.script_file}") from error
        except InputError as error:
            book.put(intent.now(BatchState.FAILED, str(error), self._clock()))
            raise

    def refresh(self) -> list[Allocation]:
        """All allocations, as the batch systems show them now.

        Raises:
            TryAgainError: a batch system does not answer.
            InputError: its commands are missing here.
        """
        if all(one.is_over for one in self._book.read()):
            return self._book.read()
        with self._book.open() as book:
            self._look(book)
            return book.allocations

    def _look(self, book: OpenBook) -> None:
        going = [one for one in book.allocations if not one.is_over]
        for name in sorted({one.system for one in going}):
            system = self._systems(name)
            jobs = system.jobs()
            ours = [one for one in going if one.system == name]
            names = {job.name: job for job in jobs.values()}
            lost = [one.job_id for one in ours if one.job_id is not None and one.job_id not in jobs]
            jobs |= system.earlier(lost) if lost else {}
            book.put(*(self._seen(one, jobs, names) for one in ours))

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
        """Cancels allocations; those that are over stay as they are.

        Args:
            names: names or job ids.

        Returns:
            Those that were not over, as they are now.

        Raises:
            InputError: there is no such allocation.
            TryAgainError: a batch system does not answer.
        """
        with self._book.open() as book:
            self._look(book)
            chosen = [_find(book, name) for name in dict.fromkeys(names)]
            going = [one for one in chosen if not one.is_over]
            for system in sorted({one.system for one in going}):
                self._systems(system).cancel([one.job_id for one in going if one.system == system and one.job_id])
            with suppress(TryAgainError):  # cancelled it is; how it looks now can be seen later
                self._look(book)
            chosen_names = {one.name for one in going}
            return [one for one in book.allocations if one.name in chosen_names]

    def jobs(self, spec: AllocationSpec) -> list[BatchJob]:
        """All jobs of this user at the batch system that `spec` goes to."""
        return list(self._systems(spec.site.batch.system).jobs().values())


def _find(book: OpenBook, name: str) -> Allocation:
    """The allocation of that name or job id; of several of one id, as batch systems begin anew, the latest."""
    found = [one for one in book.allocations if name in (one.name, one.job_id)]
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
