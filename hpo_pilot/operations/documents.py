"""The documents of searches, made from a store: each reads a row of progress, and the best trial if it is shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hpo_pilot.panda.server import bigpanda_link
from hpo_pilot.report.documents import (
    FailureDocument,
    LevelDocument,
    ProgressDocument,
    RunDocument,
    SearchDocument,
    StatusDocument,
    eta_document,
    failure_document,
    progress_document,
    search_document,
    status_document,
    wish_document,
)
from hpo_pilot.report.summary import kind_of, search_gain
from hpo_pilot.report.trial_documents import RecommendationDocument, TrialDocument, add_annotation, best_document
from hpo_pilot.search.progress import ProgressTracker, SearchProgress
from hpo_pilot.search.ranking import Standing, best_confirmed_first, best_remarks, front_of
from hpo_pilot.search.trials import Price, Spent, Trial
from hpo_pilot.steering.status import (
    expected_end,
    is_steered,
    optimizer_words,
    search_notes,
    waiting_task_notes,
    why_not,
)
from hpo_pilot.store import SearchRecord, Store
from hpo_pilot.store.annotations import search_annotations
from hpo_pilot.store.lease import Holder, lease_holder, steerer
from hpo_pilot.store.progress import all_progress, progress_of
from hpo_pilot.store.queries import best_trials, failure_of, first_failures, points_tried, trials_with_folds
from hpo_pilot.store.trial_queries import confirmation_runs, level_counts

if TYPE_CHECKING:
    from hpo_pilot.steering.results import RunResult

#: The most failure reasons in a progress document.
_REASONS = 5

#: Points of the curve of the best value: they fit on a line of a terminal.
_COURSE = 60


def search_documents(
    store: Store, records: Sequence[SearchRecord], holder: Holder | None, *, costs: bool = True
) -> list[SearchDocument]:
    """Returns the documents of searches.

    Args:
        store: their store.
        records: the searches.
        holder: holder of the store's lease.
        costs: with the costs of the best trials, for which pydantic is loaded.
    """
    progress = all_progress(store.engine, [record.id for record in records])
    wanted = {
        number: each.best_for_people
        for number, each in progress.items()
        if not each.front and each.best_for_people is not None
    }
    trials = best_trials(store.engine, wanted)
    notes = search_annotations(store.engine, progress)
    found = []
    for record in records:
        best = best_standing(trials.get(record.id), progress[record.id])
        price, steered = _price(record) if costs else None, is_steered(record, holder)
        document = search_document(record, progress[record.id], best, price, steered=steered)
        add_annotation(document, notes.get(record.id))
        found.append(document)
    return found


def search_status(store: Store, record: SearchRecord, workdir: Path) -> StatusDocument:
    """Returns all that is known of a search, except its trials; `workdir`: the one whose server may have its jobs."""
    progress, price, holder = progress_of(store.engine, record.id), _price(record), lease_holder(store.engine)
    trials = {} if progress.front else best_trials(store.engine, {record.id: progress.best_for_people or 0})
    best, now = best_standing(trials.get(record.id), progress), time.time()
    steered = is_steered(record, holder)
    expected = expected_end(store, record, progress, now, steered=steered is not False)
    failed = None if progress.last_failure is None else failure_of(store.engine, record.id, progress.last_failure)
    document = status_document(
        record,
        progress,
        best,
        price,
        search_gain(record.search, progress, best, price.cost(progress.spent)),
        {
            "eta": None if expected is None else eta_document(expected, now),
            "last_failure": None if failed is None else failure_document(failed),
            "course": _course(progress) if len(record.search.objectives) == 1 else None,
            "wishes": [wish_document(wish) for wish in store.requested_points(record.id)],
            "hours_used": hours_used(record, now),
            "optimizer_state": words_of(store, record, progress, steered=steered is not False),
            "monitor": bigpanda_link(record.server, record.uid, monitor=record.search.panda.monitor),
        },
        steered=steered,
    )
    if not record.state.is_over and (found := steerer(store.engine, record.id)) is not None:
        since = datetime.fromtimestamp(found["since"], UTC).isoformat(timespec="seconds")
        document["steered_by"] = {"mode": found["mode"], "host": found["host"], "pid": found["pid"], "since": since}
    if (levels := record.levels) is not None:
        document["levels"] = [
            cast("LevelDocument", one._asdict()) for one in level_counts(store.engine, record.id, levels)
        ]
    add_annotation(document, search_annotations(store.engine, [record.id]).get(record.id))
    unsteered = why_not(record, holder)
    document["remarks"] = [*([unsteered] if unsteered else []), *search_notes(store, record, progress, workdir)]
    return document


def search_progress(store: Store, record: SearchRecord) -> ProgressDocument:
    """Returns the progress of a search."""
    progress = progress_of(store.engine, record.id)
    document = progress_document(record, progress)
    document["steered"] = is_steered(record, lease_holder(store.engine))
    document["remarks"] = waiting_task_notes(store, record)
    document["failures"] = _failures(store, record) if progress.failed else []
    return document


def best_documents(store: Store, record: SearchRecord) -> TrialDocument | list[TrialDocument] | None:
    """Returns the best trial, or the Pareto front of several objectives; None while there is no figure of merit."""
    progress, search = progress_of(store.engine, record.id), record.search
    price = _price(record)
    if progress.front:
        trials = trials_with_folds(store.engine, record.id, progress.front, without=())
        runs = confirmation_runs(store.engine, record.id, progress.front) if progress.confirmations_over else []
        return [best_document(standing, price, levels=record.levels) for standing in front_of(search, [*trials, *runs])]
    best = best_standing(store.trial(record.id, progress.best_for_people or 0), progress)
    if best is None:
        return None
    remarks = best_remarks(search, best.trial.point, 1 if best.confirmed else progress.ties)
    return {**best_document(best, price, levels=record.levels), "remarks": remarks}


def recommendation_document(store: Store, record: SearchRecord) -> RecommendationDocument | None:
    """Returns the trial that is probably the best; None while there is no figure of merit.

    Raises:
        InputError: the search has several objectives.
    """
    from hpo_pilot.steering.recommendation import modelled_trials, recommend  # noqa: PLC0415 - numerical libraries take a second

    progress, search, number = progress_of(store.engine, record.id), record.search, record.id
    trials = modelled_trials(store, record, progress)
    found = recommend(search, trials, store.earlier_results(number))
    standing = best_confirmed_first(search, trials)
    if standing is None:
        return None
    trial, value, error = standing.trial, standing.value, None  # without a model also confirmation runs decide
    reason = found[0][1].reason if found else "no trial of the highest level is within the limits"
    if found and found[0][1].error is not None:
        trial, each = found[0]
        value, error = search.objective.sign * each.value, each.error
    return {"number": trial.number, "point": trial.point, "value": value, "error": error, "reason": reason}


def run_document(result: RunResult) -> RunDocument:
    """Returns the document of a finished run."""
    record, trials = result.record, result.trials
    in_order = sorted(trials, key=lambda trial: trial.told or 0)
    progress = ProgressTracker(record.search, in_order, spent=Spent(), generations=0, confirmed=trials).progress
    best = None if progress.front else best_confirmed_first(record.search, trials)
    document = search_document(record, progress, best, _price(record), steered=is_steered(record, None))
    return {**document, "report": str(result.report), "remarks": list(result.remarks)}


def words_of(store: Store, record: SearchRecord, progress: SearchProgress, *, steered: bool) -> str:
    """Describes in words the present work of a search's optimizer."""
    return optimizer_words(
        record.search,
        record.state,
        progress,
        lambda limit: points_tried(store.engine, record.id, limit),
        steered=steered,
    )


def hours_used(record: SearchRecord, now: float) -> float | None:
    """Returns the used part of the budget's hours at `now`, in seconds since the epoch; None before the start."""
    if record.clock is None:
        return None
    until = now if record.ended is None else record.ended.timestamp()
    return max(0.0, until - record.clock.timestamp()) / 3600


def _price(record: SearchRecord) -> Price:
    from hpo_pilot.hpc.site_files import known_site, site_price  # noqa: PLC0415 - a list without costs loads no pydantic
    from hpo_pilot.search.sections import Resources  # noqa: PLC0415 - as above

    # Of 1,000 searches the whole definitions take a second.
    definition = record.definition
    return site_price(known_site(definition["site"]["profile"]), Resources.model_validate(definition["resources"]))


def best_standing(trial: Trial | None, progress: SearchProgress) -> Standing | None:
    """Returns the rank of the best trial; None: there is none."""
    if trial is None:
        return None
    if progress.confirmed is not None and progress.confirmed_value is not None:
        return Standing(trial, (progress.confirmed_value,), progress.confirmed_runs, confirmed=True)
    return Standing(trial, trial.values)


def _failures(store: Store, record: SearchRecord) -> list[FailureDocument]:
    """Returns the first failed trial for each reason, since the search last started or resumed."""
    found: dict[str, FailureDocument] = {}
    for failure in first_failures(store.engine, record.id, record.forgiven):
        found.setdefault(kind_of(failure.error), failure_document(failure))
    return list(found.values())[:_REASONS]


def _course(progress: SearchProgress) -> list[float]:
    """Returns the best value after the last result, and after results evenly spaced before it."""
    if not progress.course:
        return []
    first, places = progress.course[0][0], []
    count = min(_COURSE, progress.told - first + 1)
    places = [progress.told - (progress.told - first) * (count - 1 - i) // max(1, count - 1) for i in range(count)]
    best, ahead = [], list(progress.course)
    for place in places:
        while len(ahead) > 1 and ahead[1][0] <= place:
            ahead.pop(0)
        best.append(ahead[0][1])
    return best
