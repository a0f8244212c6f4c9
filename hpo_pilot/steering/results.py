"""Results of a search: the outcome of a run, its reports, and the outputs of the best trials."""

from __future__ import annotations

import contextlib
import logging
import platform
import tarfile
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from hpo_pilot.advice import Place
from hpo_pilot.errors import GiveUpError, HpoPilotError, InputError, TryAgainError
from hpo_pilot.files import write_whole
from hpo_pilot.hpc.site_files import price_of
from hpo_pilot.panda.rucio import download, is_did, missing_client
from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.report.figure_data import SAMPLE, FigureReader
from hpo_pilot.report.frames import trials_frame
from hpo_pilot.report.html import FAILURE_LIMIT, VERSION_TRIALS, ReportFacts, render_report, row_limit
from hpo_pilot.report.summary import failure_groups
from hpo_pilot.report.trial_documents import trial_documents
from hpo_pilot.search import Search, Trial
from hpo_pilot.search.progress import SearchProgress
from hpo_pilot.search.ranking import front_of, ranked_by_folds, ranking
from hpo_pilot.steering.embedded import EmbeddedPanda, connected_manager, manager_at, running_server, started_manager
from hpo_pilot.steering.status import early_stopping_notes, fold_notes, search_notes
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, SearchRecord, SteeringStore, Store, StoreAwayError
from hpo_pilot.store.database import url_without_password
from hpo_pilot.store.progress import progress_of
from hpo_pilot.store.queries import trials_with_folds
from hpo_pilot.store.steering_store import NumberedTrials
from hpo_pilot.store.store import is_search_number
from hpo_pilot.store.trial_queries import best_numbers, failed_trials, repeated_attempts, sampled_trials
from hpo_pilot.transformation.sandbox import UnsafeArchive, bounded, opened
from hpo_pilot.transformation.transformation import UNPACKED_LIMIT

if TYPE_CHECKING:
    import pandas as pd
    from sqlalchemy import Engine

log = logging.getLogger(__name__)


class ReportFailedError(HpoPilotError):
    """The report of a search cannot be made. The search and its results are unchanged."""


class Trials(list[Trial]):
    """The trials of a search, by number; prints as one line."""

    def __init__(self, search: Search, trials: Iterable[Trial]) -> None:
        """Takes the trials of a search."""
        super().__init__(trials)
        self._search = search

    def dataframe(self) -> pd.DataFrame:
        """Returns a data frame with one row per trial; see `hpo_pilot.report.frames.trials_frame`.

        Raises:
            InputError: pandas is not installed.
        """
        return trials_frame(self._search, list(trial_documents(self._search, self, logs=False)))

    def __repr__(self) -> str:
        counts = Counter(trial.state.value for trial in self)
        states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
        return f"<{len(self)} trials{f': {states}' if states else ''}; .dataframe() has a row for each>"


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a search; it prints as one line.

    Attributes:
        best: the best trial; None without a finished trial and with several objectives.
        trials: all trials; `trials.dataframe()` has them as a data frame of pandas.
        front: the Pareto front in the order of the first objective; with one objective only the best trial.
        report: path of the HTML report.
        remarks: notes on problems and on earlier results.
    """

    record: SearchRecord
    best: Trial | None
    trials: Trials
    report: Path
    front: list[Trial] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        metrics = ", ".join(objective.metric for objective in self.record.search.objectives)
        found = f"{len(self.front)} trials on the front of {metrics}" if self.front else "no result"
        if self.best is not None:
            found = f"best {metrics}: {self.best.value:.6g} (trial {self.best.number})"
        state = self.record.state.value
        return f"<search {self.record.name!r}; {state}; {len(self.trials)} trials; {found}; report: {self.report}>"


class ReportWriter:
    """Writes the report of every search that ends while the service runs."""

    def __init__(self, store: SteeringStore, workdir: WorkDir) -> None:
        """Starts with the searches that are not over."""
        self._store = store
        self._workdir = workdir
        self._alive = set(store.search_states())

    def write_new(self) -> bool:
        """Writes the reports of searches that have ended since the last call. Returns False: the service goes on."""
        alive = set(self._store.search_states())
        for number in self._alive - alive:
            self._write(number)
        self._alive = alive
        return False

    def _write(self, number: int) -> None:
        """Writes a report. An error is logged and added to the events of the search; the service goes on."""
        try:
            write_report(self._store, self._workdir, self._store.search(number))
        except StoreAwayError:
            raise  # The service waits for the store, and then calls again.
        except HpoPilotError as error:
            log.warning("%s", error)
            self._note(number, str(error))
        except Exception as error:
            log.exception("the report of search %d", number, extra={"search": number})
            self._note(number, f"the report could not be made: {internal_error(error)}")

    def _note(self, number: int, text: str) -> None:
        try:
            self._store.record(number, [], [], events=[text])
        except Exception:  # The disk may be full, or the search deleted: write the other reports.
            log.exception("search %d: an event could not be noted: %s", number, text)


def result_of(store: Store, workdir: WorkDir, record: SearchRecord) -> RunResult:
    """Writes the report of a search and returns its result so far; errors are those of `write_report`."""
    path = write_report(store, workdir, record)
    trials = store.trials(record.id)
    front = [standing.trial for standing in front_of(record.search, trials)]
    best = front[0] if front and len(record.search.objectives) == 1 else None
    notes = search_notes(store, record, progress_of(store.engine, record.id), workdir.root)
    return RunResult(record, best, Trials(record.search, trials), path, front, notes)


def write_report(store: Store, workdir: WorkDir, record: SearchRecord) -> Path:
    """Writes the report of a search to the work folder and returns its path.

    Raises:
        TryAgainError: the report cannot be written to the work folder.
        ReportFailedError: the report cannot be made.
    """
    path = workdir.report(record.name)
    try:
        text = render_search_report(store, record, workdir.place(url_without_password(store.engine.url)))
    except HpoPilotError:
        raise
    except Exception as error:
        log.exception("the report of search %s", record.name, extra={"search": record.name})
        raise ReportFailedError(
            f"the search is {record.state.value}, but its report could not be made: {internal_error(error)}; "
            f"`hpo-pilot best {record.name}` and `hpo-pilot trials {record.name}` show its results"
        ) from error
    try:
        workdir.make_private(path.parent)
        write_whole(path, text)
    except OSError as error:
        raise TryAgainError(
            f"the search is {record.state.value}, but its report cannot be written to {path}: {error.strerror}; "
            f"`hpo-pilot report {record.name} -o FILE` writes it elsewhere"
        ) from error
    return path


#: Trials in the figure of slots of a search whose figures show a sample. It needs all their folds.
_SLOT_TRIALS = 5_000

#: Trials of a group of failures that are searched for a log.
_LOGS = 10


def render_search_report(store: Store, record: SearchRecord, place: Place) -> str:
    """Returns the HTML report of a search; `place`: work folder and store for the commands in it."""
    engine = store.engine
    progress = progress_of(engine, record.id)
    facts = ReportFacts(
        started=record.started,
        ended=record.ended,
        state=record.state.value,
        message=record.message,
        command=place.command("run", record.source),
        place=place,
        versions=_versions(),
        cost=price_of(record.search).cost(progress.spent),
        repeated=repeated_attempts(engine, record.id),
        store=url_without_password(engine.url),
        earlier=[str(one) for one in store.earlier_results(record.id)],
        remarks=[*fold_notes(record, progress), *early_stopping_notes(store, record, progress)],
    )
    events = [(event.time, event.who, event.what) for event in store.events(record.id)]
    slot_trials = SAMPLE if progress.trials <= SAMPLE else _SLOT_TRIALS
    figures = FigureReader(store, record, progress, lambda: store.searches()[::-1], slot_trials, record.ended)
    trials = _shown_trials(engine, record, progress)
    return render_report(record.search, progress, trials, events, facts, figures.data)


def _shown_trials(engine: Engine, record: SearchRecord, progress: SearchProgress) -> list[Trial]:
    """Returns the trials that the tables of a report need."""
    number, last, rows = record.id, progress.trials, row_limit(record.search)
    failed = failed_trials(engine, number)
    wanted = {*best_numbers(engine, number, record.search, rows // 2), *range(last - rows + 1, last + 1)}
    wanted.update(trial.number for trial in failed[-rows:])
    wanted = {trial.number for trial in sampled_trials(engine, number, progress, wanted, VERSION_TRIALS)}
    for group in failure_groups(failed)[:FAILURE_LIMIT]:
        wanted.update(group.trials[:_LOGS])
    shown = [*failed, *trials_with_folds(engine, number, wanted, without=())]
    return list({trial.number: trial for trial in shown}.values())


def _versions() -> dict[str, str]:
    packages = ("hpo-pilot", "panda-client", "scikit-optimize", "scikit-learn", "deap", "numpy", "scipy", "sqlalchemy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


#: Error texts are cut to this length, because tables show them.
_LONGEST = 400


def internal_error(error: Exception) -> str:
    """Returns an unexpected error in one line; the log has its traceback."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return f"internal error: {text.rstrip(': ')}: this is a bug of hpo-pilot: please report it with the service's log"


# --- outputs of the best trials ---

#: Least number of best trials that keep their outputs; more where users choose from a Pareto front, or a model chooses
#: the trials to confirm: then also this number for each of these.
_KEPT, _KEPT_FOR_CHOICE, _KEPT_PER_CONFIRMED = 3, 10, 5


class KeptOutputs:
    """The trials of a search that have outputs at the server."""

    def __init__(
        self, record: SearchRecord, store: SteeringStore, manager: WorkflowManager, trials: NumberedTrials
    ) -> None:
        """Loads the trials with outputs from the store; `trials`: all trials."""
        self._record = record
        self._store = store
        self._manager = manager
        top, several = record.search.confirm.top, len(record.search.objectives) > 1
        self._count = max(_KEPT_FOR_CHOICE if several or top else _KEPT, _KEPT_PER_CONFIRMED * top)
        self._numbers: set[int] = set()
        if self._are_discarded:
            found = trials.fetch(store.trials_with_outputs(record.id))
            self._numbers = {trial.number for trial in found if trial.state.is_over}

    @property
    def _are_discarded(self) -> bool:
        """Whether there are outputs, and those of most trials are deleted."""
        return bool(self._record.search.payload.kept_files) and not self._manager.policy.keeps_outputs

    def keep_best(self, new: Iterable[int], trials: NumberedTrials) -> None:
        """Adds trials that are over, and deletes the outputs of all trials that are not among the best.

        An archive with outputs of several trials stays while one of them is kept.

        Args:
            new: numbers of the trials.
            trials: all trials, by number.
        """
        if not self._are_discarded:
            return
        self._numbers |= set(new)
        gone = sorted(self._numbers - self._best(self._numbers, trials))
        if gone:
            try:
                for archive in self._store.unwanted_archives(self._record.id, gone):
                    self._manager.discard(archive)
            except StoreAwayError:
                raise
            except TryAgainError as error:  # results matter more; the next call deletes them
                log.warning("search %s: outputs are not deleted yet: %s", self._record.name, error)
                return
            self._store.discard_outputs(self._record.id, gone)
            self._numbers -= set(gone)

    def lasting(self, trials: NumberedTrials) -> set[int] | None:
        """Returns the trials that have outputs and keep them; None where that is no reason to prefer any.

        It asks the store: after a restart the answer must be the same.
        """
        if not self._are_discarded:
            return None
        return self._best(self._store.trials_with_outputs(self._record.id), trials)

    def _best(self, numbers: Collection[int], trials: NumberedTrials) -> set[int]:
        """Returns the numbers, among these, of the trials that keep their outputs."""
        candidates = [trial for trial in trials.fetch(numbers) if trial.confirms is None]
        kept = {trial.number for trial in ranked_by_folds(self._record.search, candidates)[: self._count]}
        if self._record.search.confirm.top:
            # Confirmed trials keep their outputs too, even if an extended search finds better trials later.
            confirmations = [trial for trial in trials.values() if trial.confirms is not None]
            confirmed_first = ranking(self._record.search, candidates + confirmations)[: self._count]
            kept |= {standing.trial.number for standing in confirmed_first}
        return kept


def kept_outputs(store: Store, record: SearchRecord, which: str) -> tuple[int, dict[int, str]]:
    """Returns the names of a trial's kept outputs.

    Args:
        store: the store.
        record: the search.
        which: `best`, or a trial's number.

    Returns:
        The trial's number, and by fold the name of the archive at the PanDA server. If the archive has outputs of
        several trials, a slash and the folder inside the archive follow.

    Raises:
        InputError: there is no such trial, or it has no outputs; the message lists the trials that have.
    """
    if not record.search.payload.kept_files:
        raise InputError(f"search {record.name!r} declares no outputs: name the files under payload.outputs")
    progress = progress_of(store.engine, record.id)
    if which == "best" and len(record.search.objectives) > 1:
        kept_numbers = store.trials_with_outputs(record.id)
        front = ", ".join(str(number) for number in progress.front if number in kept_numbers)
        there = f"trials {front} of the front have outputs" if front else "no trial of the front has outputs yet"
        raise InputError(f"search {record.name!r} has several objectives: name a trial instead of `best`; {there}")
    if which == "best":
        if progress.best_for_people is None:
            raise InputError(f"search {record.name!r} has no finished trial")
        number = progress.best_for_people
    elif not is_search_number(which):
        raise InputError(f"{which!r} names no trial: give `best` or the number of a trial")
    elif not 1 <= (number := int(which)) <= progress.trials:
        raise InputError(
            f"search {record.name!r} has no trial {number}; it has {progress.trials} trials "
            f"({progress.finished} finished)"
        )
    outputs = store.outputs(record.id, number)
    if not outputs:
        kept = sorted(store.trials_with_outputs(record.id))
        there = f"those of trials {', '.join(map(str, kept))} are kept" if kept else "none are kept yet"
        raise InputError(f"trial {number} of search {record.name!r} has no kept outputs; {there}")
    return number, outputs


@contextlib.contextmanager
def fetched_outputs(
    workdir: WorkDir, outputs: Mapping[int, str], *, server: str | None = None, start: bool = True
) -> Iterator[dict[int, Path]]:
    """Downloads kept outputs for the duration of a block.

    Args:
        workdir: the work folder.
        outputs: names at the PanDA server by fold, from `kept_outputs`.
        server: the PanDA server of the search; None: the embedded one.
        start: whether to start an embedded server for the download if none runs.

    Returns:
        The archives by fold. They are deleted after the block.

    Raises:
        InputError: the outputs are in Rucio, and there is no Rucio client here; the message has the commands.
        TryAgainError: the server does not answer.
    """
    dids = {fold: name.partition("/")[0] for fold, name in outputs.items() if is_did(name)}
    if dids and (missing := missing_client(dids, Path())):
        raise missing
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=workdir.root))
        fetch = download if len(dids) == len(outputs) else stack.enter_context(_manager(workdir, server, start)).fetch
        archives = {}
        for fold, output in sorted(outputs.items()):
            archives[fold] = Path(scratch, f"{fold}.tar.gz")
            name, _, folder = output.partition("/")
            fetch(name, archives[fold])
            if folder:
                _keep_only(folder, archives[fold])
        yield archives


def _keep_only(folder: str, archive: Path) -> None:
    """Reduces an archive to the files of one folder, with names relative to that folder."""
    whole = archive.rename(archive.with_name("whole.tar.gz"))
    try:
        # A job made it.
        with opened(str(whole), UNPACKED_LIMIT) as packed, tarfile.open(archive, "w:gz", compresslevel=1) as own:
            for member in bounded(packed, UNPACKED_LIMIT):
                if member.isfile() and member.name.startswith(f"{folder}/"):
                    inside = member.replace(name=member.name.removeprefix(f"{folder}/"), deep=False)
                    inside.pax_headers = {}  # they repeat a long name as it was
                    own.addfile(inside, packed.extractfile(member))
    except UnsafeArchive as error:
        raise GiveUpError(f"the packed outputs cannot be read: {error}") from error


def _manager(workdir: WorkDir, server: str | None, start: bool) -> AbstractContextManager[WorkflowManager]:
    """Returns a manager of the search's server for a block; `start`: starts the embedded server if none runs."""
    if server not in (None, EMBEDDED):
        return connected_manager(server, workdir)
    here = running_server(workdir)
    if here is not None:
        return contextlib.closing(manager_at(here, workdir))
    if not start:
        raise TryAgainError("the embedded PanDA server, which has the outputs, does not answer now: try again")
    return started_manager(EmbeddedPanda(workdir, slots=0), workdir)
