"""Container runtimes: the command line that runs a command inside an image."""

import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure

_SCRATCH = "/tmp"  # noqa: S108  inside the container, empty and its own


class ContainerRuntime(ABC):
    """One way to run a command inside an image.

    `wrap` gives a command that, started with `env` as its environment, runs `argv` inside `image` in `workdir`, sees
    every folder of `binds` under its own path, and ends with the exit status of `argv`.
    """

    name: str
    programs: Sequence[str] = ()

    def program(self) -> Optional[str]:
        """The runtime's executable on this machine; None: not here."""
        return next((found for found in map(shutil.which, self.programs) if found), None)

    def can_run(self, image: str) -> bool:
        """True where this runtime is here and takes this kind of image."""
        return self.program() is not None

    @abstractmethod
    def wrap(
        self, argv: Sequence[str], image: str, binds: Sequence[Path], env: Mapping[str, str], workdir: Path
    ) -> List[str]:
        """The command line, see above."""


class NoContainer(ContainerRuntime):
    """Runs the command as it is."""

    name = "none"

    def can_run(self, image: str) -> bool:
        """Only what wants no image."""
        return not image

    def wrap(
        self, argv: Sequence[str], image: str, binds: Sequence[Path], env: Mapping[str, str], workdir: Path
    ) -> List[str]:
        """See ContainerRuntime."""
        return list(argv)


class Apptainer(ContainerRuntime):
    """Apptainer or Singularity: .sif files, registries, unpacked roots."""

    name = "apptainer"
    programs = ("apptainer", "singularity")

    def wrap(
        self, argv: Sequence[str], image: str, binds: Sequence[Path], env: Mapping[str, str], workdir: Path
    ) -> List[str]:
        """See ContainerRuntime. The environment passes by itself; the GPU flags follow what the site offers."""
        gpus = ["--nv"] if Path("/dev/nvidiactl").exists() else ["--rocm"] if Path("/dev/kfd").exists() else []
        mounts = [part for bind in binds for part in ("--bind", "%s:%s" % (bind, bind))]
        return [self.program() or self.name, "exec", *gpus, *mounts, "--pwd", str(workdir), image, *argv]


class Charliecloud(ContainerRuntime):
    """Charliecloud on an unpacked root or a .sqfs file."""

    name = "charliecloud"
    programs = ("ch-run",)

    def can_run(self, image: str) -> bool:
        """Folders and squashfs files."""
        return super().can_run(image) and (Path(image).is_dir() or image.endswith(".sqfs"))

    def wrap(
        self, argv: Sequence[str], image: str, binds: Sequence[Path], env: Mapping[str, str], workdir: Path
    ) -> List[str]:
        """See ContainerRuntime. `--write-fake` gives mount points for paths that the image lacks."""
        mounts = [part for bind in binds for part in ("--bind", "%s:%s" % (bind, bind))]
        ending = ["--cd", str(workdir), image, "--"]
        return [self.program() or "ch-run", "--write-fake", *mounts, *ending, *argv]


class Bubblewrap(ContainerRuntime):
    """Bubblewrap on an unpacked root."""

    name = "bubblewrap"
    programs = ("bwrap",)

    def can_run(self, image: str) -> bool:
        """Folders."""
        return super().can_run(image) and Path(image).is_dir()

    def wrap(
        self, argv: Sequence[str], image: str, binds: Sequence[Path], env: Mapping[str, str], workdir: Path
    ) -> List[str]:
        """See ContainerRuntime.

        The root is made of the image's entries, each bound read-only, so that mount points can be made beside them.
        """
        root = [part for entry in _entries(Path(image), Path("/"), binds) for part in entry]
        mounts = [part for bind in binds for part in ("--bind", str(bind), str(bind))]
        system = ["--dev", "/dev", "--proc", "/proc", "--tmpfs", _SCRATCH]
        ending = ["--die-with-parent", "--chdir", str(workdir), "--"]
        return [self.program() or "bwrap", *root, *system, *mounts, *ending, *argv]


def _entries(folder: Path, inside: Path, binds: Sequence[Path]) -> List[Tuple[str, str, str]]:
    found = []
    for entry in sorted(folder.iterdir()):
        path = inside / entry.name
        if str(path) in ("/dev", "/proc", _SCRATCH):
            continue
        if entry.is_symlink():
            found.append(("--symlink", os.readlink(str(entry)), str(path)))
        elif entry.is_dir() and any(path in bind.parents for bind in binds):
            found += _entries(entry, path, binds)
        else:
            found.append(("--ro-bind", str(entry), str(path)))
    return found


RUNTIMES: Dict[str, ContainerRuntime] = {
    runtime.name: runtime for runtime in (NoContainer(), Apptainer(), Charliecloud(), Bubblewrap())
}


def choose_runtime(name: str, image: str) -> ContainerRuntime:
    """The runtime for an image; without an image none is needed.

    Args:
        name: one of RUNTIMES, or `auto`: the first that can.
        image: file, folder or URL; empty: none.

    Raises:
        TransformationFailure: the image cannot be run here.
    """
    if not image:
        return RUNTIMES["none"]
    candidates = list(RUNTIMES.values()) if name == "auto" else [RUNTIMES[name]] if name in RUNTIMES else []
    for runtime in candidates:
        if runtime.can_run(image):
            return runtime
    tried = ", ".join(p for r in RUNTIMES.values() for p in r.programs) if name == "auto" else name
    raise TransformationFailure(
        ExitCode.NO_CONTAINER_RUNTIME,
        "the job wants the image %r, and nothing here can run it (tried: %s)" % (image, tried),
    )
