"""Fetching the outputs of the best trials."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from hpo_pilot.figures.summary import best_trial, front_of
from hpo_pilot.panda.manager import PandaManager
from hpo_pilot.panda.rucio import download, is_did, missing_client
from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.service.embedded import EmbeddedPanda, running_server
from hpo_pilot.service.registration import trial_of
from hpo_pilot.service.target import connected
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, SearchRecord, Store
from hpo_pilot.store.identity import is_number


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
    elif is_number(which):
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
def fetched(
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
            yield stack.enter_context(connected(server, workdir))
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
