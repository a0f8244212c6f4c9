"""Private folders, atomic writes, and checks of the files that a search names."""

from __future__ import annotations

import ast
import contextlib
import difflib
import fcntl
import importlib.util
import itertools
import math
import os
import pwd
import re
import secrets
import shlex
import shutil
import stat
import symtable
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hpo_pilot.errors import InputError, Problem

if TYPE_CHECKING:
    from hpo_pilot.search import Search


#: The mode of our folders: other users of a login node must not read payloads, results and errors.
PRIVATE = stat.S_IRWXU

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(folder: Path) -> None:
    """Makes a folder for this account only; an existing folder keeps its mode.

    Raises:
        InputError: it belongs to another account, which could change its content.
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
    """Makes a folder for this account only, and also removes the permissions of others from an existing one.

    Raises:
        InputError: see `make_private`.
        OSError: it cannot be made, or its mode cannot be changed.
    """
    make_private(folder)
    if folder.stat().st_mode & _OTHERS:
        folder.chmod(PRIVATE)


def _stranger(folder: Path) -> int | None:
    """Returns the owner of the folder, or of the link to it, if it is neither this account nor root."""
    owners = {folder.lstat().st_uid, folder.stat().st_uid} - {os.geteuid(), 0}
    if owners:
        # File systems that map accounts show another number for our own files too.
        with tempfile.TemporaryFile(dir=folder) as probe:
            owners -= {os.fstat(probe.fileno()).st_uid}
    return min(owners, default=None)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"account {uid}"


def write_whole(path: Path, text: str | bytes | Iterable[str], mode: int = 0o666, *, scratch: bool = False) -> None:
    """Writes a file atomically: it always has the whole old or the whole new content, also after a power cut.

    Args:
        path: the file; its folder exists.
        text: the content, or its parts; text is written as UTF-8.
        mode: its permissions, before the process's umask.
        scratch: it is not needed after a power cut, so it is not forced to the disk; for files of each job.

    Raises:
        OSError: it cannot be written, and is unchanged.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            for piece in (text,) if isinstance(text, str | bytes) else text:
                stream.write(piece.encode() if isinstance(piece, str) else piece)
        if scratch:
            part.replace(path)
        else:
            rename_whole(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def try_lock(descriptor: int) -> bool:
    """Locks an open file or folder until it is closed; returns False if another process has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def rename_whole(part: Path, path: Path) -> None:
    """Gives a completed file its name, and forces both to the disk.

    Otherwise the name may be on the disk before the content, and a power cut leaves an empty file.

    Raises:
        OSError: the content cannot be written, or the file cannot be renamed; `path` is unchanged.
    """
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    part.replace(path)
    with contextlib.suppress(OSError):  # some network file systems have no fsync of folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


#: Most bytes of a search file; one with a thousand start points has a tenth of it.
MAX_SEARCH_FILE_BYTES = 1_000_000


def read_content(path: Path, file: str) -> bytes | Problem:
    """Returns the content of the file, or the problem with it.

    Args:
        path: the file.
        file: its name in messages.
    """
    try:
        if path.is_dir():
            inside = sorted(path.glob("*.y*ml"))
            hint = f"did you mean {inside[0]}?" if inside else ""
            return Problem(file, None, None, "", "is a folder, not a file", hint)
        with path.open("rb") as stream:
            content = stream.read(MAX_SEARCH_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        hint = f"there is {', '.join(sorted(beside)[:5])}" if isinstance(error, FileNotFoundError) and beside else ""
        return Problem(file, None, None, "", f"cannot be read: {reason}", hint)
    if len(content) > MAX_SEARCH_FILE_BYTES:
        message = f"is larger than {MAX_SEARCH_FILE_BYTES // 1_000_000} MB, which no search file is"
        return Problem(file, None, None, "", message, "is it the right file?")
    return content


#: The word of a command that starts Python.
_PYTHON = re.compile(r"(?:^|[\s;&|('\"])((?:[\w.+/-]*/)?python[0-9.]*)(?=$|[\s;&|)'\"])")


def folder_mistake(files: str, base: Path) -> tuple[str, str] | None:
    """Returns the mistake in `payload.files` and the remedy; None: it is a folder.

    Args:
        files: the path in the search file.
        base: the search file's folder.
    """
    try:
        folder = base / Path(files).expanduser()
        if folder.is_dir():
            for path in itertools.islice(folder.iterdir(), 1):
                path.lstat()  # refused if the folder may be listed but not entered
            return None
        what = "is a file, not a folder" if folder.exists() else "there is no such folder"
        return f"{what}: {folder}", _nearest_folder(folder, base) or "it is relative to this file"
    except PermissionError as error:
        return f"cannot be read: {error.filename}: {error.strerror}", "make it readable: chmod -R u+rX"
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no such user's home
        return f"cannot be read: {error}", ""


#: A payload's command if it is a function; the function follows.
FUNCTION_COMMAND = "python3 hpo_pilot_function.py"


def payload_notes(files: str, command: str, base: Path) -> list[tuple[str, str]]:
    """Returns what a payload's existing folder does not bring to jobs, and penalty values; with hints.

    Args:
        files: `payload.files`.
        command: `payload.command`, also that of a function.
        base: folder of the search file.
    """
    folder = base / Path(files).expanduser()
    return [*_missing_parts(files, command, folder), *_links(files, folder), *_penalties(command, folder)]


def _links(files: str, folder: Path) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.is_symlink() and path.is_dir():
                yield f"{path.name} in {files} is a link to a folder, and is not packed", "jobs need a copy of it there"


def _missing_parts(files: str, command: str, folder: Path) -> Iterator[tuple[str, str]]:
    called, _, function = command.partition(f"{FUNCTION_COMMAND} ")
    if not called and function:
        if missing := _missing_function(files, folder, function):
            yield missing
        return
    for word in _words(command):
        if word.endswith((".py", ".sh")) and not re.search(r"^[/$~]|\{", word) and not (folder / word).exists():
            yield f"{word} is not in {files}", "is the name right?"


def _penalties(command: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yields notes on Python scripts in `payload.command` that give a number for a failure, each with a hint."""
    for word in _words(command):
        module, is_function, _ = word.partition(":")
        name = f"{module.replace('.', '/')}.py" if is_function else word
        if name.endswith(".py") and (penalty := _penalty(folder / name)):
            message = f"line {penalty[0]} of {name} gives {penalty[1]:g} where something fails"
            yield message, "if it is a figure of merit, give NaN: that is a failure, a number is a result"


#: A smaller number is hardly a penalty.
_LEAST_PENALTY = 1e3


def _penalty(script: Path) -> tuple[int, float] | None:
    """Returns line and value of the first large number that a script sets or returns where an exception is handled."""
    try:
        tree = ast.parse(script.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    for node in itertools.chain(*map(ast.walk, handlers)):
        if not isinstance(node, ast.Dict | ast.Return | ast.Assign):
            continue
        for value in node.values if isinstance(node, ast.Dict) else [node.value]:
            number = value.operand if isinstance(value, ast.UnaryOp) else value
            found = number.value if isinstance(number, ast.Constant) else None
            if isinstance(found, int | float) and _LEAST_PENALTY <= found < math.inf:
                return node.lineno, found
    return None


def _missing_function(files: str, folder: Path, function: str) -> tuple[str, str] | None:
    """Returns why a function cannot be called, with a hint; None: nothing is known against it."""
    module, _, name = function.partition(":")
    if not name:  # a pickle
        return None if (folder / function).exists() else (f"{function} is not in {files}", "is the name right?")
    path = folder.joinpath(*module.split("."))
    file = next((one for one in (path.with_name(f"{path.name}.py"), path / "__init__.py") if one.is_file()), None)
    if file is None:
        top = module.partition(".")[0]
        if (folder / top).exists() or importlib.util.find_spec(top) is not None:  # perhaps compiled, or installed
            return None
        return f"there is no module {module} in {files}", "the name before ':' is that of a file, without .py"
    try:
        names = top_names(file)
    except SyntaxError as error:
        return f"{file.name} cannot be imported: line {error.lineno}: {error.msg}", "no trial would have a result"
    except (OSError, ValueError):
        return None
    wanted = name.partition(".")[0]
    if names is None or wanted in names:
        return None
    close = difflib.get_close_matches(wanted, names, n=1)
    return f"there is no {wanted} in {file.name}", f"did you mean {close[0]}?" if close else "is the name right?"


def top_names(module: Path) -> set[str] | None:
    """Returns the names that a Python file defines or imports at its top level; None: it may have any name.

    Raises:
        OSError, ValueError, SyntaxError: it cannot be read or compiled.
    """
    source = module.read_text(encoding="utf-8")
    symbols = symtable.symtable(source, module.name, "exec").get_symbols()
    names = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    return None if "__getattr__" in names or re.search(r"\bimport\s*\*", source) else names


#: Words that a shell understands itself.
_SHELL_WORDS = frozenset(
    {
        *("case", "cd", "command", "eval", "exec", "exit", "export", "for", "if", "set", "source", "time", "trap"),
        *("ulimit", "umask", "unset", "until", "while"),
    }
)


def first_program(command: str) -> str | None:
    """Returns the first word of a payload's command if a shell looks for it in PATH, else None."""
    word = next((word for word in _words(command) if not re.match(r"\w+=", word)), "")
    return word if re.fullmatch(r"\w[\w.+-]*", word) and word not in _SHELL_WORDS else None


def python_word(command: str, python: str | None) -> str | None:
    """Returns the name or path of Python in a payload's command; None: the command has none.

    Args:
        command: `payload.command`.
        python: `payload.python`, which replaces `python` and `python3`.
    """
    found = _PYTHON.search(command)
    if found is None:
        return python
    return python if python and found[1] in ("python", "python3") else found[1]


def python_here(search: Search) -> str | None:
    """Returns the path of the payload's Python, if jobs run on this machine; None: not known."""
    payload = search.payload
    word = None if payload.container else python_word(payload.command, payload.python)
    return shutil.which(word) if word and search.site.profile == "local" else None


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an open quote: the shell reports it
        return []


def _nearest_folder(folder: Path, base: Path) -> str:
    """Returns the hint for a misspelt folder."""
    if not folder.parent.is_dir():
        return ""
    names = {child.name.casefold(): child for child in folder.parent.iterdir() if child.is_dir()}
    meant = difflib.get_close_matches(folder.name.casefold(), names, n=1, cutoff=0.6)
    return f"did you mean {os.path.relpath(names[meant[0]], base)}?" if meant else ""


#: Most bytes of a result file: about the export of 10,000 trials with five folds and their logs.
MAX_RESULT_FILE_BYTES = 100_000_000


def result_path(source: str, base: Path) -> Path:
    """Returns the file of a `warm_start` entry; `base` is the search file's folder."""
    try:
        return base / Path(source).expanduser()
    except RuntimeError:  # the user's home does not exist, and so neither does the file
        return base / source


def result_mistake(path: Path) -> tuple[str, str] | None:
    """Returns the mistake about a result file and the remedy; None: it can be read."""
    try:
        if path.is_dir():
            return f"is a folder, not a file: {path}", ""
        if path.stat().st_size > MAX_RESULT_FILE_BYTES:
            return f"is larger than {MAX_RESULT_FILE_BYTES // 1_000_000} MB", "export it as csv"
        with path.open("rb"):
            return None
    except FileNotFoundError:
        return (
            f"there is no such file: {path}",
            "a relative path starts at this file; a search's name has no '/' or '.'",
        )
    except (OSError, ValueError) as error:  # ValueError: a null character
        return f"cannot be read: {error}", ""
