"""What a report says beside the search and its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hpo_pilot.advice import Place
from hpo_pilot.search.cost import NO_COST, Cost


@dataclass(frozen=True)
class ReportFacts:
    """How a search ran: what its trials do not tell.

    Attributes:
        started: when the search began; None if it has not.
        ended: when it ended; None while it runs.
        state: the search's state, in the word that commands show.
        message: why it is in that state, for people; empty where there is nothing to say.
        command: the command line that ran it, to copy.
        place: where commands in its texts find the search.
        versions: software by name, for example ``{"hpo-pilot": "0.1.0", "Python": "3.11.7"}``.
        cost: what all jobs took, attempts that were lost or repeated included.
        store: where the search is kept, for people; without passwords.
        earlier: what the search has from each of the earlier ones, in words.
        remarks: what a reader should know, in words.
    """

    started: datetime | None = None
    ended: datetime | None = None
    state: str = ""
    message: str = ""
    command: str = ""
    place: Place = field(default_factory=Place)
    versions: Mapping[str, str] = field(default_factory=dict)
    cost: Cost = NO_COST
    store: str = ""
    earlier: Sequence[str] = ()
    remarks: Sequence[str] = ()
