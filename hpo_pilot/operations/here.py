"""A store that this process opens, with its work folder and the user: where operations run in process."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.operations.families import family_document, family_progress, for_each
from hpo_pilot.report.documents import ProgressDocument, SearchDocument
from hpo_pilot.steering.workdir import WorkDir, nickname

if TYPE_CHECKING:
    from hpo_pilot.steering.registration import PackedSearch
    from hpo_pilot.steering.search_file import Examination
    from hpo_pilot.store import SearchRecord, Store

R = TypeVar("R")

#: Characters of a user name that the store keeps, and of the digest that replaces the end of a longer one.
_NAME_LENGTH = 60
_DIGEST_LENGTH = 16

#: Held from the check of a user's quotas until its searches are open, so that calls side by side cannot pass them.
_ADMISSION = threading.Lock()

#: Seconds between two looks at a watched search.
_LOOK_SECONDS = 0.5


class NotYoursError(InputError):
    """The search belongs to another user: everybody may see it, only its owner and operators may change it."""


@dataclass(frozen=True)
class User:
    """A user.

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


class NoStoreError(InputError):
    """The store does not exist yet."""


class Here:
    """A store and a work folder. Methods import what they need, so that the command line starts quickly."""

    environment = "the environment active here"
    """Name of the environment in which local payloads run, for messages."""

    def __init__(
        self,
        workdir: str | Path | None = None,
        store: str | None = None,
        *,
        user: User | None = None,
        opened: Store | None = None,
    ) -> None:
        """Opens nothing: the store is opened at the first call that needs it.

        Args:
            workdir: the work folder; default ./hpo-pilot.
            store: SQLAlchemy URL of another store.
            user: the user; default: the user of this process, who may change all searches.
            opened: the store, if the caller has opened it and will close it.
        """
        self.workdir = workdir
        self.url = store
        self._user = user
        self._store = opened
        #: Whether the store was opened here. A service that answers for its users must not steer their searches:
        #: another process may begin to at any moment.
        self.owns_store = opened is None

    def close(self) -> None:
        """Closes the store, unless it was given."""
        if self.owns_store and self._store is not None:
            self._store.close()
            self._store = None

    @property
    def user(self) -> User:
        """The user."""
        return self._user or User(nickname(), changes_all=True)

    @property
    def folder(self) -> WorkDir:
        """The work folder, which need not exist."""
        return WorkDir.at(self.workdir)

    @property
    def store(self) -> Store:
        """The opened store.

        Raises:
            NoStoreError: it does not exist.
            InputError: it cannot be opened.
        """
        if self._store is None:
            url = self.folder.store_url(self.url)
            path = Path(url.removeprefix("sqlite:///"))
            if url.startswith("sqlite:///") and not path.exists():
                if path.parent.is_file():
                    raise InputError(f"the work folder {path.parent} is a file; name another --workdir")
                raise NoStoreError(
                    f"there is no store at {path}: run or submit a search first, or name another --workdir or --store"
                )
        return self.made_store()

    def made_store(self) -> Store:
        """Returns the opened store, created if missing.

        Raises:
            InputError: it cannot be opened.
        """
        from hpo_pilot.store import Store

        if self._store is None:
            self._store = Store.open(self.folder.store_url(self.url))
        return self._store

    def store_if_any(self) -> Store | None:
        """Returns the store, or None if it does not exist yet."""
        try:
            return self.store
        except NoStoreError:
            return None

    # --- searches ---

    def search(self, identity: str) -> SearchRecord:
        """Returns a search.

        Raises:
            InputError: there is no such search, or it is a family of several searches.
        """
        if family := self.store.family(identity):
            names = ", ".join(record.name for record in family)
            raise InputError(f"{identity!r} is a family of {len(family)} searches: name one of {names}")
        return self.store.search(identity)

    def family(self, identity: str) -> list[SearchRecord]:
        """Returns the searches of a family, or a single search."""
        return self.store.family(identity) or [self.store.search(identity)]

    def own_family(self, identity: str) -> list[SearchRecord]:
        """Returns the searches of a family, or a single search, after checking that the user may change them."""
        family = self.family(identity)
        for record in family:
            self.user.check(record.name, record.owner)
        return family

    def document(self, identity: str) -> SearchDocument:
        """Returns the document of a search or a family."""
        return self._document(self.family(identity))

    def _document(self, records: Sequence[SearchRecord]) -> SearchDocument:
        from hpo_pilot.operations.documents import search_documents
        from hpo_pilot.store.lease import lease_holder

        family = records[0].family
        documents = search_documents(self.store, records, lease_holder(self.store.engine))
        if family is None or len(records) == 1 != len(self.store.family(family)):
            return documents[0]
        return family_document(family, documents)

    def progress(self, identity: str) -> ProgressDocument:
        """Returns the progress of a search or a family."""
        from hpo_pilot.operations.documents import search_progress

        if family := self.store.family(identity):
            return family_progress(identity, [search_progress(self.store, record) for record in family])
        return search_progress(self.store, self.store.search(identity))

    def progress_calls(self, identity: str) -> Callable[[], ProgressDocument | None]:
        """Returns a function that returns the progress: at once, then after half a second."""
        pause = 0.0

        def look() -> ProgressDocument:
            nonlocal pause
            time.sleep(pause)
            pause = _LOOK_SECONDS
            return self.progress(identity)

        return look

    # --- changes ---

    @contextmanager
    def _admitted(self, count: Callable[[], int]) -> Iterator[None]:
        """Checks the user's quotas at a service for a change that opens `count()` searches, made in the block."""
        if self.owns_store or self.user.changes_all:
            yield
            return
        from hpo_pilot.operations.quotas import check_quotas

        with _ADMISSION:
            if more := count():
                check_quotas(self.store, self.folder, self.user.name, more)
            yield

    def change(
        self, identity: str, change: Callable[[Store, SearchRecord, str], R], *, resumes: bool = False
    ) -> tuple[SearchDocument, list[R]]:
        """Changes a search, or every search of a family whose state allows the change.

        Args:
            identity: the search.
            change: makes the change; gets the store, a search and the name of the user.
            resumes: whether a search that was over continues.

        Returns:
            The document of the search, and the results of `change`.
        """
        family, who = self.own_family(identity), self.user.name
        with self._admitted(lambda: sum(each.state.is_over for each in family)) if resumes else nullcontext():
            results = for_each(family, lambda record: change(self.store, record, who))
        return self._document([self.store.search(record.id) for record in family]), results

    def resume(self, identity: str, sandbox: Path | None = None) -> SearchDocument:
        """Continues a search, with a new packed payload if one is given."""
        from hpo_pilot.steering.changes import resume

        return self.change(identity, partial(resume, sandbox=sandbox), resumes=True)[0]

    def end_stopping(self, identity: str) -> None:
        """Ends the jobs of a search that is being stopped and that no process steers.

        Raises:
            TryAgainError: their server does not answer.
        """
        from hpo_pilot.steering.service import end_stopping

        try:
            url = self.store.engine.url.render_as_string(hide_password=False)
            end_stopping(url, self.folder, self.own_family(identity))
        except HpoPilotError as error:
            raise TryAgainError(
                f"search {identity!r} is stopping, but its jobs cannot be ended now: {error}; "
                "the same command tries again"
            ) from error

    # --- search files ---

    def examined(self, found: Examination, base: Path | None) -> Examination:
        """Adds to the check of a search file that of the earlier searches it names; `base`: its folder, if local."""
        if not found.earlier:
            return found
        from hpo_pilot.steering.registration import examine_earlier_searches

        return examine_earlier_searches(self.store_if_any(), found, base)

    def register(
        self, family: Sequence[PackedSearch], *, go_on: bool, uid: str | None = None, server: str | None = None
    ) -> SearchDocument:
        """Registers the packed searches of a file; see `hpo_pilot.steering.registration.register_family`."""
        from hpo_pilot.steering.registration import register_family

        store = self.made_store()

        def opened() -> int:
            known = [store.find_search(packed.search.name) for packed in family]
            return sum(found is None or (go_on and found.state.is_over) for found in known)

        with self._admitted(opened):
            records = register_family(
                store,
                family,
                go_on=go_on,
                who=self.user.name,
                uid=uid,
                check=lambda found: self.user.check(found.name, found.owner),
            )
        if server is not None:
            for record in records:
                store.bind_server(record.id, server)
        return self._document(records)
