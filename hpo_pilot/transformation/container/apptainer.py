"""Apptainer, and Singularity, as which it began."""

from pathlib import Path
from typing import List, Mapping, Sequence

from hpo_pilot.transformation.container.runtime import (
    AS_IT_IS,
    TMP,
    ContainerRuntime,
    Inside,
    gpu_kind,
    library_path,
    mounts,
    own_tmp,
    without_environment,
)

_GPU_FLAGS = {"nvidia": ["--nv"], "amd": ["--rocm"]}


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
        words = [*without_environment(env), program, "exec", *_GPU_FLAGS.get(gpu_kind(inside), [])]
        if not inside.shares_tmp:
            # --contain would have a small /tmp, and none of the devices of the network between nodes.
            words += ["--bind", "%s:%s" % (own_tmp(workdir, [path for path, _ in bound]), TMP)]
        for path, writable in bound:
            words += ["--bind", "%s:%s%s" % (path, path, "" if writable else ":ro")]
        libraries = library_path(env, inside)
        if libraries:  # it passes all variables on but this one
            words += ["--env", "LD_LIBRARY_PATH=" + libraries]
        return [*words, "--pwd", str(workdir), image, *argv]
