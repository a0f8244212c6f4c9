"""What stands around a job's command."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpo_pilot.transformation.container import Inside, choose_runtime


class Wrapping(ABC):
    """Turns a job's command into the one that the pilot starts."""

    @abstractmethod
    def wrap(
        self, argv: Sequence[str], env: Mapping[str, str], binds: Sequence[Path], folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """The command to start in `folder`, and its environment.

        Args:
            argv: the job's command.
            env: what its processes are to find.
            binds: folders that they write.
            folder: where it runs.

        Raises:
            JobFailure: it cannot run so.
            TransformationFailure: its image cannot be run here.
        """


def by_our_python(argv: Sequence[str]) -> list[str]:
    """The command, its runner started by the Python that runs this: the user's `python3` is the payload's business."""
    return [sys.executable, *argv[1:]] if list(argv[:3]) == ["python3", "-I", "-S"] else list(argv)


@dataclass(frozen=True)
class InContainer(Wrapping):
    """The command in a container, if the job has an image, and else as it is.

    Attributes:
        runtime: of containers, or auto.
        image: empty: none.
        inside: what else is there.
    """

    runtime: str
    image: str
    inside: Inside = field(default_factory=Inside)

    def wrap(
        self, argv: Sequence[str], env: Mapping[str, str], binds: Sequence[Path], folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """See Wrapping."""
        if not self.image:
            return by_our_python(argv), dict(env)
        runtime = choose_runtime(self.runtime, self.image)
        return runtime.wrap(argv, self.image, binds, env, folder, self.inside), dict(env)
