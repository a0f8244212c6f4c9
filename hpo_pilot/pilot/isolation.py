"""Hides the pilot's files, and those of other searches, from jobs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.files import PRIVATE, make_private
from hpo_pilot.pilot.checkpoints import kept_checkpoint
from hpo_pilot.pilot.job import JobFailure, parse_job
from hpo_pilot.pilot.settings import PilotSettings, PilotWorkDir
from hpo_pilot.transformation import landlock
from hpo_pilot.transformation.job import TransformationFailure

log = logging.getLogger(__name__)

#: Folders of the account in which libraries keep caches and settings.
_OF_LIBRARIES = (".cache", ".config")


def temporary_folder(workdir: Path, worker_name: str) -> str:
    """Returns the folder for temporary files of a pilot's jobs, where the usual one cannot be used."""
    name = zlib.crc32(os.fsencode(f"{workdir}/{worker_name}"))
    return f"{os.path.realpath(tempfile.gettempdir())}/hpo-{os.getuid()}-{name:08x}"


def _is_root() -> bool:
    """Returns whether this process is root of the machine, and not only of its user namespace."""
    whole = ["0", "0", "4294967295"]
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == whole


@dataclass(frozen=True)
class Confinement:
    """How the jobs of one search are confined; without values: not at all.

    Attributes:
        name: name of the search's folders.
        words: are put before a command.
        temporary: folder for temporary files; empty: the usual one can be used.
        checkpoints: folder of its checkpoints; None: it has none.
    """

    name: str = ""
    words: tuple[str, ...] = ()
    temporary: str = ""
    checkpoints: Path | None = None

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Returns a command's environment."""
        return {**env, "TMPDIR": self.temporary} if self.temporary else dict(env)


class Isolation:
    """Confines jobs. The jobs of one search of one user share their folders, because they share kept interpreters."""

    def __init__(self, settings: PilotSettings, workdir: PilotWorkDir) -> None:
        """Checks whether this machine can hide files; if not, the log says so."""
        self._settings, self._workdir, self._temporary = settings, workdir, ""
        # Not the work folder itself: a virtual environment may be in it.
        own = [workdir.root / name for name in (*PilotWorkDir.CLOSED, "agents")]
        secrets = [settings.token_file, settings.proxy, settings.environments, settings.checkpoint_root]
        self.hidden = [*map(str, filter(None, (*own, *secrets))), *settings.hide]
        self.trouble = landlock.trouble(self.hidden) if settings.isolation else "--no-isolation"
        if self.trouble:
            log.warning("payloads are not isolated from this pilot's files: %s", self.trouble)
            return
        if _is_root():
            log.warning(
                "this pilot runs as root, and so do its payloads, which then reach disks and kernel modules: "
                "start it as another account (`User=` of systemd, or `setpriv --reuid`)"
            )
        closed = landlock.above(self.hidden)
        usual = os.path.realpath(tempfile.gettempdir())
        if usual in closed:  # unusable: nothing new can be made directly in it. Sockets need a short path.
            self._temporary = temporary_folder(settings.workdir, settings.worker_name)
            self.close()
        home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - there may be none
        if home in closed:  # many libraries make a folder of their own below these at their first use
            for name in _OF_LIBRARIES:
                with contextlib.suppress(OSError):
                    Path(home, name).mkdir(mode=PRIVATE, exist_ok=True)
        writable = [folder for folder in closed if os.access(folder, os.W_OK) and not self.hides(Path(folder))]
        if writable:
            is_unusual = {"/tmp", "/dev/shm"} & set(writable) - {usual}  # noqa: S108 - programs name these themselves
            level = logging.WARNING if is_unusual else logging.INFO
            log.log(level, "payloads are isolated, and can make nothing new directly in %s", ", ".join(writable))

    def of(self, data: Mapping[str, Any]) -> Confinement:
        """Returns how a job is confined, and makes the folders that it may use.

        Args:
            data: the job, as the server describes it.

        Raises:
            OSError: a folder cannot be made.
        """
        if self.trouble:
            return Confinement()
        kept = None
        with contextlib.suppress(HpoPilotError, TransformationFailure):  # an error of the job, which reports it
            kept = kept_checkpoint(parse_job(data), self._settings.checkpoint_root)
        whose = str(kept.folder if kept else data.get("taskID")), str(data.get("prodUserID"))
        name = hashlib.sha256("\0".join(whose).encode()).hexdigest()[:12]
        shown = [self._workdir.jobs / name, self._workdir.interpreters / name]
        if self._temporary:
            try:
                make_private(Path(self._temporary))
            except InputError:  # another account was faster to make it
                self._temporary = tempfile.mkdtemp(prefix="hpo-")
            shown.append(Path(self._temporary, name))
        if kept:
            shown.append(kept.folder)
        for folder in shown:
            folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        package, prefixes = str(Path(__file__).parents[1]), {sys.prefix, sys.base_prefix}
        ours = [f"{prefix}/{part}" for prefix in prefixes for part in ("bin", "lib", "pyvenv.cfg")]
        rules = {"hidden": self.hidden, "shown": [os.path.realpath(path) for path in shown]}
        words = (sys.executable, "-I", "-S", landlock.__file__, json.dumps({**rules, "readable": [package, *ours]}))
        temporary = str(Path(self._temporary, name)) if self._temporary else ""
        return Confinement(name, words, temporary, kept.folder if kept else None)

    def hides(self, path: Path) -> bool:
        """Returns whether a path leads to something that is hidden from jobs, or that belongs to a running one."""
        real = Path(os.path.realpath(path))
        return not self.trouble and any(real.is_relative_to(os.path.realpath(each)) for each in self.hidden)

    def guard(self, folder: Path, confinement: Confinement) -> None:
        """Removes links to hidden files from the folder of an ended job, because the pilot reads and sends files there.

        Raises:
            JobFailure: the folder itself was replaced by a link.
        """
        if not confinement.name:
            return
        own = os.path.realpath(self._workdir.jobs / confinement.name)
        if not Path(os.path.realpath(folder)).is_relative_to(own):
            raise JobFailure(f"the payload replaced its folder {folder.name} by a link")
        for entry in folder.iterdir():
            if entry.is_symlink() and self.hides(entry) and not Path(os.path.realpath(entry)).is_relative_to(own):
                log.warning("%s is removed: it leads to a file that is hidden from payloads", entry)
                entry.unlink()

    def close(self) -> None:
        """Deletes temporary files and the empty folders of searches, when no job runs."""
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is gone
            for folder in self._workdir.jobs.iterdir():
                with contextlib.suppress(OSError):  # not empty: a kept job, or a job of another version
                    folder.rmdir()
