"""What came of a search: the result of a run, and the reports that a run or a service writes."""

from __future__ import annotations

import logging
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from hpo_pilot.advice import Place
from hpo_pilot.config.site_power import price_of
from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.figures.learning_curves import drawn_trials
from hpo_pilot.figures.subject import PEER_LIMIT, Peer, same_question
from hpo_pilot.figures.summary import front_of
from hpo_pilot.report import ReportFacts
from hpo_pilot.report.render import render_report
from hpo_pilot.search import Trial
from hpo_pilot.service.internal_error import internal_error
from hpo_pilot.service.remarks import nothing_to_stop, remarks_of
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import SearchRecord, SteeringStore, Store, StoreAwayError
from hpo_pilot.store.engine import shown
from hpo_pilot.store.tallies import spent
from hpo_pilot.whole_file import write_whole

log = logging.getLogger(__name__)


class ReportFailedError(HpoPilotError):
    """A search's report cannot be made; the search and its results are as they were."""


@dataclass(frozen=True)
class RunResult:
    """What came of a search.

    Attributes:
        best: the best trial; None where there is none, and with several objectives.
        front: the Pareto front, by the first objective; with one objective the best trial alone.
        report: the HTML report.
        remarks: what else there is to say of it.
    """

    record: SearchRecord
    best: Trial | None
    trials: list[Trial]
    report: Path
    front: list[Trial] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class ReportWriter:
    """Writes the report of every search that ends while the service runs."""

    def __init__(self, store: SteeringStore, workdir: WorkDir) -> None:
        """Writes those of searches that are not over yet."""
        self._store = store
        self._workdir = workdir
        self._alive = set(store.search_states())

    def write_new(self) -> bool:
        """Writes the reports that are due; False, for the service goes on."""
        alive = set(self._store.search_states())
        for number in self._alive - alive:
            self._write(number)
        self._alive = alive
        return False

    def _write(self, number: int) -> None:
        """Writes a report; whatever hinders that is logged and among the search's events, and ends nothing."""
        try:
            result_of(self._store, self._workdir, self._store.search(number))
        except StoreAwayError:
            raise  # nothing could be read or noted: the service waits for the store, and then this is asked again
        except HpoPilotError as error:
            log.warning("%s", error)
            self._note(number, str(error))
        except Exception as error:
            log.exception("the report of search %d", number, extra={"search": number})
            self._note(number, f"the report could not be made: {internal_error(error)}")

    def _note(self, number: int, text: str) -> None:
        try:
            self._store.record(number, [], [], events=[text])
        except Exception:  # the disk may be full, or the search gone: that is no reason to leave the others alone
            log.exception("search %d: an event could not be noted: %s", number, text)


def result_of(store: Store, workdir: WorkDir, record: SearchRecord) -> RunResult:
    """A search's result so far, with its report written.

    Raises:
        TryAgainError: the report cannot be written to its place.
        ReportFailedError: it cannot be made.
    """
    trials = store.trials(record.id)
    path = workdir.report(record.name)
    try:
        text = render(store, record, trials, workdir.place(shown(store.engine.url)))
    except HpoPilotError:
        raise
    except Exception as error:
        log.exception("the report of search %s", record.name, extra={"search": record.name})
        raise ReportFailedError(
            f"the search is {record.state.value}, but its report could not be made: {internal_error(error)}; "
            f"`hpo-pilot best {record.name}` and `hpo-pilot trials {record.name}` show what came of it"
        ) from error
    try:
        workdir.make_private(path.parent)
        write_whole(path, text)
    except OSError as error:
        raise TryAgainError(
            f"the search is {record.state.value}, but its report cannot be written to {path}: {error.strerror}; "
            f"`hpo-pilot report {record.name} -o FILE` writes it elsewhere"
        ) from error
    front = [standing.trial for standing in front_of(record.search, trials)]
    best = front[0] if front and len(record.search.objectives) == 1 else None
    return RunResult(record, best, trials, path, front, remarks_of(store, record))


def render(store: Store, record: SearchRecord, trials: list[Trial], place: Place) -> str:
    """The search's HTML report; `place`: where commands in it find the search."""
    cost = price_of(record.search).cost(spent(store.engine, record.id))
    facts = ReportFacts(
        started=record.started,
        ended=record.ended,
        state=record.state.value,
        message=record.message,
        command=place.command("run", record.source),
        place=place,
        versions=_versions(),
        cost=cost,
        store=shown(store.engine.url),
        earlier=[str(one) for one in store.earlier_results(record.id)],
        remarks=nothing_to_stop(store, record),
    )
    events = [(event.time, event.who, event.what) for event in store.events(record.id)]
    reports = store.intermediate_values(record.id, drawn_trials(record.search, trials))
    return render_report(record.search, trials, events, facts, reports, _peers(store, record))


def _peers(store: Store, record: SearchRecord) -> list[Peer]:
    """The latest other searches that look for the same in the same space, to compare with."""
    others = [other for other in store.searches() if other.id != record.id]
    alike = [other for other in others if same_question(record.search, other.search)][-PEER_LIMIT:]
    return [Peer(other.name, other.search, store.trials(other.id, folds=False)) for other in alike]


def _versions() -> dict[str, str]:
    packages = ("hpo-pilot", "panda-client", "scikit-optimize", "scikit-learn", "deap", "numpy", "scipy", "sqlalchemy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
