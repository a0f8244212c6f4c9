"""Searches and trials as values again, from their documents: for figures and data frames, wherever the store is."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.report.documents import IntermediateDocument, StatusDocument, TrialDocument
from hpo_pilot.report.result_figures import PEER_LIMIT, FigureData, PeerSearch, Reports, same_question
from hpo_pilot.search import EarlyStop, FoldResult, Search, Trial, TrialState
from hpo_pilot.search.limits import read_stored
from hpo_pilot.web.operations import SearchClient


def figure_data_of(
    client: SearchClient, identity: str, *, keys: Collection[str] = ("curves", "convergence")
) -> FigureData:
    """What is drawn of a search.

    Args:
        client: where it is.
        identity: its name or number.
        keys: the kinds of figures that are wanted; what only others need is not asked for.

    Raises:
        InputError: it is a family, which has several searches; and what the client raises.
    """
    status = client.status(identity)
    search = search_of(status)
    return FigureData(
        search,
        trials_of(client.trials(identity, logs=False)),
        reports_of(client.intermediate(identity)) if "curves" in keys else {},
        peers_of(client, status, search) if "convergence" in keys else (),
        time_of(status["ended"]),
    )


def search_of(status: StatusDocument) -> Search:
    """The search of its document.

    Raises:
        InputError: it is a family.
    """
    if "segments" in status:
        names = ", ".join(str(segment["name"]) for segment in status["segments"])
        raise InputError(f"{status['name']} is a family of searches; name one of them: {names}")
    return read_stored(Search, status["definition"])


def peers_of(client: SearchClient, status: StatusDocument, search: Search) -> list[PeerSearch]:
    """The latest other searches that look for the same in the same space and have a result."""
    peers: list[PeerSearch] = []
    for other in reversed(client.searches()):
        if len(peers) == PEER_LIMIT:
            break
        if other["id"] == status["id"] or other["best"] is None or other["objective"] != status["objective"]:
            continue
        definition = search_of(client.status(str(other["id"])))
        if same_question(search, definition):
            peers.append(PeerSearch(other["name"], definition, trials_of(client.trials(str(other["id"]), logs=False))))
    return peers[::-1]


def trials_of(documents: Sequence[TrialDocument]) -> list[Trial]:
    """The trials of their documents; what documents leave out is left out."""
    return [_trial(document) for document in documents]


def reports_of(documents: Sequence[IntermediateDocument]) -> Reports:
    """What trials reported, from its documents; infinity is no number."""
    return {
        document["number"]: {
            fold["fold"]: [(step, math.inf if value is None else value) for step, value in fold["values"]]
            for fold in document["folds"]
        }
        for document in documents
    }


def time_of(text: str | None) -> datetime | None:
    """A time of a document."""
    return None if text is None else datetime.fromisoformat(text)


def _trial(document: TrialDocument) -> Trial:
    value, values = _one_or_more(document["value"])
    std, stds = _one_or_more(document["std"])
    stopped = document["stopped"]
    stop = None
    if stopped is not None:
        projected, several = _one_or_more(stopped["projected"])
        guess = several if several is not None else None if projected is None else (projected,)
        stop = EarlyStop(0, "", stopped["step"], stopped["value"], guess)
    return Trial(
        number=document["number"],
        generation=document["generation"],
        point=document["point"],
        state=TrialState(document["state"]),
        value=value,
        std=std,
        folds=tuple(_fold(dict(fold)) for fold in document["folds"]),
        error=document["error"],
        seed=document["seed"],
        confirms=document["confirms"],
        retries=document["retries"],
        told=document["told"],
        submitted=time_of(document["submitted"]),
        started=time_of(document["started"]),
        ended=time_of(document["ended"]),
        values=values,
        stds=stds,
        stop=stop,
    )


def _fold(document: dict[str, Any]) -> FoldResult:
    value, values = _one_or_more(document["value"])
    return FoldResult(
        fold=document["fold"],
        value=value,
        error=document["error"],
        attempt=document["attempt"],
        seconds=document["seconds"],
        metrics=document["metrics"],
        metadata=document.get("metadata"),
        panda_id=document["panda_id"],
        node=document["node"],
        started=time_of(document["started"]),
        ended=time_of(document["ended"]),
        values=values,
    )


def _one_or_more(figure: float | list[float] | None) -> tuple[float | None, tuple[float, ...] | None]:
    """A figure as values have it: the first, and all of several objectives."""
    if isinstance(figure, list):
        return (figure[0] if figure else None), tuple(figure)
    return figure, None
