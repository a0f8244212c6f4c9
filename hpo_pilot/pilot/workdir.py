"""A pilot's folders, and what an earlier pilot of the same worker left in them."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.private_folder import PRIVATE, close_to_others, make_private
from hpo_pilot.whole_file import write_whole

log = logging.getLogger(__name__)

#: How long a pilot waits for the one before it to end its jobs, in seconds.
_TAKE_OVER_SECONDS = 30.0

_SAMPLE = 4096  # bytes that are written to see whether that can be done

_KEY_BYTES = 32


def pilot_key(workdir: Path, worker_name: str) -> str:
    """The secret by which a server knows the pilots of this work folder and worker again; makes it if need be.

    It outlives the pilot: the next one of its name sends the reports that this one could not.

    Raises:
        InputError: it cannot be read or written.
    """
    file = workdir / "jobs" / f"{worker_name}.key"
    try:
        if not file.exists():
            write_whole(file, secrets.token_urlsafe(_KEY_BYTES), mode=0o600)
        key = file.read_text().strip()
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be used: {error}; remove it, and another is made") from error
    if not re.fullmatch(r"[A-Za-z0-9_-]{32,}", key):
        raise InputError(f"{file} is damaged: remove it, and another is made")
    return key


class WorkDir:
    """The work folder, which no other account looks into.

    ::

        cache/            unpacked sandboxes, for all pilots here
        inputs/           fetched inputs, for all pilots here
        jobs/WORKER/      one folder per running job
        jobs/WORKER.lock  held while a pilot of that name lives
        jobs/WORKER.key   what its server knows it by
        unsent/WORKER/    reports that the server has not got yet
        staging/WORKER/   what nodes copy: archives, and how they are told
        checkpoints/      of trials, kept between attempts
    """

    def __init__(self, settings: PilotSettings) -> None:
        """Makes the folders and takes the worker's name.

        Raises:
            InputError: the folder cannot be written, or belongs to another account.
            TryAgainError: a pilot of this name lives.
        """
        self.root = settings.workdir
        self.cache, self.inputs = self.root / "cache", self.root / "inputs"
        self._jobs = self.root / "jobs" / settings.worker_name
        self._unsent = self.root / "unsent" / settings.worker_name
        self.staging = self.root / "staging" / settings.worker_name
        try:
            make_private(self.root)
            # Their names are ours: where an owner lets others into the root, they still see no payload and no result.
            for name in ("cache", "inputs", "jobs", "unsent", "staging", "storage"):
                close_to_others(self.root / name)
            for folder in (self._jobs, self._unsent, settings.checkpoint_root):
                make_private(folder)
            self._lock = self._jobs.with_name(self._jobs.name + ".lock").open("w")
        except OSError as error:
            raise InputError(f"--workdir {self.root} cannot be used: {error}") from error
        # A pilot on a lifeline may follow one whose starter was killed, and which is still ending its jobs.
        give_up = time.monotonic() + (_TAKE_OVER_SECONDS if settings.lifeline_fd is not None else 0.0)
        while not self._locked():
            if time.monotonic() >= give_up:
                raise TryAgainError(
                    f"a pilot {settings.worker_name} runs in {self.root} already; give this one another --worker-id"
                )
            time.sleep(0.1)
        self.key = pilot_key(self.root, settings.worker_name)
        self.stale = [entry for entry in self._jobs.iterdir() if entry.is_dir()]

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def new_job_folder(self, panda_id: int, attempt: int) -> Path:
        """An empty folder for a job."""
        folder = self._jobs / f"{panda_id}.{attempt}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=PRIVATE)
        return folder

    def free_mb(self) -> int:
        """Free disk, in MB."""
        about = os.statvfs(self.root)
        return about.f_bavail * about.f_frsize >> 20

    def trouble(self, least_mb: int) -> str:
        """Why no job could run here; empty: one could. `least_mb`: that must be free."""
        sample = self._jobs / ".sample"
        try:
            if (free := self.free_mb()) < least_mb:
                return f"only {free // 50 * 50} MB or so of disk are free in {self.root}"
            sample.write_bytes(bytes(_SAMPLE))
            sample.unlink()
        except OSError as error:
            return f"{self._jobs} cannot be written: {error.strerror or error}"
        return ""

    def remove_stale(self) -> None:
        """Deletes what an earlier pilot left; nothing of it runs any more."""
        for folder in self.stale:
            shutil.rmtree(folder, ignore_errors=True)
        if self.stale:
            log.info("%d job folders of an earlier pilot removed", len(self.stale))
        self.stale = []

    def keep_report(self, report: dict[str, Any]) -> None:
        """Stores a report that could not be sent, for this pilot or the next of its name."""
        try:
            write_whole(self._report(report), json.dumps(report))
        except OSError as error:
            log.error("a report on job %s is in memory alone: %s", report["job_id"], error)

    def drop_report(self, report: dict[str, Any]) -> None:
        """Forgets a report: it was sent, or nobody wants it."""
        self._report(report).unlink(missing_ok=True)

    def kept_reports(self) -> Iterator[dict[str, Any]]:
        """Reports that an earlier pilot of this name could not send."""
        for path in sorted(self._unsent.glob("*.json")):
            try:
                report = json.loads(path.read_text())
                report["job_id"], report["attempt_nr"], report["job_status"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.error("%s is no report and is left alone: %s", path, error)
                continue
            yield report

    def _report(self, report: dict[str, Any]) -> Path:
        return self._unsent / f"{int(report['job_id'])}.{int(report['attempt_nr'])}.json"
