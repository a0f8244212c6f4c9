"""Starts a command that cannot read or change some files of its account, by Linux's Landlock.

    python3 -I -S landlock.py '{"hidden": [...], "shown": [...], "readable": [...]}' COMMAND...

A process gives up rights for itself and all processes that it starts; it needs no root. The rules allow and never
forbid, so all that exists beside the hidden paths is allowed. That leaves a gap: in the folders above a hidden path,
nothing new can be made, opened or removed, only in what they had before. Names, sizes and times stay visible.

The command cannot trace other processes of its account or read their environment and memory, nor send them signals
(Linux 6.12). It cannot gain rights by set-user-ID programs, or mount, so it starts no containers.

Standard library only, Python 3.6 syntax. https://docs.kernel.org/userspace-api/landlock.html
"""

import json
import os
import struct
import sys
from pathlib import PurePath

try:
    import ctypes
except ImportError:  # a Python that was built without it
    ctypes = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Sequence

LEAST = 2  # version of Landlock: the first one forbids to move files between folders

# linux/landlock.h. Executing programs and listing folders is always allowed.
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, on all processors but Alpha
_WRITE, _READ, _TRUNCATE = 1 << 1, 1 << 2, 1 << 14
_FOLDER = 0x3FF0  # to make, remove and move each kind of file
_ONLY_SIGNALS = 1 << 1
_HAS_TRUNCATE, _HAS_SCOPES = 3, 6  # versions
_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h

#: Entries of one folder; for each there is a rule.
_MOST = 10_000


def version() -> int:
    """Return the kernel's version of Landlock; 0: it has none, or it is switched off."""
    try:
        return max(0, int(ctypes.CDLL(None).syscall(_CREATE, None, 0, 1)))
    except (OSError, AttributeError):
        return 0


def trouble(hidden: "Sequence[str]") -> str:
    """Return why files cannot be hidden from a command; empty: they can."""
    if version() < LEAST:
        return "this kernel has no Landlock, or an old one (Linux 5.19 is needed)"
    for folder in above(hidden):
        try:
            if len(os.listdir(folder)) > _MOST:
                return "%s has more than %d entries" % (folder, _MOST)
        except OSError as error:
            return "%s cannot be listed: %s" % (folder, error.strerror)
    return ""


def above(hidden: "Sequence[str]") -> "List[str]":
    """Return the folders above hidden paths, where nothing new can be made."""
    found = {str(folder) for path in _everywhere(hidden) for folder in PurePath(path).parents}
    return sorted(filter(os.path.isdir, found))


def _everywhere(paths: "Sequence[str]") -> "List[str]":
    """Return real paths, also those at which the same files are mounted a second time."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:  # proc(5); names may be of any bytes
        lines = [[os.fsdecode(_unescaped(word)) for word in line.split()[2:5]] for line in file]
    found = []
    for path in map(os.path.realpath, paths):
        found.append(path)
        device, root, point = max(
            (line for line in lines if _is_below(path, line[2])), key=lambda line: len(line[2]), default=("", "/", "/")
        )
        inside = os.path.normpath(os.path.join(root, os.path.relpath(path, point)))
        for other, top, place in lines:
            if other == device and (top, place) != (root, point):
                if _is_below(inside, top):
                    found.append(os.path.normpath(os.path.join(place, os.path.relpath(inside, top))))
                elif _is_below(top, inside):
                    found.append(place)
    return found


def _unescaped(word: str) -> bytes:
    return os.fsencode(word).decode("unicode_escape").encode("latin-1")


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _allowed(path: str, hidden: "List[str]") -> "Iterator[str]":
    """Yield the topmost paths at and below `path` that hold nothing hidden."""
    if not any(_is_below(each, path) for each in hidden):
        yield path
    elif path not in hidden:
        for name in os.listdir(path):
            entry = os.path.join(path, name)
            if not os.path.islink(entry):  # its target has a rule of its own
                yield from _allowed(entry, hidden)


def restrict(hidden: "Sequence[str]", shown: "Sequence[str]", readable: "Sequence[str]") -> None:
    """Give up the rights of this process to hidden files.

    Args:
        hidden: files and folders.
        shown: folders below them that it may still use.
        readable: files and folders below them that it may still read.

    Raises:
        OSError: the kernel refuses.
    """
    kernel, found = ctypes.CDLL(None, use_errno=True), version()
    files = _READ | _WRITE | (_TRUNCATE if found >= _HAS_TRUNCATE else 0)
    scopes = struct.pack("QQ", 0, _ONLY_SIGNALS) if found >= _HAS_SCOPES else b""
    ruleset = struct.pack("Q", files | _FOLDER) + scopes
    rules = _checked(kernel.syscall(_CREATE, ruleset, ctypes.c_size_t(len(ruleset)), 0))
    places = [(path, files) for path in _allowed("/", _everywhere(hidden))] + [(path, files) for path in shown]
    for path, rights in places + [(path, _READ) for path in readable]:
        try:
            place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # it was removed meanwhile
        folder = _FOLDER if rights == files and os.path.isdir(path) else 0
        _checked(kernel.syscall(_ADD, rules, 1, struct.pack("=Qi", rights | folder, place), 0))
        os.close(place)
    _checked(kernel.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(kernel.syscall(_RESTRICT, rules, 0))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "Landlock: " + os.strerror(ctypes.get_errno()))
    return result


def main(words: "List[str]") -> None:
    """Restrict this process and become the command."""
    given = json.loads(words[0])
    restrict(**given)
    os.execvp(words[1], words[1:])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
