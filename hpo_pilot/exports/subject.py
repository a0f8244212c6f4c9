"""What an export is of: the documents of one search, wherever its store is."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hpo_pilot.client.intermediate import IntermediateDocument

if TYPE_CHECKING:
    from hpo_pilot.client.documents import StatusDocument, TrialDocument
    from hpo_pilot.client.search_client import SearchClient


@dataclass(frozen=True)
class Subject:
    """One search.

    Attributes:
        search: how it stands, with its definition.
        trials: all of its trials, by number.
        curves: what trials reported while they ran, by their number.
    """

    search: StatusDocument
    trials: Sequence[TrialDocument]
    curves: Mapping[int, IntermediateDocument] = field(default_factory=dict)

    @classmethod
    def read(cls, client: SearchClient, identity: str, *, curves: bool) -> Subject:
        """Asks for all of a search; `curves`: with what its trials reported while they ran.

        Raises:
            InputError: there is no such search, or it is a family, whose searches are exported one by one.
            TryAgainError: the store or the service is out of reach.
        """
        # The trials last: none of their values is without its trial, and none is told of that the state denies.
        reported = {one["number"]: one for one in client.intermediate(identity)} if curves else {}
        trials = client.trials(identity)
        return cls(client.status(identity), trials, reported)

    @property
    def mark(self) -> str:
        """What tells this search from any other, of the same name in another store too."""
        return f"{self.search['name']} {self.search['created']}"

    @property
    def over(self) -> list[TrialDocument]:
        """The trials that are over, by number."""
        return [trial for trial in self.trials if trial["state"] in ("finished", "failed", "stopped")]

    def counted(self, written: int) -> str:
        """`written` of the search's trials, for people: what else there is, and why it was not written."""
        over = len(self.over)
        there, running = over - written, len(self.trials) - over
        return (
            f"{written} of {len(self.trials)} trials"
            + (f" ({there} were there)" if there else "")
            + (f" ({running} not over: export again later)" if running else "")
        )

    @property
    def metrics(self) -> list[str]:
        """The objectives' names, in order."""
        return [objective["metric"] for objective in self.objectives]

    @property
    def objectives(self) -> list[Any]:
        """The objectives, each a mapping with `metric` and `goal`."""
        objective = self.search["objective"]
        return objective if isinstance(objective, list) else [objective]

    @property
    def space(self) -> dict[str, Any]:
        """The dimensions as the search's definition has them, by name."""
        space: dict[str, Any] = self.search["definition"]["space"]
        return space

    @property
    def folds(self) -> int:
        """How many folds each trial has."""
        k: int = self.search["definition"]["folds"]["k"]
        return k


def figures(value: float | Sequence[float] | None, count: int) -> Sequence[float | None]:
    """A document's `value`, `std` or the like: `count` figures, one for each objective."""
    if value is None:
        return [None] * count
    return value if isinstance(value, Sequence) else [value]


def when(text: str | None) -> datetime | None:
    """A document's time, aware."""
    return None if text is None else datetime.fromisoformat(text)


def utf8(text: str) -> str:
    """A text that is UTF-8; what a payload printed may hold what is none."""
    return text.encode("utf-8", "backslashreplace").decode()


def payload_metrics(trial: TrialDocument) -> dict[str, list[tuple[int, float]]]:
    """The numbers among the metrics that a trial's folds have of their payload: (fold, number) by name."""
    found: dict[str, list[tuple[int, float]]] = {}
    for fold in trial["folds"]:
        for name, value in fold["metrics"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                try:
                    found.setdefault(name, []).append((fold["fold"], float(value)))
                except OverflowError:  # a whole number beyond all floats
                    continue
    return found


def mean_metrics(trial: TrialDocument) -> dict[str, float]:
    """The means of those numbers over the folds that have them."""
    return {name: statistics.fmean(value for _, value in values) for name, values in payload_metrics(trial).items()}


def panda_ids(trial: TrialDocument) -> list[int]:
    """The PandaIDs of a trial's folds, in their order."""
    return [fold["panda_id"] for fold in trial["folds"] if fold["panda_id"] is not None]
