"""What of a job was staged, and how long it waited for that."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo_pilot.transformation.job_report import LIMIT, USER_METADATA
from hpo_pilot.transformation.preparation import Prepared
from hpo_pilot.whole_file import write_whole

log = logging.getLogger(__name__)

#: The metric of a job that had something to stage: how long it waited for that, 0 where all was there already.
STAGE_IN_SECONDS = "stage_in_seconds"


@dataclass(frozen=True)
class Staged:
    """What a job uses on its nodes' own disks.

    Attributes:
        seconds: that it took; None: there was nothing to stage.
        image: as the job names it, where it is staged; else empty.
        image_copy: where it is on the nodes.
        folders: there, with what the job's folder links to.
    """

    seconds: float | None = None
    image: str = ""
    image_copy: str = ""
    folders: tuple[Path, ...] = ()

    def words(self, words: Sequence[str]) -> list[str]:
        """A container runtime's words, made for the image, for its copy."""
        if not self.image:
            return list(words)
        image = self.image.rstrip("/")
        return [self.image_copy + word[len(image) :] if _is_of(word, image) else word for word in words]

    def beside(self, prepared: Prepared) -> Prepared:
        """A job whose container is given what its folder links to."""
        elsewhere = [*prepared.elsewhere, *map(str, self.folders)]
        return Prepared(prepared.folder, prepared.argv, prepared.script, elsewhere)


#: Of a job that had nothing to stage.
NOTHING = Staged()


def _is_of(word: str, image: str) -> bool:
    """The image itself, what is in it, or with the runtime's own marks, as podman's `IMAGE:O`."""
    return word.startswith(image) and word[len(image) :][:1] in ("", "/", ":")


def note_stage_in(folder: Path, seconds: float) -> None:
    """Adds to a job's metadata how long it waited: to its verdict, or that on the first of its points.

    Not by the runner: it travels with the sandbox, and knows of its own process alone.

    Args:
        folder: where the job ran; a runner that is not ours leaves no verdict, and nothing happens.
        seconds: to be noted.
    """
    path = folder / USER_METADATA
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        verdict = said["hpo_pilot"]
        first = verdict["members"][0] if "members" in verdict else verdict
        first["metrics"] = {**(first.get("metrics") or {}), STAGE_IN_SECONDS: round(seconds, 3)}
        text = json.dumps(said)
        if len(text) < LIMIT:
            write_whole(path, text)
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        log.warning("%s does not tell of its staging: %r", path, error)
