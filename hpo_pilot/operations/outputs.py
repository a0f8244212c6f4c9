"""Unpacks the outputs of trials on the user's machine."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from hpo_pilot.errors import GiveUpError, InputError

#: Errors that a damaged archive raises, or one with links to itself.
_BROKEN = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, KeyError, RecursionError, ValueError)


def unpack_outputs(archives: Mapping[int, Path], destination: Path, trial: int, *, folds: int) -> list[Path]:
    """Unpacks the outputs of a trial into ``destination/trial<N>/[fold<K>/]``.

    Args:
        archives: archive of each fold.
        destination: folder; created if missing.
        trial: number of the trial.
        folds: number of folds of each trial.

    Returns:
        The unpacked files, in order.

    Raises:
        InputError: the folder cannot be written.
        GiveUpError: an archive is damaged.
    """
    files: list[Path] = []
    for fold, archive in sorted(archives.items()):
        folder = destination / f"trial{trial}"
        files += _unpack_archive(archive, folder / f"fold{fold}" if folds > 1 else folder)
    return files


def _unpack_archive(archive: Path, folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as packed:
            names = sorted(member.name for member in packed.getmembers() if member.isfile())
            # A job made the archive: no member may be written outside the folder.
            packed.extractall(folder, filter="data")
    except _BROKEN as error:
        raise GiveUpError(f"the outputs in {archive.name} cannot be unpacked: {error}") from error
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another --output") from error
    return [folder / name for name in names]
