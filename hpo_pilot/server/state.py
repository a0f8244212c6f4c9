"""The state of a running server, which all of its calls share."""

from __future__ import annotations

import secrets
from pathlib import Path

from hpo_pilot.server.attempts import HeartbeatWatch
from hpo_pilot.server.database import Database, Transaction
from hpo_pilot.server.file_store import Folder
from hpo_pilot.server.pilots import KnownPilots, WaitingClients, WaitingPilots
from hpo_pilot.server.queues import Queues, find_output
from hpo_pilot.server.reports import Reports
from hpo_pilot.server.tokens import BIGMON_KEY, Capabilities, Tokens, read_secret


class ServerState:
    """Database, files, keys, queues, and the callers that wait.

    Attributes:
        cache: sandboxes and checkpoints.
        storage: outputs and logs.
        reading_key: the key of paths below ``/bigmon/``.
        pilots: pilots that wait for jobs.
        known_pilots: pilots that asked for jobs in the last hour.
        clients: clients that wait for changes to tasks.
        reports: records the reports of pilots.
        watch: ends attempts whose pilots are silent.
    """

    def __init__(
        self,
        database: Database,
        files: Path,
        tokens: Tokens,
        heartbeat_timeout: float,
        retention_days: float,
        queue_file: Path | None,
        *,
        further: bool = False,
    ) -> None:
        """Opens the folders and reads the keys and the queues; nothing runs yet.

        Args:
            database: open.
            files: the folder of sandboxes and outputs.
            tokens: verifies tokens and identifies callers.
            heartbeat_timeout: seconds of silence that make a job lost.
            retention_days: time for which ended tasks, their outputs and unused sandboxes are kept; 0: for ever.
            queue_file: JSON file of the queues; None: any name is a queue.
            further: whether this is a further process of a server; the first one does all that is done once.

        Raises:
            InputError: the folder cannot be written, or the queue file is not valid.
        """
        self.database = database
        self.tokens = tokens
        self.retention_days = retention_days
        self.further = further
        self.cache = Folder(files / "cache", clean=not further)
        self.storage = Folder(files / "storage", clean=not further)
        self.capabilities = Capabilities(files / "points.key")
        self.reading_key = read_secret(files / BIGMON_KEY, lambda: secrets.token_urlsafe().encode()).strip()
        self.queues = Queues(queue_file, files / "grid")
        self.pilots = WaitingPilots()
        self.known_pilots = KnownPilots()
        self.clients = WaitingClients()
        self.reports = Reports(database)
        self.watch = HeartbeatWatch(database, heartbeat_timeout)
        database.announce = self._announce

    def _announce(self, transaction: Transaction) -> None:
        if activated := +transaction.activated_at:
            self.pilots.announce(activated)
        if transaction.users:
            self.clients.announce(transaction.users)

    async def follow(self) -> None:
        """Learns of jobs and changes by other processes until cancelled."""
        # A job that another process has sent may be lost sooner than those known to the watch.
        await self.database.follow(lambda: self.watch.job_sent(0.0))

    def find_file(self, name: str) -> Path | None:
        """Returns the path of an output or log, here or where a Pilot 3 moved it; None: there is none."""
        return self.storage.find(name) or find_output(self.queues, name)

    def close_waiting(self) -> None:
        """Answers every long poll now, so that the process can end."""
        self.pilots.close()
        self.clients.close()
