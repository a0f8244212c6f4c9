"""Shifter, as NERSC has it."""

from pathlib import Path
from typing import List, Mapping, Sequence

from hpo_pilot.transformation.container.runtime import (
    AS_IT_IS,
    ContainerRuntime,
    Inside,
    gpu_kind,
    is_file_image,
    mounts,
    without_environment,
)


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
