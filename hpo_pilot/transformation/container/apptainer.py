"""Apptainer, and Singularity, as which it began."""

from pathlib import Path
from typing import List, Mapping, Sequence

from hpo_pilot.transformation.container.runtime import (
    AS_IT_IS,
    ContainerRuntime,
    Inside,
    gpu_kind,
    library_path,
    mounts,
)

_GPU_FLAGS = {"nvidia": ["--nv"], "amd": ["--rocm"]}


class Apptainer(ContainerRuntime):
    """Apptainer or Singularity: .sif files, registries, unpacked roots. The environment passes by itself."""

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
        words = [self.program() or self.name, "exec", *_GPU_FLAGS.get(gpu_kind(inside), [])]
        for path, writable in mounts(binds, inside):
            words += ["--bind", "%s:%s%s" % (path, path, "" if writable else ":ro")]
        libraries = library_path(env, inside)
        if libraries:  # it passes all variables on but this one
            words += ["--env", "LD_LIBRARY_PATH=" + libraries]
        return [*words, "--pwd", str(workdir), image, *argv]
