"""The operations on searches: the interface that the local client and the REST client implement."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hpo_pilot.errors import GiveUpError, InputError
from hpo_pilot.report.documents import (
    EventDocument,
    ExaminationDocument,
    FindingDocument,
    IntermediateDocument,
    ProgressDocument,
    RunDocument,
    SearchDocument,
    StatusDocument,
    TrialDocument,
)

#: The store keeps so many characters of a name.
_NAME_LENGTH = 60
_DIGEST_LENGTH = 16


class NotYoursError(InputError):
    """The search is another user's: everybody sees it, its owner and operators change it."""


@dataclass(frozen=True)
class User:
    """Who uses a client.

    Attributes:
        name: owner of what the user registers; also in events.
        changes_all: whether the user may change what others own: operators, and whoever has the store itself.
    """

    name: str
    changes_all: bool = False

    @classmethod
    def named(cls, name: str, *, changes_all: bool = False) -> User:
        """A user with the name as the store keeps it: of two long names that begin alike, the ends still count."""
        if len(name) > _NAME_LENGTH:
            digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_DIGEST_LENGTH]
            name = f"{name[: _NAME_LENGTH - _DIGEST_LENGTH - 1]}~{digest}"
        return cls(name, changes_all)

    def check(self, search: str, owner: str) -> None:
        """Makes sure that the user may change a search.

        Raises:
            NotYoursError: it is another's.
        """
        if not self.changes_all and owner != self.name:
            raise NotYoursError(f"search {search!r} is {owner}'s: only {owner} or an operator may change it")


#: What archives raise that are damaged, or have links to themselves.
_BROKEN = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, KeyError, RecursionError, ValueError)


def unpack_outputs(archives: Mapping[int, Path], destination: Path, trial: int, *, folds: int) -> list[Path]:
    """Unpacks the outputs of a trial into ``destination/trial<N>/[fold<K>/]``.

    Args:
        archives: one by fold.
        destination: a folder; made if need be.
        trial: the trial's number.
        folds: how many folds each trial has.

    Returns:
        The files, in order.

    Raises:
        InputError: the folder cannot be written.
        GiveUpError: an archive is broken.
    """
    files: list[Path] = []
    for fold, archive in sorted(archives.items()):
        folder = destination / f"trial{trial}"
        files += _unpack_archive(archive, folder / f"fold{fold}" if folds > 1 else folder)
    return files


def _unpack_archive(archive: Path, folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as packed:
            names = sorted(member.name for member in packed.getmembers() if member.isfile())
            # The archive was made by a job: nothing in it may land outside the folder.
            packed.extractall(folder, filter="data")
    except _BROKEN as error:
        raise GiveUpError(f"the outputs in {archive.name} cannot be unpacked: {error}") from error
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another --output") from error
    return [folder / name for name in names]


#: Called about twice a second, or whenever something changed.
OnProgress = Callable[[ProgressDocument], None]

#: Called with the PanDA server that is used: its URL, or `embedded`.
OnServer = Callable[[str], None]


class SearchClient(ABC):
    """Searches, wherever their store is: in this process's reach (`LocalClient`) or behind a URL (`RestClient`).

    `identity` is always a search's name, or its number as a text. What changes a search is done when the method
    returns, whole; where it raises, nothing was done, unless the error says that nobody knows. A service takes the
    change up within a second; methods do not wait for that. Results are JSON documents (`hpo_pilot.report.documents`),
    the caller's to keep.

    Every method may raise:
        InputError: there is no such search, it is not the caller's to change, or its state does not allow the call.
        TryAgainError: the store or the service is out of reach; the same call may succeed later.
        GiveUpError: it cannot be done, ever.

    Methods may be called from several threads, one call at a time.
    """

    runner: str
    """What runs the searches, for messages."""

    environment: str
    """In which their payloads run, where they run beside it, for messages."""

    # --- search files ---

    @abstractmethod
    def validate(self, file: Path) -> ExaminationDocument:
        """Checks a search file and registers nothing.

        Whatever is wrong with the file is in the result, with its place; that is no error of the call.
        """

    @abstractmethod
    def rehearse(self, file: Path, *, server: str | None = None) -> dict[str, Any]:
        """The parameters of the first task of a search file, as PanDA would get them; registers and submits nothing.

        Raises:
            InputError: the file is wrong; the message has every mistake with its place, one a line.
        """

    @abstractmethod
    def submit(self, file: Path, *, server: str | None = None) -> SearchDocument:
        """Registers the search of a file, with the payload's files as they are now.

        When it returns, the search is in the store, in state `submitted`, and needs neither file nor folder any more.
        An answer that is lost on the way is asked for again: no search is registered twice.

        Args:
            file: the search file.
            server: the PanDA server to which it is tied, as `run` takes it; None: the first that steers it.

        Raises:
            InputError: the file or its payload is wrong, or there is a search of that name.
        """

    @abstractmethod
    def run(
        self,
        file: Path,
        on_progress: OnProgress,
        *,
        slots: int | None = None,
        server: str | None = None,
        on_server: OnServer = lambda _server: None,
    ) -> RunDocument:
        """Brings the search of a file to its end, or goes on with one that was interrupted, and writes its report.

        Args:
            file: the search file.
            on_progress: called while it runs, and once at its end.
            slots: how many jobs run side by side, where this process runs them.
            server: the PanDA server, where this process submits to it: a URL, or `embedded`; None: where the search's
                tasks are already, else the one that the environment names, else the embedded one.
            on_server: called with that server, before anything is sent there.

        Raises:
            InputError: the file is wrong, or differs from the registered search in more than a larger budget.
            TryAgainError: interrupted; the same call goes on.
        """

    # --- looking ---

    @abstractmethod
    def searches(self) -> list[SearchDocument]:
        """All searches, oldest first."""

    @abstractmethod
    def status(self, identity: str) -> StatusDocument:
        """How a search stands."""

    @abstractmethod
    def how_to_steer(self, identity: str) -> str:
        """What to do where nothing steers a search: a sentence with the commands that would."""

    @abstractmethod
    def watch(self, identity: str) -> Iterator[ProgressDocument]:
        """How far a search is, now and whenever that changes; ends after the document that says it is over.

        A store or service that is away for a while is waited for.
        """

    @abstractmethod
    def trials(self, identity: str, *, logs: bool = True) -> list[TrialDocument]:
        """All trials, by number; `logs` includes the log tails of failed folds."""

    @abstractmethod
    def intermediate(self, identity: str) -> list[IntermediateDocument]:
        """What trials reported while they ran, by number; those that reported nothing are left out."""

    @abstractmethod
    def best(self, identity: str) -> TrialDocument | list[TrialDocument] | None:
        """The best trial; None while none has a figure of merit. Confirmed trials stand before others.

        Of several objectives, the trials of the Pareto front, by the first objective.
        """

    @abstractmethod
    def events(self, identity: str) -> list[EventDocument]:
        """Who did what with the search and when, oldest first."""

    @abstractmethod
    def report(self, identity: str) -> str:
        """The report as one self-contained HTML document."""

    @abstractmethod
    def report_path(self, name: str) -> Path:
        """Where the report of the search of that name is written when nobody says where."""

    @abstractmethod
    def export(self, identity: str, form: str) -> str:
        """A search and its trials in another form.

        Raises:
            InputError: there is no form of that name; the message lists those that are.
        """

    @abstractmethod
    def fetch(self, identity: str, which: str, destination: Path) -> list[Path]:
        """Fetches the kept outputs of a trial into ``destination/trial<N>/[fold<K>/]``.

        Args:
            identity: the search.
            which: `best`, or a trial's number.
            destination: a folder; made if need be.

        Returns:
            The files, in order.

        Raises:
            InputError: there is no such trial, or it has no outputs; the message says which have.
        """

    @abstractmethod
    def doctor(self, server: str | None = None) -> list[FindingDocument]:
        """What there is to work with: of this machine, or of the connection to the service.

        Args:
            server: a PanDA server, at which whatever a search does is tried from this machine; None: none is.

        Raises:
            InputError: `server` is given, and this client is a service's.
        """

    # --- changing ---

    @abstractmethod
    def pause(self, identity: str) -> SearchDocument:
        """No new trials from now on; those that are out end as they end.

        Raises:
            InputError: it is not running.
        """

    @abstractmethod
    def resume(self, identity: str, *, new_payload: bool = False, file: Path | None = None) -> SearchDocument:
        """Lets a paused, stopped or failed search go on.

        Args:
            identity: the search.
            new_payload: send the payload's files anew, for they were mended; a running search goes on with them from
                its next trial.
            file: the search file, to whose folder the payload's path is relative; None: where it was submitted from.

        Raises:
            InputError: it is running or over, or the payload's files are not there.
        """

    @abstractmethod
    def stop(self, identity: str) -> SearchDocument:
        """Has the search's jobs killed and ends it; its results stay.

        Where nothing steers it, a search without jobs is ended at once. Of another one, a client with the store in its
        own reach ends the jobs itself, if their server answers within a minute; else the search is `stopping` until
        something steers it, and the same call tries again.

        Raises:
            InputError: it is over already, or is being stopped.
        """

    @abstractmethod
    def extend(self, identity: str, changes: Mapping[str, float]) -> SearchDocument:
        """Adds to the search's budget, once; one that was over goes on.

        Args:
            identity: the search.
            changes: what to add, of: trials, hours, gpu_hours, failures.

        Raises:
            InputError: an amount does not extend the budget, or the budget has no such limit.
        """

    @abstractmethod
    def retry(self, identity: str, trials: Sequence[int] | None = None) -> SearchDocument:
        """Has the points of failed trials tried again, each as a new trial, ahead of what the optimizer proposes.

        The budget grows by one trial for each; a search that was over goes on, a paused one stays paused. `added` of
        the result says how many go out again. A failed trial is repeated by the new one's `retries`.

        Args:
            identity: the search, or a family, of which every search that has failed trials tries them again.
            trials: the numbers of failed trials; None: all that failed and were not tried again yet.

        Raises:
            InputError: there is none, one of them did not fail, or its point is out again or has a result by now;
                the time or the GPU-hours of the search are spent; it is stopping.
        """

    @abstractmethod
    def add_point(self, identity: str, point: Mapping[str, Any]) -> SearchDocument:
        """Has a point tried, ahead of what the optimizer proposes; the optimizer learns from it as from any other.

        The budget grows by one trial; a search that was over goes on, a paused one stays paused.

        Args:
            identity: the search, or a family, of which every search tries it whose space has it.
            point: values of the parameters that are active at the point, by name.

        Raises:
            InputError: the point is not in the space, with every reason, or the search has it already; the time or
                the GPU-hours of the search are spent; it is stopping.
        """

    @abstractmethod
    def set_parallel(self, identity: str, parallel: int) -> SearchDocument:
        """Changes how many trials are out at once, from now on; trials that are out are left alone.

        A search that is over stays so.

        Raises:
            InputError: less than one.
        """

    # --- end ---

    @abstractmethod
    def close(self) -> None:
        """Lets go of connections; the client is not used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
