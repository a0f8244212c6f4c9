"""The pages alone: over a work folder that others may steer meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from hpo_pilot.errors import InputError
from hpo_pilot.service.api_process import ApiProcess
from hpo_pilot.service.reach import Reach
from hpo_pilot.service.workdir import WorkDir

_LOOK_SECONDS = 0.5


def watch(
    workdir: str | Path | None,
    *,
    store: str | None,
    reach: Reach,
    on_ready: Callable[[ApiProcess], None],
) -> None:
    """Serves the pages, and the REST API, until SIGINT or SIGTERM; steers nothing.

    Args:
        workdir: the work folder; default ./hpo-pilot.
        store: another store than its own.
        reach: where the pages listen.
        on_ready: called when they answer.

    Raises:
        InputError: there is no store yet, or it is removed or replaced meanwhile, or `reach` names files that cannot
            be used.
        TryAgainError: they do not start.
    """
    folder = WorkDir.at(workdir)
    url = folder.store_url(store)
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not path.exists():
        # Looking makes none: a name mistyped would look like an empty store.
        raise InputError(
            f"there is no store at {path}: run or submit a search first, or name another --workdir or --store"
        )
    store_file = _StoreFile(path) if url.startswith("sqlite:///") else None
    folder = WorkDir.make(workdir)
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    pages = ApiProcess(folder, store=store, reach=reach, port=reach.port, address=folder.pages_address)
    try:
        pages.start()
        pages.wait()
        on_ready(pages)
        while not ended.wait(_LOOK_SECONDS):
            pages.check()
            if store_file is not None and not store_file.is_there():
                # The pages have the old one open: they would show what it held, for ever.
                raise InputError(f"the store at {path} was removed or replaced: start the monitor again")
    finally:
        pages.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


class _StoreFile:
    """A store's file, which somebody may remove while it is open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = path.stat()

    def is_there(self) -> bool:
        """Whether it is still the same file."""
        try:
            return os.path.samestat(self._path.stat(), self._known)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # its file system does not answer: nothing is known


def address_of_pages(workdir: str | Path | None) -> str:
    """Where the pages of a work folder are, of a service or alone.

    Raises:
        InputError: none run, as far as the work folder knows.
    """
    folder = WorkDir.at(workdir)
    for file in (folder.api_address, folder.pages_address):
        try:
            return file.read_text().strip()
        except OSError:
            continue
    raise InputError(
        f"no pages run on the work folder {folder.root}: `hpo-pilot monitor` or `hpo-pilot serve` starts them; "
        "name another with --workdir, or a service with --service"
    )
