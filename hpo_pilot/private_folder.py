"""Folders that no other account looks into, or puts anything into."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path

from hpo_pilot.errors import InputError

#: The mode of what we make: on a login node everybody else could read payloads, results and errors.
PRIVATE = stat.S_IRWXU

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(folder: Path) -> None:
    """Makes a folder for this account alone; one that is there keeps its mode.

    Raises:
        InputError: it is there and belongs to another account, which could change what is in it.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    owner = _stranger(folder)
    if owner is not None:
        raise InputError(
            f"{folder} belongs to {_name(owner)}, not to {_name(os.geteuid())}: its owner could read and change what "
            "runs there. Choose a folder of your own"
        )
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise InputError(
            f"every account can write into {folder}, and change what runs there: chmod o-w, or choose another folder"
        )


def close_to_others(folder: Path) -> None:
    """The same for a folder with a name of ours: one that is there is closed to others too.

    Raises:
        InputError: as `make_private`.
        OSError: it cannot be made, or closed.
    """
    make_private(folder)
    if folder.stat().st_mode & _OTHERS:
        folder.chmod(PRIVATE)


def _stranger(folder: Path) -> int | None:
    """The account that has the folder, or the link to it, if it is neither this one nor root."""
    owners = {folder.lstat().st_uid, folder.stat().st_uid} - {os.geteuid(), 0}
    if owners:
        # File systems that map accounts show another number than ours for our own files too.
        with tempfile.TemporaryFile(dir=folder) as probe:
            owners -= {os.fstat(probe.fileno()).st_uid}
    return min(owners, default=None)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"account {uid}"
