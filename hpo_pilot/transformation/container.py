"""Container runtimes: build the command line that runs a command inside an image."""

import os
import platform
import pwd
import re
import shutil
import struct
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hpo_pilot.transformation.job import ExitCode, ImageFault, TransformationFailure

# The processor architecture of an image is checked before anything starts. Images of registries are not checked: their
# runtimes choose the right architecture or report an error.

#: (e_machine, little-endian) of an ELF header -> name in `uname -m` (System V ABI and its processor supplements).
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
_SIF_MAGIC_AT, _SIF_ARCHITECTURE_AT = 32, 45  # offsets in bytes; the version is between them

#: Other architectures that a processor runs.
_RUNS_TOO = {"x86_64": ("i686",), "aarch64": ("armv7l",)}

#: Every image that can run a payload has one of these.
_PROGRAMS = ("bin/sh", "usr/bin/env", "usr/bin/python3", "usr/local/bin/python3")
_LINKS = 20  # symbolic links followed at most

#: Linux lists its emulators of other processors here.
_EMULATORS = Path("/proc/sys/fs/binfmt_misc")


def image_architecture(image: str) -> Optional[str]:
    """Returns the architecture of an unpacked root or a .sif file, as in `uname -m`; None: not known."""
    try:
        if os.path.isdir(image):
            return next(filter(None, (_of_program(image, program) for program in _PROGRAMS)), None)
        with open(image, "rb") as file:
            start = file.read(_SIF_ARCHITECTURE_AT + 2)
    except OSError:  # not readable: the runtime reports the error
        return None
    if start[_SIF_MAGIC_AT:].startswith(_SIF_MAGIC):
        return _SIF.get(start[_SIF_ARCHITECTURE_AT:])
    return None


def runs_on(architecture: str, machine: str) -> bool:
    """Returns whether a machine of an architecture runs the programs of another one; both as in `uname -m`."""
    return architecture in (machine, *_RUNS_TOO.get(machine, ()))


def check_architecture(image: str) -> None:
    """Refuses an image for another processor.

    Raises:
        ImageFault: this machine cannot run or emulate the image's architecture.
    """
    found, here = image_architecture(image), platform.machine()
    if found is None or runs_on(found, here) or (_EMULATORS / ("qemu-" + found)).exists():
        return
    raise ImageFault(
        "the image %r is of %s, and this machine is %s: name an image that was built for %s, or a queue whose machines "
        "are %s" % (image, found, here, here, found)
    )


#: Messages of runtimes about such images: registries' errors (opencontainers/distribution-spec, "Error Codes") as
#: podman and Apptainer repeat them, Apptainer's own (pkg/image/sif.go), Shifter's, and the kernel's ENOEXEC.
_FAULT = re.compile(
    "manifest unknown|name unknown|access to the resource is denied|could not open image .*no such file"
    "|architecture .* could not run on the host|FAILED to lookup docker image|[Ee]xec format error"
)


def image_fault(said: str) -> str:
    """Returns the line in which a container runtime reports a missing image or one for another processor.

    Args:
        said: the runtime's output; an empty text is returned if it has no such line.
    """
    return next((line.strip() for line in said.splitlines() if _FAULT.search(line)), "")


def _of_program(root: str, program: str) -> Optional[str]:
    path = _inside(root, program)
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:  # not in this image
        return None
    if len(head) < 20 or not head.startswith(b"\x7fELF"):
        return None
    little = head[5] == 1
    (machine,) = struct.unpack_from("<H" if little else ">H", head, 18)
    return _ELF.get((machine, little), "ELF machine %d" % machine)


def _inside(root: str, path: str) -> str:
    """Returns the path with links resolved as inside the image, where / is the image's root."""
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
    """Settings of a container, besides its image and its writable folders.

    Attributes:
        gpu_kind: nvidia, amd, intel or none; None: as on this machine.
        read_only: further folders and files, mounted read-only at their own paths.
        mpi: folders of the machine's own MPI, mounted read-only at their own paths. Their libraries come first, so
            that they replace the image's MPI.
        shares_tmp: the container sees the machine's /tmp, where launchers keep the sockets and files of their ranks.
    """

    gpu_kind: Optional[str] = None
    read_only: Sequence[Path] = ()
    mpi: Sequence[Path] = ()
    shares_tmp: bool = False


#: PATH for images whose own PATH is not known, and the container's temporary folder.
IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TMP = "/tmp"  # noqa: S108  inside the container

#: Folder below the payload's folder that is mounted as the container's /tmp.
_SCRATCH = "hpo_pilot_tmp"

#: Variables that make Python use packages of this machine.
ENVIRONMENT_NAMES = ("CONDA_DEFAULT_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")


class ContainerStart(NamedTuple):
    """A command to run inside an image.

    Attributes:
        argv: the command.
        image: file, folder or URL.
        binds: folders that the command may write; each has the same path inside.
        env: environment with which the caller starts the wrapped command. Its variables reach `argv`, except those
            that describe this machine, such as PATH: the image has its own.
        workdir: folder in which `argv` runs.
        inside: what else the command finds in the container; by default the machine's GPUs.
    """

    argv: Sequence[str]
    image: str
    binds: Sequence[Path]
    env: Mapping[str, str]
    workdir: Path
    inside: Inside = Inside()


class ContainerRuntime(ABC):
    """Runs a command inside an image; one subclass for each container program, with a place in `RUNTIMES`.

    Site profiles, the pilot's options and `hpo-pilot doctor` take the names from `RUNTIMES`. A new runtime also needs
    `make schemas`, and a test of its command line in `tests/transformation/test_container_commands.py`. A runtime of
    another package (entry-point group `hpo_pilot.runtimes`) exists in our pilot, not in a Pilot 3's transformation.

    The command that `wrap` returns ends with the exit status of the wrapped command. /tmp belongs to the container,
    unless `inside.shares_tmp` is set.
    """

    name: str
    programs: Sequence[str] = ()

    def program(self) -> Optional[str]:
        """Returns the path of the runtime's program; None: not installed here."""
        return next((found for found in map(shutil.which, self.programs) if found), None)

    def can_run(self, image: str) -> bool:
        """Returns whether this runtime is installed and supports this kind of image."""
        return self.program() is not None

    def makes_mount_points(self, image: str, binds: Sequence[Path]) -> bool:
        """Returns whether `wrap` makes folders in an unpacked image; copies of the image lack these folders."""
        return False

    @abstractmethod
    def wrap(self, start: ContainerStart) -> List[str]:
        """Returns the command line that runs the command inside the image.

        Raises:
            TransformationFailure: this runtime cannot run the image.
        """


def gpu_kind(inside: Inside) -> str:
    """Returns the kind of GPU that the payload gets: nvidia, amd, intel or none."""
    if inside.gpu_kind is not None:
        return inside.gpu_kind
    devices = (("nvidia", "nvidiactl"), ("amd", "kfd"), ("intel", "dri"))
    return next((kind for kind, device in devices if (Path("/dev") / device).exists()), "none")


def mounts(binds: Sequence[Path], inside: Inside) -> List[Tuple[str, bool]]:
    """Returns (path, writable) for each mounted path, without duplicates."""
    writable = [str(path) for path in binds]
    others = [str(path) for path in [*inside.read_only, *inside.mpi]]
    return [(path, True) for path in dict.fromkeys(writable)] + [
        (path, False) for path in dict.fromkeys(others) if path not in writable
    ]


def library_path(env: Mapping[str, str], inside: Inside) -> str:
    """Returns LD_LIBRARY_PATH with the machine's MPI first; empty if the image's MPI is used."""
    if not inside.mpi:
        return ""
    found = []
    for folder in inside.mpi:
        found += [str(folder / name) for name in ("lib64", "lib") if (folder / name).is_dir()] or [str(folder)]
    return os.pathsep.join(found + ([env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []))


def is_file_image(image: str) -> bool:
    """Returns whether the image is a single file."""
    return image.endswith((".sif", ".sqfs", ".img"))


def without_environment(env: Mapping[str, str]) -> List[str]:
    """Returns an `env -u` prefix that hides this machine's active Python environment from the container."""
    found = [name for name in ENVIRONMENT_NAMES if name in env]
    return ["env", *(word for name in found for word in ("-u", name))] if found else []


def own_tmp(workdir: Path, paths: Sequence[str]) -> str:
    """Makes the folder for the container's /tmp, with mount points for paths below /tmp.

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
        """Returns whether the job has no image."""
        return not image

    def wrap(self, start: ContainerStart) -> List[str]:
        """See ContainerRuntime."""
        return list(start.argv)


#: It mounts /dev; Intel's libraries are in images.
_APPTAINER_GPU_FLAGS = {"nvidia": ["--nv"], "amd": ["--rocm"]}


class Apptainer(ContainerRuntime):
    """Apptainer or Singularity: .sif files, registries, unpacked roots.

    It passes the environment on, except PATH, which is the image's. The site may mount the user's home.
    """

    name = "apptainer"
    programs = ("apptainer", "singularity")

    def wrap(self, start: ContainerStart) -> List[str]:
        """See ContainerRuntime."""
        program, bound = self.program() or self.name, mounts(start.binds, start.inside)
        words = [*without_environment(start.env), program, "exec"]
        words += _APPTAINER_GPU_FLAGS.get(gpu_kind(start.inside), [])
        if not start.inside.shares_tmp:
            # --contain would give a small /tmp and hide the network devices between nodes.
            words += ["--bind", "%s:%s" % (own_tmp(start.workdir, [path for path, _ in bound]), TMP)]
        for path, writable in bound:
            words += ["--bind", "%s:%s%s" % (path, path, "" if writable else ":ro")]
        libraries = library_path(start.env, start.inside)
        if libraries:  # it passes on all variables except this one
            words += ["--env", "LD_LIBRARY_PATH=" + libraries]
        return [*words, "--pwd", str(start.workdir), start.image, *start.argv]


#: Sets the variables of the image's recipe (ENV), as ch-image stores them. ch-run's own option fails without the file.
_WITH_ITS_ENVIRONMENT = """\
if [ -f /ch/environment ]; then while IFS= read -r said; do
    value=${said#*=}; case $value in "'"*"'") value=${value#?}; value=${value%?} ;; esac
    [ -z "$said" ] || export "${said%%=*}=$value"
done < /ch/environment; fi
exec "$@"
"""


class Charliecloud(ContainerRuntime):
    """Charliecloud on an unpacked root or a .sqfs file.

    It passes on the environment, except PATH, and the devices of GPUs. The GPU libraries must be in the image
    (`ch-fromhost --nvidia` copies them). It has no read-only mounts: file permissions must protect the files.
    """

    name = "charliecloud"
    programs = ("ch-run",)

    def can_run(self, image: str) -> bool:
        """Accepts folders and squashfs files, but not the machine's own root, which cannot be mounted over itself."""
        folder = Path(image)
        is_image = image.endswith(".sqfs") or (folder.is_dir() and folder.resolve() != Path("/"))
        return super().can_run(image) and is_image

    def makes_mount_points(self, image: str, binds: Sequence[Path]) -> bool:
        """See ContainerRuntime."""
        lacking = _lacking(image, [str(path) for path in binds]) if Path(image).is_dir() else []
        return bool(lacking) and not _has_write_fake(self.program() or "ch-run")

    def wrap(self, start: ContainerStart) -> List[str]:
        """Returns the words of the command. For an old ch-run it makes mount points (empty folders) in the image."""
        program = self.program() or "ch-run"
        paths = [path for path, _ in mounts(start.binds, start.inside)]
        words = without_environment(start.env)
        # ch-run does not start without USER.
        more = ["USER=" + _user()] if "USER" not in start.env else []
        if not start.inside.shares_tmp:
            more.append("TMPDIR=" + own_tmp(start.workdir, paths))  # ch-run mounts it as /tmp and unsets it
        words = [*(words or ["env"] if more else words), *more, program]
        if _has_write_fake(program):
            words.append("--write-fake")
        else:
            _make_mount_points(start.image, paths)
        for path in paths:
            words += ["--bind", "%s:%s" % (path, path)]
        words += ["--env-no-expand", "--set-env=PATH=" + IMAGE_PATH]
        begin = ["/bin/sh", "-c", _WITH_ITS_ENVIRONMENT, "sh"]
        libraries = library_path(start.env, start.inside)
        if libraries:  # before the libraries of the image
            begin += ["env", "LD_LIBRARY_PATH=" + libraries]
        return [*words, "--cd", str(start.workdir), start.image, "--", *begin, *start.argv]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the user has no name on this machine
        return str(os.getuid())


def _has_write_fake(program: str) -> bool:
    """Returns whether ch-run can make mount points in memory, over the image; 0.31 of Debian 12 cannot."""
    try:
        said = subprocess.run(
            [program, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TransformationFailure(ExitCode.NO_CONTAINER_RUNTIME, "%s cannot be run: %s" % (program, error)) from error
    return b"--write-fake" in said.stdout


def _lacking(image: str, paths: Sequence[str]) -> List[str]:
    """Returns the paths that the image lacks. Paths below /tmp are left out: ch-run binds a folder there."""
    return [path for path in paths if Path(TMP) not in Path(path).parents and not Path(image + path).exists()]


def _make_mount_points(image: str, paths: Sequence[str]) -> None:
    """Makes missing mount points in an unpacked image."""
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
    """Shifter on an image of its gateway (`shifterimg pull`).

    It passes the environment on, except PATH, which is the image's. The site's administrator chooses what /tmp is, and
    defines modules for GPUs and the machine's MPI; NERSC's modules are gpu and mpich.
    """

    name = "shifter"
    programs = ("shifter",)

    def can_run(self, image: str) -> bool:
        """Accepts images of registries."""
        return super().can_run(image) and not is_file_image(image) and not Path(image).is_dir()

    def wrap(self, start: ContainerStart) -> List[str]:
        """See ContainerRuntime."""
        name = re.sub("^docker:(//)?", "", start.image)
        words = [*without_environment(start.env), self.program() or self.name, "--image=docker:" + name]
        modules = (["gpu"] if gpu_kind(start.inside) == "nvidia" else []) + (["mpich"] if start.inside.mpi else [])
        if modules:
            words.append("--module=" + ",".join(modules))
        own = {str(folder) for folder in start.inside.mpi}
        for path, writable in mounts(start.binds, start.inside):
            if path not in own:  # the module brings it
                words.append("--volume=%s:%s%s" % (path, path, "" if writable else ":ro"))
        return [*words, "--workdir=" + str(start.workdir), *start.argv]


#: Variables that describe this machine or its shell: the container does not get them.
_OF_THE_MACHINE = frozenset(
    [
        *ENVIRONMENT_NAMES,
        *("CONTAINERS_CONF", "HOME", "HOSTNAME", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", "OLDPWD", "PATH", "PWD"),
        *("SHELL", "SHLVL", "TERM", "TMPDIR", "USER", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "_"),
    ]
)

_PODMAN_GPU_FLAGS = {
    "nvidia": ["--device=nvidia.com/gpu=all"],  # Container Device Interface: `nvidia-ctk cdi generate`
    "amd": ["--device=/dev/kfd", "--device=/dev/dri"],
    "intel": ["--device=/dev/dri"],
}

#: A container is not a child of this process and survives a killed podman. So it gets the pipe that closes when the
#: pilot dies, as file descriptor 3, which podman passes on.
_LIFELINE = "HPO_PILOT_LIFELINE_FD"
_WITH_LIFELINE = 'exec 3<"/proc/self/fd/$%s" && export %s=3 && exec "$@"' % (_LIFELINE, _LIFELINE)


class Podman(ContainerRuntime):
    """Podman on an image of its store or of a registry, or on an unpacked root.

    The payload is root inside, which is the user outside. It sees the machine's network and processes, as MPI needs.
    Changes to an unpacked root are discarded.
    """

    name = "podman"
    programs = ("podman",)
    _binds_mpi = True

    def can_run(self, image: str) -> bool:
        """Accepts all images except single files."""
        return super().can_run(image) and not is_file_image(image)

    def wrap(self, start: ContainerStart) -> List[str]:
        """Returns the words of the command, with only the names of variables and not their values."""
        words = [self.program() or self.name, "run", "--rm", "--network=host", "--ipc=host", "--pid=host"]
        words += ["--user=0:0", "--security-opt=label=disable", *self._machine(start.env, start.inside)]
        for path, writable in mounts(start.binds, start.inside):
            if writable or self._binds_mpi or path not in map(str, start.inside.mpi):
                words.append("--volume=%s:%s%s" % (path, path, "" if writable else ":ro"))
        words += ["--env=" + name for name in sorted(start.env) if name not in _OF_THE_MACHINE and name.isidentifier()]
        words += ["--workdir=" + str(start.workdir), "--entrypoint=" + start.argv[0]]
        if _LIFELINE in start.env:
            words = ["/bin/sh", "-c", _WITH_LIFELINE, "sh", *words, "--preserve-fds=1"]
        words += ["--rootfs", start.image + ":O"] if Path(start.image).is_dir() else [start.image]
        return [*words, *start.argv[1:]]

    def _machine(self, env: Mapping[str, str], inside: Inside) -> List[str]:
        """Returns the options for the machine's GPUs and MPI."""
        libraries = library_path(env, inside)
        return _PODMAN_GPU_FLAGS.get(gpu_kind(inside), []) + (
            ["--env=LD_LIBRARY_PATH=" + libraries] if libraries else []
        )


class PodmanHpc(Podman):
    """podman-hpc, whose own flags mount NVIDIA's libraries and the machine's MPI (NERSC/podman-hpc, etc/modules.d)."""

    name = "podman-hpc"
    programs = ("podman-hpc",)
    _binds_mpi = False

    def _machine(self, env: Mapping[str, str], inside: Inside) -> List[str]:
        kind = gpu_kind(inside)
        gpus = ["--gpu"] if kind == "nvidia" else _PODMAN_GPU_FLAGS.get(kind, [])
        return gpus + (["--mpi"] if inside.mpi else [])


#: Runtimes by name, in the order in which `auto` tries them: runtimes without set-up come first.
RUNTIMES: Dict[str, ContainerRuntime] = {
    runtime.name: runtime for runtime in (NoContainer(), Apptainer(), Charliecloud(), Shifter(), PodmanHpc(), Podman())
}


def choose_runtime(name: str, image: str) -> ContainerRuntime:
    """Returns the runtime for an image.

    Args:
        name: one of RUNTIMES, or `auto`: the first runtime that can run the image.
        image: file, folder or URL; empty: none.

    Raises:
        ImageFault: the image is missing or is for another processor.
        TransformationFailure: no runtime of this machine can run the image.
    """
    if not image:
        return RUNTIMES["none"]
    if os.path.isabs(image) and not os.path.exists(image):
        raise ImageFault("there is no image %r on %s: name one that all nodes see" % (image, platform.node()))
    candidates = list(RUNTIMES.values()) if name == "auto" else [RUNTIMES[name]] if name in RUNTIMES else []
    for runtime in candidates:
        if runtime.can_run(image):
            check_architecture(image)
            return runtime
    tried = ", ".join(p for r in RUNTIMES.values() for p in r.programs) if name == "auto" else name
    raise TransformationFailure(
        ExitCode.NO_CONTAINER_RUNTIME,
        "the job needs the image %r, and no container runtime here can run it (tried: %s)" % (image, tried),
    )
