"""Fetching the outputs of the best trials."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpo_pilot.errors import GiveUpError, InputError
from hpo_pilot.panda.manager import PandaManager
from hpo_pilot.report import best_trial
from hpo_pilot.service.embedded import EmbeddedPanda, running_server
from hpo_pilot.service.registration import trial_of
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import SearchRecord, Store
from hpo_pilot.store.store import is_number


def fetch_outputs(store: Store, workdir: WorkDir, record: SearchRecord, which: str, destination: Path) -> list[Path]:
    """Fetches the kept outputs of a trial into ``destination/trial<N>/[fold<K>/]``.

    Args:
        store: the store.
        workdir: the work folder.
        record: the search.
        which: `best`, or a trial's number.
        destination: a folder; made if need be.

    Returns:
        The files, in order.

    Raises:
        InputError: there is no such trial, or it has no outputs; the message says which trials have.
        TryAgainError: the server is out of reach.
    """
    if not record.search.payload.outputs:
        raise InputError(f"search {record.name!r} declares no outputs: name the files under payload.outputs")
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
    files: list[Path] = []
    with _manager(workdir) as manager, tempfile.TemporaryDirectory(dir=workdir.root) as scratch:
        for fold, output in sorted(outputs.items()):
            archive = Path(scratch, f"{fold}.tar.gz")
            manager.fetch(output, archive)
            folder = destination / f"trial{number}"
            files += _unpack(archive, folder / f"fold{fold}" if record.search.folds.k > 1 else folder)
    return files


def _unpack(archive: Path, folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as packed:
            names = sorted(member.name for member in packed.getmembers() if member.isfile())
            # The archive was made by a job: nothing in it may land outside the folder.
            packed.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise GiveUpError(f"the outputs in {archive.name} cannot be unpacked: {error}") from error
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another --output") from error
    return [folder / name for name in names]


@contextlib.contextmanager
def _manager(workdir: WorkDir) -> Iterator[PandaManager]:
    """A manager of the work folder's server, which is started for the moment if it does not run."""
    log = workdir.log("panda-client")
    server = running_server(workdir)
    with contextlib.ExitStack() as stack:
        if server is None:
            panda = EmbeddedPanda(workdir, slots=0)
            panda.start()
            stack.callback(panda.stop)
            server = panda.server
        yield stack.enter_context(contextlib.closing(PandaManager(server, log)))
