"""Container runtimes: the command line that runs a command inside an image."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode

_SCRATCH = "/tmp"  # noqa: S108  inside the container, empty and its own


class ContainerRuntime(ABC):
    """One way to run a command inside an image.

    `wrap` gives a command that, started with `env` as its environment, runs `argv` inside `image` in `workdir`, sees
    every folder of `binds` under its own path, and ends with the exit status of `argv`.
    """

    name: str
    programs: Sequence[str] = ()

    def program(self) -> str | None:
        """The runtime's executable on this machine; None: not here."""
        return next((found for name in self.programs if (found := shutil.which(name))), None)

    def can_run(self, image: str) -> bool:
        """True where this runtime is here and takes this kind of image."""
        return self.program() is not None

    @abstractmethod
    def wrap(
        self, argv: Sequence[str], image: str, binds: Sequence[Path], env: Mapping[str, str], workdir: Path
    ) -> list[str]:
        """The command line, see above."""


class NoContainer(ContainerRuntime):
    """Runs the command as it is."""

    name = "none"

    def can_run(self, image: str) -> bool:
        """Only what wants no image."""
        return not image

    def wrap(
        self, argv: Sequence[str], image: str, binds: Sequence[Path], env: Mapping[str, str], workdir: Path
    ) -> list[str]:
        """See ContainerRuntime."""
        return list(argv)


class Apptainer(ContainerRuntime):
    """Apptainer or Singularity: .sif files, registries, unpacked roots."""

    name = "apptainer"
    programs = ("apptainer", "singularity")

    def wrap(
        self, argv: Sequence[str], image: str, binds: Sequence[Path], env: Mapping[str, str], workdir: Path
    ) -> list[str]:
        """See ContainerRuntime. The environment passes by itself; the GPU flags follow what the site offers."""
        gpus = ["--nv"] if Path("/dev/nvidiactl").exists() else ["--rocm"] if Path("/dev/kfd").exists() else []
        mounts = [part for bind in binds for part in ("--bind", f"{bind}:{bind}")]
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
    ) -> list[str]:
        """See ContainerRuntime. `--write-fake` gives mount points for paths that the image lacks."""
        mounts = [part for bind in binds for part in ("--bind", f"{bind}:{bind}")]
        return [self.program() or "ch-run", "--write-fake", *mounts, "--cd", str(workdir), image, "--", *argv]


class Bubblewrap(ContainerRuntime):
    """Bubblewrap on an unpacked root."""

    name = "bubblewrap"
    programs = ("bwrap",)

    def can_run(self, image: str) -> bool:
        """Folders."""
        return super().can_run(image) and Path(image).is_dir()

    def wrap(
        self, argv: Sequence[str], image: str, binds: Sequence[Path], env: Mapping[str, str], workdir: Path
    ) -> list[str]:
        """See ContainerRuntime.

        The root is made of the image's entries, each bound read-only, so that mount points can be made beside them.
        """
        root = [part for entry in _entries(Path(image), Path("/"), binds) for part in entry]
        mounts = [part for bind in binds for part in ("--bind", str(bind), str(bind))]
        system = ["--dev", "/dev", "--proc", "/proc", "--tmpfs", _SCRATCH]
        ending = ["--die-with-parent", "--chdir", str(workdir), "--"]
        return [self.program() or "bwrap", *root, *system, *mounts, *ending, *argv]


def _entries(folder: Path, inside: Path, binds: Sequence[Path]) -> list[tuple[str, str, str]]:
    found = []
    for entry in sorted(folder.iterdir()):
        path = inside / entry.name
        if str(path) in ("/dev", "/proc", _SCRATCH):
            continue
        if entry.is_symlink():
            found.append(("--symlink", str(entry.readlink()), str(path)))
        elif entry.is_dir() and any(path in bind.parents for bind in binds):
            found += _entries(entry, path, binds)
        else:
            found.append(("--ro-bind", str(entry), str(path)))
    return found


RUNTIMES: dict[str, ContainerRuntime] = {
    runtime.name: runtime for runtime in (NoContainer(), Apptainer(), Charliecloud(), Bubblewrap())
}


def check_runtime(name: str) -> None:
    """Refuses a runtime that does not exist.

    Raises:
        InputError: with the names that do.
    """
    if name != "auto" and name not in RUNTIMES:
        raise InputError(f"--container-runtime {name!r}: choose one of auto, {', '.join(RUNTIMES)}")


def choose_runtime(name: str, image: str) -> ContainerRuntime:
    """The runtime for an image; without an image none is needed.

    Raises:
        JobFailure: the image cannot be run here.
    """
    if not image:
        return RUNTIMES["none"]
    for runtime in RUNTIMES.values() if name == "auto" else [RUNTIMES[name]]:
        if runtime.can_run(image):
            return runtime
    tried = ", ".join(p for r in RUNTIMES.values() for p in r.programs) if name == "auto" else name
    raise JobFailure(
        PilotErrorCode.NO_CONTAINER_RUNTIME,
        f"the job wants the image {image!r}, and nothing here can run it (tried: {tried})",
    )
