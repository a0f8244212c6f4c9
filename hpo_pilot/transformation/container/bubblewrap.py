"""Bubblewrap's bwrap."""

import os
from pathlib import Path
from typing import List, Mapping, Sequence, Tuple

from hpo_pilot.transformation.container.runtime import (
    AS_IT_IS,
    IMAGE_PATH,
    TMP,
    ContainerRuntime,
    Inside,
    gpu_kind,
    library_path,
    mounts,
    without_environment,
)

#: The machine's own, where the image has one to put it over: names of other nodes are in them, and its own name.
_NAMES = ("/etc/hosts", "/etc/resolv.conf")


class Bubblewrap(ContainerRuntime):
    """Bubblewrap on an unpacked root. The environment passes by itself; libraries of GPUs must be in the image."""

    name = "bubblewrap"
    programs = ("bwrap",)

    def can_run(self, image: str) -> bool:
        """Folders."""
        return super().can_run(image) and Path(image).is_dir()

    def wrap(
        self,
        argv: Sequence[str],
        image: str,
        binds: Sequence[Path],
        env: Mapping[str, str],
        workdir: Path,
        inside: Inside = AS_IT_IS,
    ) -> List[str]:
        """See ContainerRuntime.

        The root is made of the image's entries, each bound read-only, so that mount points can be made beside them.
        """
        bound = mounts(binds, inside)
        words = [*without_environment(env), self.program() or "bwrap"]
        for entry in _entries(Path(image), Path("/"), [Path(path) for path, _ in bound]):
            words += entry
        words += ["--dev", "/dev"] if gpu_kind(inside) == "none" else ["--dev-bind", "/dev", "/dev"]
        words += ["--proc", "/proc", "--tmpfs", TMP]
        for name in _NAMES:
            if os.path.exists(name) and os.path.isfile(image + name) and not os.path.islink(image + name):
                words += ["--ro-bind", name, name]
        for path, writable in bound:
            words += ["--bind" if writable else "--ro-bind", path, path]
        libraries = library_path(env, inside)
        if libraries:
            words += ["--setenv", "LD_LIBRARY_PATH", libraries]
        words += ["--unsetenv", "TMPDIR", "--setenv", "PATH", IMAGE_PATH]
        return [*words, "--die-with-parent", "--chdir", str(workdir), "--", *argv]


def _entries(folder: Path, inside: Path, binds: Sequence[Path]) -> List[Tuple[str, str, str]]:
    found = []
    for entry in sorted(folder.iterdir()):
        path = inside / entry.name
        if str(path) in ("/dev", "/proc", TMP):
            continue
        if entry.is_symlink():
            found.append(("--symlink", os.readlink(str(entry)), str(path)))
        elif entry.is_dir() and any(path in bind.parents for bind in binds):
            found += _entries(entry, path, binds)
        else:
            found.append(("--ro-bind", str(entry), str(path)))
    return found
