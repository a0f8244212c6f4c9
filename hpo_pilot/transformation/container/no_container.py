"""No container at all."""

from pathlib import Path
from typing import List, Mapping, Sequence

from hpo_pilot.transformation.container.runtime import AS_IT_IS, ContainerRuntime, Inside


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
