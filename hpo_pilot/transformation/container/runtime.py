"""The interface of container runtimes."""

import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure


class Inside(NamedTuple):
    """What a payload finds in its container, beside the image and the folders that it may write.

    Attributes:
        gpu_kind: nvidia, amd or none; None: what this machine has.
        read_only: more folders and files, at their own paths.
        mpi: folders of the machine's own MPI, which takes the place of the image's: at their own paths, read-only,
            with their libraries first.
        shares_tmp: ranks may see the machine's /tmp, in which their launcher keeps what they meet by.
    """

    gpu_kind: Optional[str] = None
    read_only: Sequence[Path] = ()
    mpi: Sequence[Path] = ()
    shares_tmp: bool = False


#: Programs of images whose PATH is not known, and a container's scratch.
IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TMP = "/tmp"  # noqa: S108  inside the container

#: A folder where the payload runs, which is its container's /tmp.
_SCRATCH = "hpo_pilot_tmp"

#: Variables that lead a Python to packages of this machine.
ENVIRONMENT_NAMES = ("CONDA_DEFAULT_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")

#: Nothing more than this machine has.
AS_IT_IS = Inside()


class ContainerRuntime(ABC):
    """One way to run a command inside an image.

    `wrap` gives a command that, started with `env` as its environment, runs `argv` inside `image` in `workdir`, sees
    every folder of `binds` under its own path, and ends with the exit status of `argv`. The variables of `env` reach
    `argv`, but for those that speak of this machine alone, such as PATH: the image has its own. /tmp is the container's
    own, unless `inside` says that it is shared.
    """

    name: str
    programs: Sequence[str] = ()

    def program(self) -> Optional[str]:
        """The runtime's executable on this machine; None: not here."""
        return next((found for found in map(shutil.which, self.programs) if found), None)

    def can_run(self, image: str) -> bool:
        """True where this runtime is here and takes this kind of image."""
        return self.program() is not None

    def makes_mount_points(self, image: str, binds: Sequence[Path]) -> bool:
        """Whether `wrap` makes folders in an unpacked image, which copies of it that others made will lack."""
        return False

    @abstractmethod
    def wrap(
        self,
        argv: Sequence[str],
        image: str,
        binds: Sequence[Path],
        env: Mapping[str, str],
        workdir: Path,
        inside: Inside = AS_IT_IS,
    ) -> List[str]:
        """The command line, see above.

        Raises:
            TransformationFailure: the image cannot be run so.
        """


def gpu_kind(inside: Inside) -> str:
    """The kind of GPU that the payload gets: nvidia, amd or none."""
    if inside.gpu_kind is not None:
        return inside.gpu_kind
    return "nvidia" if Path("/dev/nvidiactl").exists() else "amd" if Path("/dev/kfd").exists() else "none"


def mounts(binds: Sequence[Path], inside: Inside) -> List[Tuple[str, bool]]:
    """(path, whether it may be written) of everything that is bound, each once."""
    writable = [str(path) for path in binds]
    others = [str(path) for path in [*inside.read_only, *inside.mpi]]
    return [(path, True) for path in dict.fromkeys(writable)] + [
        (path, False) for path in dict.fromkeys(others) if path not in writable
    ]


def library_path(env: Mapping[str, str], inside: Inside) -> str:
    """LD_LIBRARY_PATH with the machine's MPI first; empty where the image's own is used."""
    if not inside.mpi:
        return ""
    found = []
    for folder in inside.mpi:
        found += [str(folder / name) for name in ("lib64", "lib") if (folder / name).is_dir()] or [str(folder)]
    return os.pathsep.join(found + ([env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []))


def is_file_image(image: str) -> bool:
    """True for an image that is one file."""
    return image.endswith((".sif", ".sqfs", ".img"))


def without_environment(env: Mapping[str, str]) -> List[str]:
    """What stands before a runtime that passes the environment on: it hides the active one of this machine."""
    found = [name for name in ENVIRONMENT_NAMES if name in env]
    return ["env", *(word for name in found for word in ("-u", name))] if found else []


def own_tmp(workdir: Path, paths: Sequence[str]) -> str:
    """Makes the folder that a container gets as /tmp, with mount points for what is bound below /tmp.

    Raises:
        TransformationFailure: it cannot be made.
    """
    scratch = workdir / _SCRATCH
    try:
        scratch.mkdir(mode=0o700, exist_ok=True)
        for path in paths:
            if Path(TMP) in Path(path).parents:
                point = scratch / Path(path).relative_to(TMP)
                if Path(path).is_dir():
                    point.mkdir(parents=True, exist_ok=True)
                else:
                    point.parent.mkdir(parents=True, exist_ok=True)
                    point.touch()
    except OSError as error:
        why = "the container's /tmp cannot be made: %s" % error
        raise TransformationFailure(ExitCode.NO_SPACE, why) from error
    return str(scratch)
