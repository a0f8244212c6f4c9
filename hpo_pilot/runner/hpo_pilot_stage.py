#!/usr/bin/env python3
"""Copies files to the disk of the node where it runs. A pilot starts it on each node through the site's launcher.

    python3 -I -S hpo_pilot_stage.py copy|remove REQUEST

The pilot writes the request file. The answer is one line of JSON after MARK, because launchers add words before lines.
A copy is made under a temporary name and then renamed, so a copy under its own name is complete. All copies are in one
folder that only its owner can open. The folder's name has the end time of its allocation: after that, other pilots of
the same user may remove it if its own pilot was killed. Standard library only, Python 3.6 syntax.

    SCRATCH/hpo-pilot-...-until-1764000000/KEY-SIZE/NAME
"""

import json
import os
import pwd
import re
import shutil
import signal
import stat
import sys
import tarfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

MARK = "hpo_pilot_stage: "
OURS = re.compile(r"hpo-pilot-.+-until-(\d+)")
NEW = ".new-"
AFTER = 3600  # seconds from the end of the allocation until its folder may be removed: clocks differ
LEFT_FREE = 20  # 1/20 of the disk stays free


class Refused(Exception):
    """The file is not copied; the message says why."""


def node_name() -> str:
    """Return the batch system's name of this node, or else the host name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def scratch_folder(request: "Dict[str, Any]") -> str:
    """Return the node's scratch folder; its variables get this node's values, or else the pilot's."""
    known = dict(request["variables"], **os.environ)
    try:
        known.setdefault("USER", pwd.getpwuid(os.getuid()).pw_name)
    except KeyError as error:
        del error  # a user without a name

    def value(found: "Any") -> str:
        name = found.group(1).strip("{}")
        if name not in known:
            raise Refused("scratch.node of the site names $%s, which is not set on the node" % name)
        return str(known[name])

    path = re.sub(r"\$(\w+|\{\w+\})", value, request["scratch"])
    if not os.path.isdir(path):
        raise Refused("there is no folder %s on the node" % path)
    return path


def is_ours(path: str) -> bool:
    """Return whether a folder belongs to this user and is closed to others."""
    about = os.lstat(path)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077


def open_folder(scratch: str, name: str) -> str:
    """Return the allocation's folder; make it if needed."""
    path = os.path.join(scratch, name)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError as error:
        del error
    if not is_ours(path):
        raise Refused("%s is another user's" % path)
    return path


def remove(path: str) -> None:
    """Remove a folder, even if it has read-only folders."""

    def again(function: "Callable[..., Any]", where: str, _: "Any") -> None:
        try:
            os.chmod(os.path.dirname(where), 0o700)
            os.chmod(where, 0o700)
            function(where)
        except OSError as error:
            print("hpo_pilot_stage.py: %s stays: %s" % (where, error), file=sys.stderr)

    for where, _, _ in os.walk(path):
        os.chmod(where, 0o700)
    shutil.rmtree(path, onerror=again)


def remove_old(scratch: str) -> None:
    """Remove folders that killed pilots of this user left, if their allocations have ended."""
    for name in os.listdir(scratch):
        match, path = OURS.fullmatch(name), os.path.join(scratch, name)
        try:
            if match and int(match.group(1)) + AFTER < time.time() and is_ours(path):
                remove(path)
        except OSError as error:
            del error  # another one removes it too


def check_room(folder: str, size: int, limit: int) -> None:
    """Refuse a copy that does not fit. Copies in progress count too: their size is in their name."""
    used = sum(int(name.rpartition("-")[2]) for name in os.listdir(folder))
    if limit and used > limit:
        raise Refused("with it, %d MB would be staged on the node, more than --staging-mb" % (used >> 20))
    disk = os.statvfs(folder)
    free = (disk.f_bavail - disk.f_blocks // LEFT_FREE) * disk.f_frsize
    if size > free:
        raise Refused("the node's scratch has %d MB to spare, and it has %d MB" % (max(0, free) >> 20, size >> 20))


def copy(folder: str, wanted: "Dict[str, Any]", limit: int) -> str:
    """Return the path of the copy; make it if needed."""
    there = os.path.join(folder, wanted["key"])
    if not os.path.isdir(there):
        new = os.path.join(folder, "%s%s-%d-%s" % (NEW, node_name(), os.getpid(), wanted["key"]))
        try:
            os.mkdir(new, 0o700)
            check_room(folder, wanted["size"], limit)
            fill(os.path.join(new, wanted["name"]), wanted)
            try:
                os.rename(new, there)
            except OSError:  # another process was faster
                if not os.path.isdir(there):
                    raise
        finally:
            if os.path.isdir(new):
                remove(new)
    return os.path.join(there, wanted["name"])


def fill(path: str, wanted: "Dict[str, Any]") -> None:
    """Copy a file, or unpack the archive of a folder."""
    if wanted["is_archive"]:
        os.mkdir(path)
        trusted = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}  # type: Any
        with tarfile.open(wanted["source"], "r|") as archive:  # the pilot packed it
            archive.extractall(path, **trusted)  # noqa: S202
        return
    shutil.copy2(wanted["source"], path)
    about = os.stat(wanted["source"])
    if [about.st_size, about.st_mtime_ns] != [wanted["size"], wanted["mtime_ns"]] or os.path.getsize(path) != wanted[
        "size"
    ]:
        raise Refused("it was changed while it was copied")
    os.chmod(path, 0o444 | about.st_mode & 0o111)  # many jobs read it, and must not change it


def copy_all(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Copy the files of the request; one that fails does not stop the others."""
    there, failed = {}, {}  # type: Dict[str, str], Dict[str, str]
    try:
        scratch = scratch_folder(request)
        folder = open_folder(scratch, request["folder"])
        remove_old(scratch)
    except (Refused, OSError) as error:
        return {"there": {}, "failed": {wanted["key"]: str(error) for wanted in request["copies"]}}
    for wanted in request["copies"]:
        try:
            there[wanted["key"]] = copy(folder, wanted, request["limit"])
        except (Refused, OSError, tarfile.TarError) as error:
            failed[wanted["key"]] = str(error)
    return {"there": there, "failed": failed}


def remove_all(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Remove the allocation's folder."""
    try:
        path = os.path.join(scratch_folder(request), request["folder"])
        if OURS.fullmatch(request["folder"]) and os.path.lexists(path) and is_ours(path):
            remove(path)
    except (Refused, OSError) as error:
        return {"failed": {"": str(error)}}
    return {"there": {}}


def main(words: "List[str]") -> None:
    """Carry out the request and print the answer in one write, because other processes use the same output."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the clean-up of incomplete copies
    with open(words[1], "rb") as file:
        request = json.loads(file.read().decode())
    answer = dict((copy_all if words[0] == "copy" else remove_all)(request), node=node_name())
    os.write(1, ("\n" + MARK + json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])
