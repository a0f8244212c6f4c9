"""Results of a search: the outcome of a run, its reports, and the outputs of the best trials."""

from __future__ import annotations

import contextlib
import logging
import platform
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from hpo_pilot.advice import Place
from hpo_pilot.errors import GiveUpError, HpoPilotError, InputError, TryAgainError
from hpo_pilot.files import write_whole
from hpo_pilot.hpc.site_files import price_of
from hpo_pilot.panda.manager import PandaManager
from hpo_pilot.panda.rucio import download, is_did, missing_client
from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.report.html import ReportFacts, render_report
from hpo_pilot.report.result_figures import PEER_LIMIT, PeerSearch, drawn_trials, same_question
from hpo_pilot.report.summary import best_trial, front_of, top_trials
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.steering.embedded import EmbeddedPanda, connected_manager, running_server
from hpo_pilot.steering.status import early_stopping_notes, search_notes
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, SearchRecord, SteeringStore, Store, StoreAwayError
from hpo_pilot.store.database import url_without_password
from hpo_pilot.store.queries import spent
from hpo_pilot.store.store import is_search_number

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
        text = render_search_report(store, record, trials, workdir.place(url_without_password(store.engine.url)))
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
    return RunResult(record, best, trials, path, front, search_notes(store, record))


def render_search_report(store: Store, record: SearchRecord, trials: list[Trial], place: Place) -> str:
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
        store=url_without_password(store.engine.url),
        earlier=[str(one) for one in store.earlier_results(record.id)],
        remarks=early_stopping_notes(store, record),
    )
    events = [(event.time, event.who, event.what) for event in store.events(record.id)]
    reports = store.intermediate_values(record.id, drawn_trials(record.search, trials))
    return render_report(record.search, trials, events, facts, reports, _peers(store, record))


def _peers(store: Store, record: SearchRecord) -> list[PeerSearch]:
    """The latest other searches that look for the same in the same space, to compare with."""
    others = [other for other in store.searches() if other.id != record.id]
    alike = [other for other in others if same_question(record.search, other.search)][-PEER_LIMIT:]
    return [PeerSearch(other.name, other.search, store.trials(other.id, folds=False)) for other in alike]


def _versions() -> dict[str, str]:
    packages = ("hpo-pilot", "panda-client", "scikit-optimize", "scikit-learn", "deap", "numpy", "scipy", "sqlalchemy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


#: Longer texts of errors are cut: messages are shown in tables.
_LONGEST = 400


def internal_error(error: Exception) -> str:
    """An error that is none of ours in one line; its traceback is for the log."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return f"internal error: {text.rstrip(': ')}: this is a bug of hpo-pilot: please report it with the service's log"


#: At least this many of the best trials keep their outputs; of a front, from which people choose, more.
_KEPT, _KEPT_OF_FRONT = 3, 10


class KeptOutputs:
    """Which trials of a search have outputs at the server."""

    def __init__(
        self, record: SearchRecord, store: SteeringStore, manager: WorkflowManager, trials: Iterable[Trial]
    ) -> None:
        """Starts from the trials that the store knows."""
        self._record = record
        self._store = store
        self._manager = manager
        several = len(record.search.objectives) > 1
        self._count = max(_KEPT_OF_FRONT if several else _KEPT, record.search.confirm.top)
        self._numbers: set[int] = set()
        if self._declared:
            over = {trial.number for trial in trials if trial.state.is_over}
            self._numbers = over & store.trials_with_outputs(record.id)

    @property
    def _declared(self) -> bool:
        return bool(self._record.search.payload.kept_files)

    def keep_best(self, new: Iterable[int], trials: Mapping[int, Trial]) -> None:
        """Adds trials that are over, and deletes the outputs of those that are not, or no longer, among the best.

        A job may have packed the outputs of several trials: its archive stays while one of them is wanted.

        Raises:
            TryAgainError: the server cannot be reached; what was not deleted is deleted with the next trial.
        """
        if not self._declared or self._manager.manners.keeps_outputs:
            return
        self._numbers |= set(new)
        candidates = [trials[number] for number in self._numbers if trials[number].confirms is None]
        best = top_trials(self._record.search, candidates, self._count)
        if self._record.search.confirm.top:
            # Those that were confirmed come before better ones that may still be, should the search be extended.
            confirmations = [trial for trial in trials.values() if trial.confirms is not None]
            best += top_trials(self._record.search, candidates + confirmations, self._count)
        gone = sorted(self._numbers - {trial.number for trial in best})
        if gone:
            for archive in self._store.unwanted_archives(self._record.id, gone):
                self._manager.discard(archive)
            self._store.discard_outputs(self._record.id, gone)
            self._numbers -= set(gone)


def trial_of(store: Store, record: SearchRecord, number: int) -> Trial:
    """The trial of that number.

    Raises:
        InputError: there is none.
    """
    trials = store.trials(record.id)
    for trial in trials:
        if trial.number == number:
            return trial
    finished = sum(1 for trial in trials if trial.state is TrialState.FINISHED)
    raise InputError(
        f"search {record.name!r} has no trial {number}; it has {len(trials)}, of which {finished} finished"
    )


def kept_outputs(store: Store, record: SearchRecord, which: str) -> tuple[int, dict[int, str]]:
    """What is kept of a trial's outputs.

    Args:
        store: the store.
        record: the search.
        which: `best`, or a trial's number.

    Returns:
        The trial's number, and by fold the name of the archive at the PanDA server, followed by a slash and the folder
        inside where a job packed those of several trials.

    Raises:
        InputError: there is no such trial, or it has no outputs; the message says which trials have.
    """
    if not record.search.payload.kept_files:
        raise InputError(f"search {record.name!r} declares no outputs: name the files under payload.outputs")
    if which == "best" and len(record.search.objectives) > 1:
        numbers = [standing.trial.number for standing in front_of(record.search, store.trials(record.id))]
        front = ", ".join(str(number) for number in numbers if store.outputs(record.id, number))
        there = f"trials {front} of the front have outputs" if front else "no trial of the front has outputs yet"
        raise InputError(f"search {record.name!r} has several objectives: name a trial instead of `best`; {there}")
    if which == "best":
        trial = best_trial(record.search, store.trials(record.id))
        if trial is None:
            raise InputError(f"search {record.name!r} has no finished trial yet")
        number = trial.number
    elif is_search_number(which):
        number = trial_of(store, record, int(which)).number
    else:
        raise InputError(f"fetch what? `best` or a trial's number, not {which!r}")
    outputs = store.outputs(record.id, number)
    if not outputs:
        kept = [trial.number for trial in store.trials(record.id) if store.outputs(record.id, trial.number)]
        there = f"those of trials {', '.join(map(str, kept))} are kept" if kept else "none are kept yet"
        raise InputError(f"trial {number} of search {record.name!r} has no kept outputs; {there}")
    return number, outputs


@contextlib.contextmanager
def fetched_outputs(
    workdir: WorkDir, outputs: Mapping[int, str], *, server: str | None = None, start: bool = True
) -> Iterator[dict[int, Path]]:
    """Fetches kept outputs for the length of a block.

    Args:
        workdir: the work folder.
        outputs: names at the PanDA server by fold, as `kept_outputs` gives them.
        server: the PanDA server that the search is tied to; None: the embedded one.
        start: whether an embedded server that does not run is started for the moment.

    Returns:
        The archives by fold; they are gone after the block.

    Raises:
        InputError: they are in Rucio, and there is no Rucio client here; the message has the commands to give.
        TryAgainError: the server is out of reach.
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
    """Leaves in an archive what is in one of its folders, by the names that it has there."""
    whole = archive.rename(archive.with_name("whole.tar.gz"))
    try:
        with tarfile.open(whole) as packed, tarfile.open(archive, "w:gz", compresslevel=1) as own:
            for member in packed:
                if member.isfile() and member.name.startswith(f"{folder}/"):
                    inside = member.replace(name=member.name.removeprefix(f"{folder}/"), deep=False)
                    inside.pax_headers = {}  # they repeat a long name as it was
                    own.addfile(inside, packed.extractfile(member))
    except (tarfile.TarError, EOFError) as error:
        raise GiveUpError(f"the packed outputs cannot be read: {error}") from error


@contextlib.contextmanager
def _manager(workdir: WorkDir, server: str | None, start: bool) -> Iterator[WorkflowManager]:
    """A manager of the search's server; the work folder's is started for the moment where `start` says so."""
    log = workdir.log("panda-client")
    with contextlib.ExitStack() as stack:
        if server not in (None, EMBEDDED):
            yield stack.enter_context(connected_manager(server, workdir))
            return
        here = running_server(workdir)
        if here is None and not start:
            raise TryAgainError("the embedded PanDA server, which has the outputs, does not answer now: try again")
        if here is None:
            panda = EmbeddedPanda(workdir, slots=0)
            panda.start()
            stack.callback(panda.stop)
            here = panda.server
        yield stack.enter_context(contextlib.closing(PandaManager(here, log)))
