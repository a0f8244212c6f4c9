"""For which processor an image was made: a wrong one is found before anything starts.

Images of registries have no file to look at here: their runtimes choose the machine's own, or say that there is none.
"""

import os
import platform
import struct
from pathlib import Path
from typing import Optional

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure

#: (e_machine, little-endian) of an ELF header, as `uname -m` calls it (System V ABI, its processors' supplements).
_ELF = {
    (3, True): "i686",
    (21, False): "ppc64",
    (21, True): "ppc64le",
    (22, False): "s390x",
    (40, True): "armv7l",
    (62, True): "x86_64",
    (183, True): "aarch64",
    (243, True): "riscv64",
}

#: The architecture in a .sif file's header (sylabs/sif, pkg/sif/arch.go).
_SIF = {
    b"01": "i686",
    b"02": "x86_64",
    b"03": "armv7l",
    b"04": "aarch64",
    b"05": "ppc64",
    b"06": "ppc64le",
    b"11": "s390x",
    b"12": "riscv64",
}
_SIF_MAGIC = b"SIF_MAGIC\0"
_SIF_MAGIC_AT, _SIF_ARCHITECTURE_AT = 32, 45  # bytes; between them three of version

#: What also runs there.
_RUNS_TOO = {"x86_64": ("i686",), "aarch64": ("armv7l",)}

#: One of them is in every image that can run a payload.
_PROGRAMS = ("bin/sh", "usr/bin/env", "usr/bin/python3", "usr/local/bin/python3")
_LINKS = 20  # at most, one after another

#: Where Linux lists the programs that run other machines' programs.
_EMULATORS = Path("/proc/sys/fs/binfmt_misc")


def image_architecture(image: str) -> Optional[str]:
    """The architecture of an unpacked root or a .sif file, as `uname -m` has it; None: it does not say."""
    try:
        if os.path.isdir(image):
            return next(filter(None, (_of_program(image, program) for program in _PROGRAMS)), None)
        with open(image, "rb") as file:
            start = file.read(_SIF_ARCHITECTURE_AT + 2)
    except OSError:  # no file of this machine; what is wrong with it is the runtime's to say
        return None
    if start[_SIF_MAGIC_AT:].startswith(_SIF_MAGIC):
        return _SIF.get(start[_SIF_ARCHITECTURE_AT:])
    return None


def check_architecture(image: str) -> None:
    """Refuses an image of another processor than this machine's.

    Raises:
        TransformationFailure: it is one, and nothing here emulates it.
    """
    found, here = image_architecture(image), platform.machine()
    if found is None or found == here or found in _RUNS_TOO.get(here, ()) or _is_emulated(found):
        return
    raise TransformationFailure(
        ExitCode.NO_CONTAINER_RUNTIME,
        "the image %r is of %s, and this machine is %s: name an image that was built for %s, or a queue whose machines "
        "are %s" % (image, found, here, here, found),
    )


def _is_emulated(architecture: str) -> bool:
    return (_EMULATORS / ("qemu-" + architecture)).exists()


def _of_program(root: str, program: str) -> Optional[str]:
    path = _inside(root, program)
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:  # this image has another of them
        return None
    if len(head) < 20 or not head.startswith(b"\x7fELF"):
        return None
    little = head[5] == 1
    (machine,) = struct.unpack_from("<H" if little else ">H", head, 18)
    return _ELF.get((machine, little), "ELF machine %d" % machine)


def _inside(root: str, path: str) -> str:
    """Follows links as they are followed inside the image, where / is its root."""
    parts, found, links = path.split("/"), "/", 0
    while parts:
        part = parts.pop(0)
        found = os.path.normpath(os.path.join(found, part))
        full = root + found
        if os.path.islink(full) and links < _LINKS:
            links += 1
            parts = os.readlink(full).split("/") + parts
            found = "/" if parts[0] == "" else os.path.dirname(found)
    return root + found
