"""Podman, and NERSC's podman-hpc around it."""

from pathlib import Path
from typing import List, Mapping, Sequence

from hpo_pilot.transformation.container.runtime import (
    AS_IT_IS,
    ENVIRONMENT_NAMES,
    ContainerRuntime,
    Inside,
    gpu_kind,
    is_file_image,
    library_path,
    mounts,
)

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

_GPU_FLAGS = {
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
        return _GPU_FLAGS.get(gpu_kind(inside), []) + (["--env=LD_LIBRARY_PATH=" + libraries] if libraries else [])


class PodmanHpc(Podman):
    """podman-hpc: its own flags bring NVIDIA's libraries and the machine's MPI (NERSC/podman-hpc, etc/modules.d)."""

    name = "podman-hpc"
    programs = ("podman-hpc",)
    _binds_mpi = False

    def _machine(self, env: Mapping[str, str], inside: Inside) -> List[str]:
        kind = gpu_kind(inside)
        gpus = ["--gpu"] if kind == "nvidia" else _GPU_FLAGS.get(kind, [])
        return gpus + (["--mpi"] if inside.mpi else [])
