"""The operations on searches: the interface that the local client and the REST client implement."""

from __future__ import annotations

import functools
import gzip
import hashlib
import inspect
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast, get_type_hints

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

#: Characters of a user name that the store keeps, and of the digest that replaces the end of a longer one.
_NAME_LENGTH = 60
_DIGEST_LENGTH = 16


class NotYoursError(InputError):
    """The search belongs to another user: everybody may see it, only its owner and operators may change it."""


@dataclass(frozen=True)
class User:
    """The user of a client.

    Attributes:
        name: owner of the searches that the user registers; also recorded in events.
        changes_all: whether the user may change searches of others, as operators and users of a local store may.
    """

    name: str
    changes_all: bool = False

    @classmethod
    def named(cls, name: str, *, changes_all: bool = False) -> User:
        """Returns a user whose name fits the store; long names with the same beginning stay different."""
        if len(name) > _NAME_LENGTH:
            digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_DIGEST_LENGTH]
            name = f"{name[: _NAME_LENGTH - _DIGEST_LENGTH - 1]}~{digest}"
        return cls(name, changes_all)

    def check(self, search: str, owner: str) -> None:
        """Checks that the user may change a search.

        Raises:
            NotYoursError: the search belongs to another user.
        """
        if not self.changes_all and owner != self.name:
            raise NotYoursError(f"search {search!r} is {owner}'s: only {owner} or an operator may change it")


#: Errors that a damaged archive raises, or one with links to itself.
_BROKEN = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, KeyError, RecursionError, ValueError)


def unpack_outputs(archives: Mapping[int, Path], destination: Path, trial: int, *, folds: int) -> list[Path]:
    """Unpacks the outputs of a trial into ``destination/trial<N>/[fold<K>/]``.

    Args:
        archives: archive of each fold.
        destination: folder; created if missing.
        trial: number of the trial.
        folds: number of folds of each trial.

    Returns:
        The unpacked files, in order.

    Raises:
        InputError: the folder cannot be written.
        GiveUpError: an archive is damaged.
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
            # A job made the archive: no member may be written outside the folder.
            packed.extractall(folder, filter="data")
    except _BROKEN as error:
        raise GiveUpError(f"the outputs in {archive.name} cannot be unpacked: {error}") from error
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another --output") from error
    return [folder / name for name in names]


_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Operation:
    """A plain question or change, declared with `rest` on a method of `SearchClient`.

    The route of the REST API, the methods of both clients and, with a `button`, the form of the monitor are derived
    from it. The parameters of the method are the placeholders of the path and the fields of the JSON body. A local
    client makes a change by the function of the same name in `hpo_pilot.steering.operations`.

    Attributes:
        function: the method as it is written: its name, parameters and docstring.
        method: HTTP method.
        path: path below ``/api/v1``, such as ``searches/{identity}/pause``.
        keyed: the call adds trials. It carries an idempotency key, so that a repeated call is done once.
        reached: states of a search after the call. If its answer is lost, the client looks at the search, and repeats
            the call only in another state. Empty: a repeated call changes nothing more.
        button: label of the button in the monitor, and title of its form; empty: the monitor has no derived form.
        done: message of the monitor after the change.
    """

    function: Callable[..., Any]
    method: str
    path: str
    keyed: bool
    reached: tuple[str, ...]
    button: str
    done: str

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.function.__name__

    @property
    def key(self) -> str:
        """Last part of the path, also of the address of the form."""
        return self.path.rpartition("/")[2]

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (self.function.__doc__ or "").partition("\n")[0]

    @property
    def answer(self) -> Any:
        """Type of the answer."""
        return get_type_hints(self.function)["return"]

    def fields(self) -> dict[str, tuple[Any, Any]]:
        """Returns type and default of each parameter after `identity`; the default is `...` if there is none."""
        kinds = get_type_hints(self.function)
        return {
            name: (kinds[name], ... if parameter.default is parameter.empty else parameter.default)
            for name, parameter in inspect.signature(self.function).parameters.items()
            if name not in ("self", "identity")
        }


def rest(
    method: str, path: str, *, keyed: bool = False, reached: tuple[str, ...] = (), button: str = "", done: str = ""
) -> Callable[[_F], _F]:
    """Declares a plain question or change, and gives the method its body; see `Operation`."""

    def declare(function: _F) -> _F:
        operation = Operation(function, method, path, keyed, reached, button, done)
        signature = inspect.signature(function)

        @functools.wraps(function)
        def perform(client: SearchClient, *given: Any, **named: Any) -> Any:
            bound = signature.bind(client, *given, **named)
            bound.apply_defaults()
            return client.perform(operation, dict(list(bound.arguments.items())[1:]))

        perform.operation = operation  # type: ignore[attr-defined]
        return cast(_F, perform)

    return declare


def operations() -> list[Operation]:
    """Returns the declared operations, in the order of `SearchClient`."""
    return [member.operation for member in vars(SearchClient).values() if hasattr(member, "operation")]


#: Called after every change, or about twice a second.
OnProgress = Callable[[ProgressDocument], None]

#: Called with the PanDA server of the search: its URL, or `embedded`.
OnServer = Callable[[str], None]


class SearchClient(ABC):
    """All operations on searches, for a store that this process can open (`LocalClient`) or a service (`RestClient`).

    `identity` is the name of a search, or its number as text. When a method that changes a search returns, the change
    is complete. When it raises, nothing has changed, unless the error says that the outcome is unknown. The steering
    service reacts to a change within a second; methods do not wait for it. Results are JSON documents
    (`hpo_pilot.report.documents`); the caller may keep and modify them.

    Every method may raise:
        InputError: the search does not exist, the caller may not change it, or its state does not allow the call.
        TryAgainError: the store or the service is out of reach; the same call may succeed later.
        GiveUpError: the call can never succeed.

    Several threads may use a client, one call at a time.
    """

    runner: str
    """Name of the process that runs the searches, for messages."""

    environment: str
    """Name of the environment in which local payloads run, for messages."""

    # --- search files ---

    @abstractmethod
    def validate(self, file: Path) -> ExaminationDocument:
        """Checks a search file and registers nothing.

        The result lists all mistakes of the file, each with its place; the call does not raise for them.
        """

    @abstractmethod
    def rehearse(self, file: Path, *, server: str | None = None) -> dict[str, Any]:
        """Returns the task parameters of the first generation, as PanDA would get them; registers and submits nothing.

        Raises:
            InputError: the file is wrong; the message lists all mistakes with their places, one per line.
        """

    @abstractmethod
    def submit(self, file: Path, *, server: str | None = None) -> SearchDocument:
        """Registers the search of a file, with the present files of its payload.

        When the method returns, the search is in the store in state `submitted`; its file and its payload folder are
        no longer needed. The call is repeated if its answer is lost; the search is still registered only once.

        Args:
            file: the search file.
            server: the PanDA server of the search, as for `run`; None: the one that the steering service uses.

        Raises:
            InputError: the file or its payload is wrong, or a search of that name exists.
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
        """Runs the search of a file to its end and writes its report; continues an interrupted search.

        Args:
            file: the search file.
            on_progress: called while the search runs, and once at its end.
            slots: number of jobs at once, if this process runs them.
            server: the PanDA server, if this process submits to it: a URL, or `embedded`. None: the server that already
                has tasks of the search, else the one that the environment names, else the embedded one.
            on_server: called with that server before the first request to it.

        Raises:
            InputError: the file is wrong, or it differs from the registered search in more than a larger budget.
            TryAgainError: interrupted; the same call continues the search.
        """

    # --- looking ---

    @rest("GET", "searches")
    def searches(
        self,
        text: str = "",
        owner: str = "",
        tag: str = "",
        state: str = "",
        limit: int = 0,
        page: int = 1,
        costs: bool = True,
    ) -> list[SearchDocument]:
        """Returns all searches, or those that match the filters, oldest first; every user sees all of them.

        Args:
            text: a part of the name, the note or a tag.
            owner: the owner.
            tag: a tag.
            state: a state, or `active` or `over`.
            limit: most searches of a page; 0: all.
            page: the page, from 1; the first one has the newest searches.
            costs: with the costs of the best trials.

        Raises:
            InputError: there is no such state.
        """

    @rest("GET", "searches/{identity}")
    def status(self, identity: str) -> StatusDocument:
        """Returns all that is known of a search, except its trials."""

    @abstractmethod
    def how_to_steer(self, identity: str) -> str:
        """Returns advice for a search that no process steers: a sentence with the commands that would steer it."""

    @abstractmethod
    def watch(self, identity: str) -> Iterator[ProgressDocument]:
        """Yields the progress of a search, at once and after every change; ends when the search is over.

        It waits up to two minutes for a store or service that is out of reach.
        """

    @abstractmethod
    def trials(
        self, identity: str, *, after: int = 0, limit: int | None = None, logs: bool = True
    ) -> Iterator[TrialDocument]:
        """Yields trials by number; reads them in pages, so that few are in memory.

        Errors may also be raised by the iterator. A trial may change between two pages.

        Args:
            identity: the search.
            after: only trials with larger numbers.
            limit: most trials; None: all.
            logs: with the log tails of folds.
        """

    @abstractmethod
    def intermediate(self, identity: str) -> list[IntermediateDocument]:
        """Returns the intermediate values of trials, by number, without trials that reported none."""

    @rest("GET", "searches/{identity}/best")
    def best(self, identity: str) -> TrialDocument | list[TrialDocument] | None:
        """Returns the best trial, or the Pareto front of several objectives; null while no trial has a figure of merit.

        Confirmed trials rank before others. The trials of a front are sorted by the first objective.
        """

    @rest("GET", "searches/{identity}/events")
    def events(self, identity: str) -> list[EventDocument]:
        """Returns the events of a search, oldest first: time, user and action."""

    @abstractmethod
    def report(self, identity: str) -> str:
        """Returns the report as one self-contained HTML document."""

    @abstractmethod
    def report_path(self, name: str) -> Path:
        """Returns the default path of a search's report."""

    @abstractmethod
    def export(self, identity: str, form: str) -> Iterator[str]:
        """Yields the text of a search and its trials in another format, in parts; the iterator may raise errors too.

        Raises:
            InputError: the format is unknown; the message lists the known ones.
        """

    @abstractmethod
    def fetch(self, identity: str, which: str, destination: Path) -> list[Path]:
        """Fetches the kept outputs of a trial into ``destination/trial<N>/[fold<K>/]``.

        Args:
            identity: the search.
            which: `best`, or the number of a trial.
            destination: folder; created if missing.

        Returns:
            The files, in order.

        Raises:
            InputError: the trial does not exist or has no outputs; the message lists the trials that have some.
        """

    @abstractmethod
    def doctor(self, server: str | None = None) -> list[FindingDocument]:
        """Examines this machine, or the connection to the service.

        Args:
            server: PanDA server to try from this machine, with every call that a search makes; None: no server.

        Raises:
            InputError: `server` is given to a client of a service.
        """

    # --- changing ---

    @rest(
        "POST",
        "searches/{identity}/pause",
        reached=("paused",),
        button="Pause",
        done="Paused: no new trials start until you resume the search.",
    )
    def pause(self, identity: str) -> SearchDocument:
        """Pauses a search: no new trials start; running trials continue to their end.

        Raises:
            InputError: the search is not running.
        """

    @abstractmethod
    def resume(self, identity: str, *, new_payload: bool = False, file: Path | None = None) -> SearchDocument:
        """Continues a paused, stopped or failed search.

        Args:
            identity: the search.
            new_payload: send corrected files of the payload; a running search uses them from its next trial on.
            file: the search file; the path of the payload is relative to its folder. None: the file that was submitted.

        Raises:
            InputError: the search is running or over, or the files of the payload are missing.
        """

    @rest("POST", "searches/{identity}/stop", reached=("stopping", "stopped"))
    def stop(self, identity: str) -> SearchDocument:
        """Stops a search and kills its jobs; its results stay.

        If no process steers the search and it has no jobs, it stops at once. If it has jobs, a local client kills them
        itself, provided that their server answers within a minute. Otherwise the search stays `stopping` until a
        process steers it; the same call tries again.

        Raises:
            InputError: the search is over, or is being stopped.
        """

    @abstractmethod
    def extend(self, identity: str, changes: Mapping[str, float]) -> SearchDocument:
        """Adds to the budget of a search, once; a search that was over continues.

        Args:
            identity: the search.
            changes: amounts to add, by limit: trials, hours, gpu_hours, core_hours, failures.

        Raises:
            InputError: an amount does not extend the budget, or the budget has no such limit.
        """

    @rest("POST", "searches/{identity}/retry", keyed=True)
    def retry(self, identity: str, trials: Sequence[int] | None = None) -> SearchDocument:
        """Tries the points of failed trials again, each as a new trial, before new points of the optimizer.

        The budget grows by one trial for each. A search that was over continues; a paused search stays paused. In the
        result `added` is the number of new trials. `retries` of a new trial is the number of the failed one.

        Args:
            identity: the search, or a family: then every search of it retries its failed trials.
            trials: numbers of failed trials; None: all failed trials that have not been retried.

        Raises:
            InputError: there is no such trial, it did not fail, or its point is running again or has a result;
                the hours or GPU-hours of the search are spent; the search is stopping.
        """

    @rest("POST", "searches/{identity}/points", keyed=True)
    def add_point(self, identity: str, point: Mapping[str, Any]) -> SearchDocument:
        """Tries a given point before new points of the optimizer, which learns from it as from any other.

        The budget grows by one trial. A search that was over continues; a paused search stays paused.

        Args:
            identity: the search, or a family: then every search whose space contains the point tries it.
            point: values of the parameters that are active at the point, by name.

        Raises:
            InputError: the point is outside the space (the message has all reasons), or the search has it already;
                the hours or GPU-hours of the search are spent; the search is stopping.
        """

    @rest(
        "POST",
        "searches/{identity}/parallel",
        button="Parallel trials",
        done="The number of parallel trials was changed.",
    )
    def set_parallel(self, identity: str, parallel: int) -> SearchDocument:
        """Changes the number of trials at once; running trials are not affected.

        A search that is over stays over.

        Raises:
            InputError: `parallel` is below one.
        """

    @rest("POST", "searches/{identity}/note")
    def annotate(
        self, identity: str, note: str | None = None, tags: Sequence[str] | None = None, trial: int = 0
    ) -> SearchDocument:
        """Writes a note and tags on a search, or on one of its trials.

        Args:
            identity: the search, or a family: then every search of it.
            note: the note; empty: none; None: unchanged.
            tags: all tags; None: unchanged.
            trial: number of the trial; 0: the search itself.

        Raises:
            InputError: there is no such trial; the note or a tag is too long.
        """

    # --- declared operations, and end ---

    @abstractmethod
    def perform(self, operation: Operation, fields: Mapping[str, Any], *, key: str | None = None) -> Any:
        """Performs a declared operation and returns the document of its answer.

        Args:
            operation: the operation.
            fields: its arguments by name, `identity` included.
            key: idempotency key of a keyed operation; None: the client chooses one, if it needs one.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes connections; the client must not be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
