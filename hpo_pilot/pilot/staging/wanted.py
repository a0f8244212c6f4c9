"""What a job reads that other jobs read too: its image, its inputs, and the large files of its sandbox."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.pilot.staging.source import Source, Sources, TooLarge
from hpo_pilot.pilot.wrapping import InContainer
from hpo_pilot.transformation.container import choose_runtime
from hpo_pilot.transformation.payload_document import NAME as PAYLOAD_DOCUMENT
from hpo_pilot.transformation.stage_in import STAGED_FILE

_SMALL = 1 << 20  # bytes that are read from shared storage as quickly as a step starts


@dataclass(frozen=True)
class Wanted:
    """One of them; `link`: in the job's folder; None: it is the image."""

    source: Source
    link: Path | None


class WantedFiles:
    """Those of a job."""

    def __init__(self, sources: Sources, is_over: Callable[[], bool], remark: Callable[[str], None]) -> None:
        """Finds nothing yet.

        Args:
            sources: of the allocation.
            is_over: says whether the job is wanted no more.
            remark: tells the log of what is not staged.
        """
        self._sources, self._is_over, self._remark = sources, is_over, remark
        self.found: list[Wanted] = []

    def add_image(self, container: InContainer, root: Path) -> None:
        """Its image, if that is a file or folder that can be copied. `root`: the job's folder.

        Raises:
            TransformationFailure: it cannot be run here.
        """
        path = Path(container.image)
        runtime = choose_runtime(container.runtime, container.image)
        if not path.is_absolute() or not path.exists() or path.resolve() == Path("/"):
            return  # a registry's, or none
        if runtime.makes_mount_points(container.image, [root]):
            self._remark(f"{path} is not staged: this {runtime.name} makes folders in the image for each job")
            return
        self._add(path, None)

    def add_inputs(self, root: Path, folder: Path) -> None:
        """What was brought as an input, and is not the job's alone. `folder`: where the job runs, below `root`."""
        mine = os.path.realpath(root)
        for link in _listed(folder):
            if link.is_symlink():
                is_shared = not Path(os.path.realpath(link)).is_relative_to(mine)
            else:
                is_shared = link.is_file() and link.stat().st_nlink > 1
            if is_shared:
                self._add(link, link)

    def add_large(self, root: Path, folder: Path, large: Sequence[Path]) -> None:
        """Files of its sandbox that it does not write itself."""
        written = _written(folder)
        for link in large:
            if written.isdisjoint(link.relative_to(root).parts):
                self._add(link, link)

    def _add(self, path: Path, link: Path | None) -> None:
        try:
            source = self._sources.find(path, self._is_over)
        except (OSError, TooLarge) as error:
            self._remark(f"{os.path.realpath(path)} is not staged: {error}")
            return
        if source.size >= _SMALL:
            self.found.append(Wanted(source, link))


def _listed(folder: Path) -> list[Path]:
    """A job's inputs."""
    try:
        names = json.loads((folder / STAGED_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [folder / str(name) for name in names]


def _written(folder: Path) -> set[str]:
    """Names of what the payload itself writes."""
    try:
        document = json.loads((folder / PAYLOAD_DOCUMENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return set()
    return {Path(name).name for kind in ("outputs", "checkpoint") for name in document.get(kind) or ()}
