"""The store under a client that works in this process: opened when it is needed, and for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from hpo_pilot.client.documents import SearchDocument
from hpo_pilot.client.families import family_document, for_each, of_one_segment
from hpo_pilot.client.local_documents import document_of
from hpo_pilot.client.ownership import User
from hpo_pilot.client.search_client import SearchClient
from hpo_pilot.errors import InputError

if TYPE_CHECKING:
    from hpo_pilot.service.workdir import WorkDir
    from hpo_pilot.store import SearchRecord, Store


class NoStoreError(InputError):
    """There is no store yet."""


class LocalStore(SearchClient):
    """Holds the store, and finds searches and families in it."""

    def __init__(
        self,
        workdir: str | Path | None = None,
        store: str | None = None,
        *,
        user: User | None = None,
        opened: Store | None = None,
    ) -> None:
        """Prepares; the store is opened when it is needed.

        Args:
            workdir: the work folder; default ./hpo-pilot.
            store: another store's SQLAlchemy URL.
            user: for whom; default: this process's user, who may change everything.
            opened: the store, where the caller has it open and closes it.
        """
        self._root = workdir
        self._url = store
        self._user_given = user
        self._store: Store | None = opened
        self._owns_store = opened is None

    @override
    def close(self) -> None:
        if self._owns_store and self._store is not None:
            self._store.close()
            self._store = None

    def record(self, identity: str) -> SearchRecord:
        """A search as the store has it."""
        return self._search(identity)[1]

    @property
    def user(self) -> User:
        """For whom."""
        from hpo_pilot.service.nickname import nickname

        return self._user_given or User(nickname(), changes_all=True)

    def _folder(self) -> WorkDir:
        from hpo_pilot.service.workdir import WorkDir

        return WorkDir.at(self._root)

    def _made_folder(self) -> WorkDir:
        from hpo_pilot.service.workdir import WorkDir

        return WorkDir.make(self._root)

    def _opened(self, *, make: bool = False) -> Store:
        """The store.

        Raises:
            InputError: there is none yet and it is not to be made, or it cannot be opened.
        """
        from hpo_pilot.store import Store

        if self._store is None:
            url = self._folder().store_url(self._url)
            path = Path(url.removeprefix("sqlite:///"))
            if not make and url.startswith("sqlite:///") and not path.exists():
                if path.parent.is_file():
                    raise InputError(f"the work folder {path.parent} is a file; name another --workdir")
                raise NoStoreError(
                    f"there is no store at {path}: run or submit a search first, or name another --workdir or --store"
                )
            self._store = Store.open(url)
        return self._store

    def _store_if_any(self) -> Store | None:
        """The store; None where there is none yet."""
        try:
            return self._opened()
        except NoStoreError:
            return None

    def _change(self, identity: str, change: Callable[[SearchRecord], object]) -> SearchDocument:
        """Changes a search, or every search of a family whose state allows it."""
        store, family = self._opened(), self.own_family(identity)
        for_each(family, change)
        return self._documents([store.search(record.id) for record in family])

    def own_family(self, identity: str) -> list[SearchRecord]:
        """The searches of a family, or the one search, that the user may change."""
        store = self._opened()
        family = store.family(identity) or [store.search(identity)]
        for record in family:
            self.user.check(record.name, record.owner)
        return family

    def _search(self, identity: str) -> tuple[Store, SearchRecord]:
        store = self._opened()
        if family := store.family(identity):
            raise of_one_segment(identity, [record.name for record in family])
        return store, store.search(identity)

    def document(self, identity: str) -> SearchDocument:
        """A search, or a family, with its progress."""
        store = self._opened()
        return self._documents(store.family(identity) or [store.search(identity)])

    def _documents(self, records: Sequence[SearchRecord]) -> SearchDocument:
        """The document of a search, or of all of a family."""
        from hpo_pilot.store.lease import holder

        store, family = self._opened(), records[0].family
        steers = holder(store.engine)
        if family is None or len(records) == 1 != len(store.family(family)):
            return document_of(store, records[0], steers)
        return family_document(family, [document_of(store, record, steers) for record in records])
