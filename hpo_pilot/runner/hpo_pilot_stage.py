#!/usr/bin/env python3
"""Copies files to the disk of the node where it runs: a pilot starts one on each node, through the site's launcher.

    python3 -I -S hpo_pilot_stage.py copy|remove REQUEST

The request is a file that the pilot wrote. The answer is one line of JSON after MARK, for launchers put words of their
own before lines. What is there has been there completely since its name came to be: it is copied beside it first. All
of it lies in one folder, which only its owner can open, and whose name says when its allocation is over: then others
of the same user may remove it, should its own pilot have been killed. Standard library alone, Python 3.6 syntax.

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
AFTER = 3600  # seconds after its allocation's end when a folder may be removed: clocks differ
LEFT_FREE = 20  # one part of so many of the disk is left free


class Refused(Exception):
    """It is not copied, and the message says why."""


def node_name() -> str:
    """As the batch system has it, where it says it to its processes."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def scratch_folder(request: "Dict[str, Any]") -> str:
    """The node's scratch, its variables replaced: by this node's own values, else by the pilot's."""
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
    """Whether a folder is this user's, and no other can change what is in it."""
    about = os.lstat(path)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077


def open_folder(scratch: str, name: str) -> str:
    """The allocation's folder, made where it is not there."""
    path = os.path.join(scratch, name)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError as error:
        del error
    if not is_ours(path):
        raise Refused("%s is another user's" % path)
    return path


def remove(path: str) -> None:
    """Remove a folder, with folders in it that may not be written."""

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
    """Remove what killed pilots of this user left, of allocations that are over."""
    for name in os.listdir(scratch):
        match, path = OURS.fullmatch(name), os.path.join(scratch, name)
        try:
            if match and int(match.group(1)) + AFTER < time.time() and is_ours(path):
                remove(path)
        except OSError as error:
            del error  # another one removes it too


def check_room(folder: str, size: int, limit: int) -> None:
    """Refuse what does not fit; what others are copying has its size in its name already."""
    used = sum(int(name.rpartition("-")[2]) for name in os.listdir(folder))
    if limit and used > limit:
        raise Refused("with it, %d MB would be staged on the node, more than --staging-mb" % (used >> 20))
    disk = os.statvfs(folder)
    free = (disk.f_bavail - disk.f_blocks // LEFT_FREE) * disk.f_frsize
    if size > free:
        raise Refused("the node's scratch has %d MB to spare, and it has %d MB" % (max(0, free) >> 20, size >> 20))


def copy(folder: str, wanted: "Dict[str, Any]", limit: int) -> str:
    """Where the copy is, made where it is not there."""
    there = os.path.join(folder, wanted["key"])
    if not os.path.isdir(there):
        new = os.path.join(folder, "%s%s-%d-%s" % (NEW, node_name(), os.getpid(), wanted["key"]))
        try:
            os.mkdir(new, 0o700)
            check_room(folder, wanted["size"], limit)
            fill(os.path.join(new, wanted["name"]), wanted)
            try:
                os.rename(new, there)
            except OSError:  # another one was quicker
                if not os.path.isdir(there):
                    raise
        finally:
            if os.path.isdir(new):
                remove(new)
    return os.path.join(there, wanted["name"])


def fill(path: str, wanted: "Dict[str, Any]") -> None:
    """Bring a file, or the contents of a folder, which travel as one archive."""
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
    """Copy what is wanted; what does not come does not keep the others."""
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
    """Do as the request says, and say how it went: in one piece, for others write to the same place."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half copied goes
    with open(words[1], "rb") as file:
        request = json.loads(file.read().decode())
    answer = dict((copy_all if words[0] == "copy" else remove_all)(request), node=node_name())
    os.write(1, ("\n" + MARK + json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])
