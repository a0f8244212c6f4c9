"""Queue files: from YAML to the JSON that the embedded server reads, or to everything that is wrong with the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpo_pilot.config.problem import Problem, SearchFileError
from hpo_pilot.config.yaml_document import Document, read_document
from hpo_pilot.search.misfit import Misfit
from hpo_pilot.search.misfit import Path as Place
from hpo_pilot.search.wording import misfits_of
from hpo_pilot.server.taskbuffer.queue import Queue, QueueFile
from hpo_pilot.whole_file import write_whole


class QueueFileError(SearchFileError):
    """A queue file is wrong; says everything that is, one problem per line, in the order of the file."""


def load_queues(path: Path) -> QueueFile:
    """The queues of the file at `path`.

    Raises:
        QueueFileError: it cannot be read or is wrong; its `problems` are all mistakes with their places.
    """
    document = read_document(path)
    problems = list(document.problems)
    if not problems:
        problems = _problems(document)
    if problems:
        raise QueueFileError(problems)
    return QueueFile.model_validate(document.value)


def write_queues(queues: QueueFile, path: Path) -> None:
    """Writes what `python -m hpo_pilot.server --queues` reads: JSON, for its owner alone, whole or not at all."""
    write_whole(path, json.dumps(queues.model_dump(mode="json", exclude_defaults=True), indent=1), 0o600)


def _problems(document: Document) -> list[Problem]:
    data = document.value
    if not isinstance(data, Mapping):
        return [document.problem((), "must be a mapping with the key queues", "see deploy/queues.yaml")]
    found = _misfits(dict(data), (), QueueFile)
    queues = data.get("queues")
    if isinstance(queues, Mapping):
        # Each queue by itself: a wrong one hides nothing in the others.
        found = [misfit for misfit in found if len(misfit.path) < 2]
        for name, queue in queues.items():
            found += _misfits(queue, ("queues", name), Queue)
            found += _misfits({"queues": {name: {}}}, (), QueueFile)  # its name
    return [document.problem(misfit.path, misfit.message, misfit.hint, at_key=misfit.at_key) for misfit in found]


def _misfits(data: Any, under: Place, model: type[Queue | QueueFile]) -> list[Misfit]:
    try:
        model.model_validate(data)
    except ValidationError as error:
        return [
            Misfit(under + misfit.path, misfit.message, misfit.hint, at_key=misfit.at_key)
            for misfit in misfits_of(error, data, model)
        ]
    return []
