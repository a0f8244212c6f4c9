"""A search without payload for a worker: it asks for trials, reports values and tells results."""

from __future__ import annotations

import functools
import logging
import math
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.report.documents import AskedDocument, ToldDocument

if TYPE_CHECKING:
    from hpo_pilot.operations.client import SearchClient

R = TypeVar("R")

log = logging.getLogger(__name__)

#: The default lease of a trial, in seconds.
LEASE = 3600.0

#: The longest time that one call waits for a trial, and for which a server or service may be away, in seconds.
LONGEST_CALL = 20.0
_PATIENCE = 300.0
_PAUSE = 1.0


@dataclass(frozen=True)
class AskedTrial:
    """A trial that this client has; `attempt` counts the clients that got it, `lease` is in seconds."""

    number: int
    point: Mapping[str, Any]
    seed: int
    attempt: int
    lease: float


class AskedSearch:
    """A search without payload, for one worker. A call is repeated for five minutes while nothing answers."""

    def __init__(self, client: SearchClient, identity: str) -> None:
        """Asks nothing yet."""
        self._client, self._identity = client, identity
        self._node = socket.gethostname()

    def ask(self, *, wait: float = math.inf, lease: float = LEASE) -> AskedTrial | None:
        """Returns the next trial; None: the search has ended, or is stopping.

        Args:
            wait: seconds to wait for a trial.
            lease: seconds without `report` or `tell` after which another client gets the trial.

        Raises:
            TryAgainError: no trial was free in this time, or nothing answers.
            InputError: the search has a payload, or is another user's.
        """
        found: dict[str, Any] = {**self.asked(wait, lease)}
        if found["trial"] is not None:
            return AskedTrial(found["trial"], found["point"], found["seed"], found["attempt"], found["lease"])
        if found["over"]:
            return None
        raise TryAgainError(f"no trial of search {self._identity!r} is free now: {found['message']}")

    def asked(self, wait: float, lease: float) -> AskedDocument:
        """Returns the answer to `SearchClient.ask`, which has no trial if none was free for `wait` seconds."""
        end, key = time.monotonic() + wait, secrets.token_urlsafe(12)
        left = wait
        while True:
            how: dict[str, Any] = {"wait": min(left, LONGEST_CALL), "lease": lease, "node": self._node, "key": key}
            found = self._patiently(functools.partial(self._client.ask, self._identity, **how), min(left, _PATIENCE))
            left = max(0.0, end - time.monotonic())
            if found["trial"] is not None or found["over"] or not left:
                return found

    def report(self, trial: AskedTrial | int, value: float, step: int) -> bool:
        """Reports an intermediate value and renews the lease; True: end the trial, without `tell`, and ask for another.

        Raises:
            InputError: there is no such trial.
            TryAgainError: nothing answers.
        """
        return self.told(trial, [value], step=step)["stop"]

    def tell(
        self,
        trial: AskedTrial | int,
        value: float | Sequence[float] | None = None,
        *,
        failed: str = "",
        metrics: Mapping[str, float] | None = None,
    ) -> ToldDocument:
        """Tells the result of a trial. The first one counts; the same one again is no error.

        Args:
            trial: the trial, or its number.
            value: the figure of merit, or one for each objective; NaN or infinity: the trial failed.
            failed: or why there is none.
            metrics: further figures; NaN and infinity are left out.

        Raises:
            InputError: another result counts already, which the message has; a value or the trial is missing.
            TryAgainError: nothing answers: tell it again.
        """
        is_number = not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0  # torch's have no dimension
        values: Any = [] if value is None else [value] if is_number else value
        try:
            numbers = {name: float(one) for name, one in (metrics or {}).items()}
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"metrics: each is one number: {error}") from error
        finite = {name: one for name, one in numbers.items() if math.isfinite(one)}  # JSON has no NaN
        return self.told(trial, values, failed=failed, metrics=finite)

    def told(self, trial: AskedTrial | int, values: Sequence[float], **more: Any) -> ToldDocument:
        """Returns the answer to `SearchClient.tell`; arguments as there."""
        number, attempt = (trial.number, trial.attempt) if isinstance(trial, AskedTrial) else (trial, None)
        finite = [float(value) if math.isfinite(value) else None for value in values]  # JSON has no NaN
        said = {"values": finite, "attempt": attempt, "node": self._node, **more}
        return self._patiently(lambda: self._client.tell(self._identity, number, **said), _PATIENCE)

    def _patiently(self, call: Callable[[], R], patience: float) -> R:
        end, said = time.monotonic() + patience, False
        while True:
            try:
                return call()
            except TryAgainError as error:
                if time.monotonic() >= end:
                    raise
                if not said:
                    log.warning("%s; trying again for %.0f s", error, patience)
                said = True
                time.sleep(min(_PAUSE, patience))
