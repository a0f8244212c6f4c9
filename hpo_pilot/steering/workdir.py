"""The work folder: the paths of the store, of logs and reports, and of the embedded server's files."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import stat
from pathlib import Path

from hpo_pilot.advice import Place
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import make_private
from hpo_pilot.server import DATABASE_VARIABLE

STORE_VARIABLE = "HPO_PILOT_STORE"
DEFAULT = Path("hpo-pilot")

_SEEN, _CHANGED, _ENTERED = (stat.S_IRGRP | stat.S_IROTH, stat.S_IWGRP | stat.S_IWOTH, stat.S_IXGRP | stat.S_IXOTH)

#: Folders that are private even if the root is not. Other accounts may be given access to `panda-files` and `tls`.
_GUARDED = ("checkpoints", "environments", "logs", "pilots", "reports", "sandboxes", "tokens", "uploads")


class WorkDir:
    """Paths below one work folder."""

    def __init__(self, root: Path) -> None:
        """Makes no folder; see `make`."""
        self.root = root
        self.store_file = root / "hpo-pilot.db"  # the default store
        self.panda_database = root / "panda.db"  # the embedded PanDA server's database
        self.panda_files = root / "panda-files"  # the embedded PanDA server's file cache and storage
        self.sandboxes = root / "sandboxes"  # packed payloads, by content
        self.pilots = root / "pilots"  # work folders of local pilots
        self.checkpoints = root / "checkpoints"  # checkpoints of local jobs, kept between attempts
        self.tokens = root / "tokens"  # tokens of the embedded server, mode 0600
        # Environments of the submitting processes, for local jobs, by the uid of the search.
        self.environments = root / "environments"
        # The file with the embedded server's address for BigPanDA scripts; secret like a token.
        self.monitor_address = self.tokens / "bigmon.url"
        # Certificate authorities that our own processes trust, if they are not the system's.
        self.tls = root / "tls"
        # Payloads uploaded through the REST API, until their search is registered.
        self.uploads = root / "uploads"
        # Metrics of the steering process for Prometheus, read by the API.
        self.steering_metrics = root / "steering.prom"
        self.api_address = root / "service.url"  # the file with the address of the REST API while it runs
        # The file with the address of the pages of `hpo-pilot monitor` while it runs.
        self.pages_address = root / "monitor.url"

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

    @property
    def server_database(self) -> str:
        """The embedded server's database: the URL in HPO_PILOT_SERVER_DATABASE, else SQLite in the work folder."""
        return os.environ.get(DATABASE_VARIABLE) or str(self.panda_database)

    def place(self, store: str | None = None) -> Place:
        """Returns the options for this work folder and its store in commands from any folder of this machine.

        Args:
            store: SQLAlchemy URL of another store.
        """
        url = self.store_url(store)
        return Place(workdir=self.root, store=None if url == f"sqlite:///{self.store_file}" else url)

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
