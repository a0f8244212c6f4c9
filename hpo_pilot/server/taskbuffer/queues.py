"""The queues that this server knows: those of its queue file, or, without one, whatever name a pilot uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpo_pilot.server.access.watched_file import WatchedFile
from hpo_pilot.server.taskbuffer.queue import Queue, QueueFile

#: What is known of a queue that nobody described: nothing.
UNDESCRIBED = Queue()


class Queues:
    """The queues by their names. Safe to use from any thread."""

    def __init__(self, file: Path | None, storage: Path) -> None:
        """Reads the queue file.

        Args:
            file: JSON, read again when it changes; None: every name is a queue.
            storage: where Pilot 3 of queues without a storage of their own put outputs.

        Raises:
            InputError: the file is missing or makes no sense.
        """
        self._file = None if file is None else WatchedFile(file, _understand, what="queue file")
        #: The folder of queues that have no storage of their own.
        self.common_storage = storage.absolute()

    @property
    def described(self) -> Mapping[str, Queue]:
        """The queues of the file; none without a file."""
        return {} if self._file is None else self._file.content

    def find(self, name: str) -> Queue | None:
        """The queue of this name; None: there is no such queue."""
        if self._file is None:
            return UNDESCRIBED
        return self._file.content.get(name)

    def unknown(self, names: tuple[str, ...]) -> str:
        """Why a task that names these queues could run nowhere; empty: it could, or it names none."""
        known = self.described
        if self._file is None or not names or any(name in known for name in names):
            return ""
        return f"no queue {' or '.join(names)} here: the queue file has {', '.join(sorted(known))}"

    def storages(self) -> list[Path]:
        """The folders into which Pilot 3 move outputs, each once."""
        named = [Path(queue.storage) for queue in self.described.values() if queue.storage]
        return list(dict.fromkeys([*named, self.common_storage]))


def _understand(document: object) -> Mapping[str, Queue]:
    return QueueFile.model_validate(document).queues  # pydantic's ValidationError is a ValueError
