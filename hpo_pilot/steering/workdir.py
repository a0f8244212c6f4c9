"""The work folder: the paths of the store, of logs and reports, and of the embedded server's files."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.advice import Place
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import make_private

STORE_VARIABLE = "HPO_PILOT_STORE"
DEFAULT = Path("hpo-pilot")

_SEEN, _CHANGED, _ENTERED = (stat.S_IRGRP | stat.S_IROTH, stat.S_IWGRP | stat.S_IWOTH, stat.S_IXGRP | stat.S_IXOTH)

#: Folders that are private even if the root is not. Other accounts may be given access to `panda-files` and `tls`.
_GUARDED = ("checkpoints", "environments", "logs", "pilots", "reports", "sandboxes", "tokens", "uploads")


@dataclass(frozen=True)
class WorkDir:
    """Paths below one work folder."""

    root: Path

    @classmethod
    def at(cls, root: str | Path | None = None) -> WorkDir:
        """Returns the work folder at `root` (default ./hpo-pilot), which need not exist."""
        return cls(Path(root or DEFAULT).absolute())

    @classmethod
    def make(cls, root: str | Path | None = None) -> WorkDir:
        """Returns the work folder at `root` (default ./hpo-pilot), created if missing. An existing one keeps its mode.

        Raises:
            InputError: it cannot be created or written, or belongs to another account.
        """
        folder = cls.at(root)
        try:
            make_private(folder.root)
        except OSError as error:
            reason = "that is a file" if folder.root.is_file() else error.strerror
            raise InputError(
                f"cannot make the work folder {folder.root}: {reason}; choose another --workdir"
            ) from error
        if not os.access(folder.root, os.W_OK | os.X_OK):
            raise InputError(f"the work folder {folder.root} cannot be written; choose another with --workdir")
        return folder

    def make_private(self, *folders: Path) -> None:
        """Creates folders in it that other accounts cannot read, even if they can enter the root.

        Raises:
            InputError: a folder belongs to another account.
            OSError: a folder cannot be created.
        """
        for folder in (self.root, *folders):
            make_private(folder)

    def open_to_others(self) -> list[Path]:
        """Returns the paths that other accounts can read or change: the root, or private paths in an accessible root.

        Raises:
            OSError: the work folder does not exist or cannot be read.
        """
        mode = self.root.stat().st_mode
        if mode & (_SEEN | _CHANGED):
            return [self.root]
        if not mode & _ENTERED:
            return []
        guarded = (self.store_file, self.panda_database, *(self.root / name for name in _GUARDED))
        return [path for path in guarded if path.exists() and path.stat().st_mode & (_SEEN | _CHANGED)]

    def check_space(self) -> None:
        """Checks the free disk space.

        Raises:
            TryAgainError: there is too little for the local pilot to take jobs.
        """
        free = shutil.disk_usage(self.root).free / 1e6
        from hpo_pilot.pilot.settings import PilotSettings  # noqa: PLC0415 - looking starts quickly

        if free < PilotSettings.min_free_mb:
            raise TryAgainError(
                f"only {free:.0f} MB of disk are free in {self.root}, too little to run jobs; nothing is lost: free "
                f"some space ({PilotSettings.min_free_mb} MB at least), then give the same command again"
            )

    def store_url(self, given: str | None = None) -> str:
        """Returns the URL of the store: as given, else from HPO_PILOT_STORE, else SQLite in the work folder."""
        return given or os.environ.get(STORE_VARIABLE) or f"sqlite:///{self.store_file}"

    def place(self, store: str | None = None) -> Place:
        """Returns the options for this work folder and its store in commands from any folder of this machine.

        Args:
            store: SQLAlchemy URL of another store.
        """
        url = self.store_url(store)
        return Place(workdir=self.root, store=None if url == f"sqlite:///{self.store_file}" else url)

    @property
    def store_file(self) -> Path:
        """The default store."""
        return self.root / "hpo-pilot.db"

    @property
    def panda_database(self) -> Path:
        """The embedded PanDA server's database."""
        return self.root / "panda.db"

    @property
    def panda_files(self) -> Path:
        """The embedded PanDA server's file cache and storage."""
        return self.root / "panda-files"

    @property
    def sandboxes(self) -> Path:
        """Packed payloads, by content."""
        return self.root / "sandboxes"

    @property
    def pilots(self) -> Path:
        """Work folders of local pilots."""
        return self.root / "pilots"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of local jobs, kept between attempts."""
        return self.root / "checkpoints"

    @property
    def tokens(self) -> Path:
        """Tokens of the embedded server, mode 0600."""
        return self.root / "tokens"

    @property
    def environments(self) -> Path:
        """Environments of the submitting processes, for local jobs, by the uid of the search."""
        return self.root / "environments"

    @property
    def monitor_address(self) -> Path:
        """The file with the embedded server's address for BigPanDA scripts; secret like a token."""
        return self.tokens / "bigmon.url"

    @property
    def tls(self) -> Path:
        """Certificate authorities that our own processes trust, if they are not the system's."""
        return self.root / "tls"

    @property
    def uploads(self) -> Path:
        """Payloads uploaded through the REST API, until their search is registered."""
        return self.root / "uploads"

    @property
    def steering_metrics(self) -> Path:
        """Metrics of the steering process for Prometheus, read by the API."""
        return self.root / "steering.prom"

    @property
    def api_address(self) -> Path:
        """The file with the address of the REST API while it runs."""
        return self.root / "service.url"

    @property
    def pages_address(self) -> Path:
        """The file with the address of the pages of `hpo-pilot monitor` while it runs."""
        return self.root / "monitor.url"

    def log(self, name: str) -> Path:
        """Returns the log file of one of our processes."""
        return self.root / "logs" / f"{name}.log"

    def report(self, search: str) -> Path:
        """Returns the path of the report of a search."""
        return self.root / "reports" / f"{search}.html"


#: The queue of tasks that name none.
DEFAULT_QUEUE = "LOCAL"


def nickname() -> str:
    """Returns the user's name in the form that PanDA accepts in task names."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # Some containers have no such user in the password database.
        name = f"uid{os.getuid()}"
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:30]
