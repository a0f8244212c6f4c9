"""The files that a job promised."""

import glob
import os
import tarfile
from typing import Dict, List, Mapping, Tuple


def find_outputs(folder: str, outputs: Mapping[str, str]) -> Tuple[Dict[str, str], List[str]]:
    """Looks for the outputs where the command ran; what a pattern finds is packed into one archive, as runGen does.

    Args:
        folder: where the command ran.
        outputs: file or pattern, below `folder` -> name in the storage.

    Returns:
        (name in the storage -> path, files and patterns of which nothing is there).

    Raises:
        OSError: an archive cannot be written.
    """
    found, missing = {}, []
    for file, name in outputs.items():
        path = os.path.join(folder, file)
        if "*" in file and not os.path.exists(path):
            path = _pack(folder, file, name)
        if path and os.path.isfile(path) and _is_inside(path, folder):
            found[name] = path
        else:
            missing.append(file)
    return found, missing


def write_empty(path: str) -> None:
    """An archive with nothing in it, for a pilot that insists on a file which a failed trial does not have."""
    with tarfile.open(path, "w:gz"):
        pass


def _pack(folder: str, pattern: str, name: str) -> str:
    files = [path for path in sorted(glob.glob(os.path.join(folder, pattern))) if _is_inside(path, folder)]
    if not files:
        return ""
    path = os.path.join(folder, ".hpo_pilot_" + name)
    with tarfile.open(path, "w:gz", compresslevel=3) as archive:
        for file in files:
            archive.add(file, os.path.relpath(file, folder))
    return path


def _is_inside(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)
