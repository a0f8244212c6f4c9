"""Container runtimes: build the command line that runs a command inside an image."""

import os
import platform
import pwd
import shutil
import struct
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hpo_pilot.transformation.job import ExitCode, TransformationFailure

# For which processor an image was made: a wrong one is found before anything starts.
#
# Images of registries have no file to look at here: their runtimes choose the machine's own, or say that there is
# none.

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


class NoContainer(ContainerRuntime):
    """Runs the command as it is."""

    name = "none"

    def can_run(self, image: str) -> bool:
        """Only what wants no image."""
        return not image

    def wrap(
        self,
        argv: Sequence[str],
        image: str,
        binds: Sequence[Path],
        env: Mapping[str, str],
        workdir: Path,
        inside: Inside = AS_IT_IS,
    ) -> List[str]:
        """See ContainerRuntime."""
        return list(argv)


_APPTAINER_GPU_FLAGS = {"nvidia": ["--nv"], "amd": ["--rocm"]}


class Apptainer(ContainerRuntime):
    """Apptainer or Singularity: .sif files, registries, unpacked roots.

    The environment passes by itself but for PATH, which is the image's. The user's home is there too, where the site
    mounts it.
    """

    name = "apptainer"
    programs = ("apptainer", "singularity")

    def wrap(
        self,
        argv: Sequence[str],
        image: str,
        binds: Sequence[Path],
        env: Mapping[str, str],
        workdir: Path,
        inside: Inside = AS_IT_IS,
    ) -> List[str]:
        """See ContainerRuntime."""
        program, bound = self.program() or self.name, mounts(binds, inside)
        words = [*without_environment(env), program, "exec", *_APPTAINER_GPU_FLAGS.get(gpu_kind(inside), [])]
        if not inside.shares_tmp:
            # --contain would have a small /tmp, and none of the devices of the network between nodes.
            words += ["--bind", "%s:%s" % (own_tmp(workdir, [path for path, _ in bound]), TMP)]
        for path, writable in bound:
            words += ["--bind", "%s:%s%s" % (path, path, "" if writable else ":ro")]
        libraries = library_path(env, inside)
        if libraries:  # it passes all variables on but this one
            words += ["--env", "LD_LIBRARY_PATH=" + libraries]
        return [*words, "--pwd", str(workdir), image, *argv]


#: What the image's recipe set (ENV), as ch-image keeps it; ch-run's own option for it fails where there is none.
_WITH_ITS_ENVIRONMENT = """\
if [ -f /ch/environment ]; then while IFS= read -r said; do
    value=${said#*=}; case $value in "'"*"'") value=${value#?}; value=${value%?} ;; esac
    [ -z "$said" ] || export "${said%%=*}=$value"
done < /ch/environment; fi
exec "$@"
"""


class Charliecloud(ContainerRuntime):
    """Charliecloud on an unpacked root or a .sqfs file.

    The environment passes by itself but for PATH, and so do the devices of GPUs; their libraries must be in the image
    (`ch-fromhost --nvidia` puts them there). It binds nothing read-only: what may not be written must say so itself.
    """

    name = "charliecloud"
    programs = ("ch-run",)

    def can_run(self, image: str) -> bool:
        """Folders and squashfs files; not the machine's own root, which cannot be mounted over itself."""
        folder = Path(image)
        is_image = image.endswith(".sqfs") or (folder.is_dir() and folder.resolve() != Path("/"))
        return super().can_run(image) and is_image

    def makes_mount_points(self, image: str, binds: Sequence[Path]) -> bool:
        """See ContainerRuntime."""
        lacking = _lacking(image, [str(path) for path in binds]) if Path(image).is_dir() else []
        return bool(lacking) and not _has_write_fake(self.program() or "ch-run")

    def wrap(
        self,
        argv: Sequence[str],
        image: str,
        binds: Sequence[Path],
        env: Mapping[str, str],
        workdir: Path,
        inside: Inside = AS_IT_IS,
    ) -> List[str]:
        """See ContainerRuntime. An old ch-run gets empty folders in the image for what it is to bind there."""
        program = self.program() or "ch-run"
        paths = [path for path, _ in mounts(binds, inside)]
        words = without_environment(env)
        # It refuses to start without it.
        more = ["USER=" + _user()] if "USER" not in env else []
        if not inside.shares_tmp:
            more.append("TMPDIR=" + own_tmp(workdir, paths))  # it binds that as /tmp, and unsets the variable
        words = [*(words or ["env"] if more else words), *more, program]
        if _has_write_fake(program):
            words.append("--write-fake")
        else:
            _make_mount_points(image, paths)
        for path in paths:
            words += ["--bind", "%s:%s" % (path, path)]
        words += ["--env-no-expand", "--set-env=PATH=" + IMAGE_PATH]
        begin = ["/bin/sh", "-c", _WITH_ITS_ENVIRONMENT, "sh"]
        libraries = library_path(env, inside)
        if libraries:  # before those that the image names
            begin += ["env", "LD_LIBRARY_PATH=" + libraries]
        return [*words, "--cd", str(workdir), image, "--", *begin, *argv]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user that the machine has no name for
        return str(os.getuid())


def _has_write_fake(program: str) -> bool:
    """Whether it can make mount points in memory, over the image; 0.31, which Debian 12 has, cannot."""
    try:
        said = subprocess.run(
            [program, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TransformationFailure(ExitCode.NO_CONTAINER_RUNTIME, "%s cannot be run: %s" % (program, error)) from error
    return b"--write-fake" in said.stdout


def _lacking(image: str, paths: Sequence[str]) -> List[str]:
    """Those that are not in the image; those of /tmp are in what ch-run binds there."""
    return [path for path in paths if Path(TMP) not in Path(path).parents and not Path(image + path).exists()]


def _make_mount_points(image: str, paths: Sequence[str]) -> None:
    """Makes the folders in an unpacked image that it lacks."""
    for path in _lacking(image, paths):
        try:
            Path(image + path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TransformationFailure(
                ExitCode.NO_CONTAINER_RUNTIME,
                "this ch-run needs the folder %s in the image, which cannot be made (%s): make it when the image is "
                "built, or use a ch-run that has --write-fake" % (path, error),
            ) from error


class Shifter(ContainerRuntime):
    """Shifter on an image that its gateway has (`shifterimg pull`).

    The environment passes by itself but for PATH, which is the image's; /tmp is what the site's administrator mounts.
    GPUs and the machine's MPI come as modules, which its administrator defines; NERSC's are called gpu and mpich.
    """

    name = "shifter"
    programs = ("shifter",)

    def can_run(self, image: str) -> bool:
        """Images of registries."""
        return super().can_run(image) and not is_file_image(image) and not Path(image).is_dir()

    def wrap(
        self,
        argv: Sequence[str],
        image: str,
        binds: Sequence[Path],
        env: Mapping[str, str],
        workdir: Path,
        inside: Inside = AS_IT_IS,
    ) -> List[str]:
        """See ContainerRuntime."""
        name = image[len("docker://") :] if image.startswith("docker://") else image
        program = self.program() or self.name
        words = [
            *without_environment(env),
            program,
            "--image=" + (name if name.startswith("docker:") else "docker:" + name),
        ]
        modules = (["gpu"] if gpu_kind(inside) == "nvidia" else []) + (["mpich"] if inside.mpi else [])
        if modules:
            words.append("--module=" + ",".join(modules))
        own = {str(folder) for folder in inside.mpi}
        for path, writable in mounts(binds, inside):
            if path not in own:  # the module brings it
                words.append("--volume=%s:%s%s" % (path, path, "" if writable else ":ro"))
        return [*words, "--workdir=" + str(workdir), *argv]


#: Variables that speak of this machine or of the shell: the image has its own, or none.
_OF_THE_MACHINE = frozenset(
    [
        *ENVIRONMENT_NAMES,
        "CONTAINERS_CONF",
        "HOME",
        "HOSTNAME",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "LOGNAME",
        "OLDPWD",
        "PATH",
        "PWD",
        "SHELL",
        "SHLVL",
        "TERM",
        "TMPDIR",
        "USER",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_RUNTIME_DIR",
        "_",
    ]
)

_PODMAN_GPU_FLAGS = {
    "nvidia": ["--device=nvidia.com/gpu=all"],  # Container Device Interface: `nvidia-ctk cdi generate`
    "amd": ["--device=/dev/kfd", "--device=/dev/dri"],
}

#: A container is not this process's child: it would go on if podman were killed. So it gets the pipe that closes when
#: the pilot dies, under the one number that podman passes on.
_LIFELINE = "HPO_PILOT_LIFELINE_FD"
_WITH_LIFELINE = 'exec 3<"/proc/self/fd/$%s" && export %s=3 && exec "$@"' % (_LIFELINE, _LIFELINE)


class Podman(ContainerRuntime):
    """Podman on an image that it has or gets from a registry, or on an unpacked root.

    The payload is root inside; without root's rights outside that is the user. It sees the machine's network and
    processes, as MPI wants it. What it writes into an unpacked root is thrown away.
    """

    name = "podman"
    programs = ("podman",)
    _binds_mpi = True

    def can_run(self, image: str) -> bool:
        """All but images that are one file."""
        return super().can_run(image) and not is_file_image(image)

    def wrap(
        self,
        argv: Sequence[str],
        image: str,
        binds: Sequence[Path],
        env: Mapping[str, str],
        workdir: Path,
        inside: Inside = AS_IT_IS,
    ) -> List[str]:
        """See ContainerRuntime. Only names of variables stand on the command line."""
        words = [self.program() or self.name, "run", "--rm", "--network=host", "--ipc=host", "--pid=host"]
        words += ["--user=0:0", "--security-opt=label=disable", *self._machine(env, inside)]
        for path, writable in mounts(binds, inside):
            if writable or self._binds_mpi or path not in map(str, inside.mpi):
                words.append("--volume=%s:%s%s" % (path, path, "" if writable else ":ro"))
        words += ["--env=" + name for name in sorted(env) if name not in _OF_THE_MACHINE and name.isidentifier()]
        words += ["--workdir=" + str(workdir), "--entrypoint=" + argv[0]]
        if _LIFELINE in env:
            words = ["/bin/sh", "-c", _WITH_LIFELINE, "sh", *words, "--preserve-fds=1"]
        words += ["--rootfs", image + ":O"] if Path(image).is_dir() else [image]
        return [*words, *argv[1:]]

    def _machine(self, env: Mapping[str, str], inside: Inside) -> List[str]:
        """What brings the machine's GPUs and MPI."""
        libraries = library_path(env, inside)
        return _PODMAN_GPU_FLAGS.get(gpu_kind(inside), []) + (
            ["--env=LD_LIBRARY_PATH=" + libraries] if libraries else []
        )


class PodmanHpc(Podman):
    """podman-hpc: its own flags bring NVIDIA's libraries and the machine's MPI (NERSC/podman-hpc, etc/modules.d)."""

    name = "podman-hpc"
    programs = ("podman-hpc",)
    _binds_mpi = False

    def _machine(self, env: Mapping[str, str], inside: Inside) -> List[str]:
        kind = gpu_kind(inside)
        gpus = ["--gpu"] if kind == "nvidia" else _PODMAN_GPU_FLAGS.get(kind, [])
        return gpus + (["--mpi"] if inside.mpi else [])


#: By their names, in the order in which `auto` tries them: first those that need nothing set up.
RUNTIMES: Dict[str, ContainerRuntime] = {
    runtime.name: runtime for runtime in (NoContainer(), Apptainer(), Charliecloud(), Shifter(), PodmanHpc(), Podman())
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
            check_architecture(image)
            return runtime
    tried = ", ".join(p for r in RUNTIMES.values() for p in r.programs) if name == "auto" else name
    raise TransformationFailure(
        ExitCode.NO_CONTAINER_RUNTIME,
        "the job wants the image %r, and nothing here can run it (tried: %s)" % (image, tried),
    )
