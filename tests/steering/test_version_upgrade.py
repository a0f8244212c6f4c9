"""A search that one version of hpo-pilot began goes on with another: its user has changed nothing."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from hpo_pilot.errors import InputError
from hpo_pilot.panda.sandbox import PAYLOAD_DOCUMENT, RUNNER, same_payload
from hpo_pilot.steering.registration import PackedSearch, pack_searches, register_packed
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SearchState, Store
from hpo_pilot.store import tables as t
from tests.rest_api import write_search

Change = Callable[[str, bytes], bytes | None]


def repacked(archive: Path, change: Change, name: str = "sources.old.tar.gz") -> Path:
    """The archive with other contents of its files; None: without the file."""
    made = archive.with_name(name)
    with tarfile.open(archive) as old, gzip.open(made, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as new:
        for member in old:
            stream = old.extractfile(member)
            assert stream is not None
            content = change(member.name, stream.read())
            if content is not None:
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))
    return made


def _other_runner(name: str, content: bytes) -> bytes | None:
    if name == PAYLOAD_DOCUMENT:
        return b'{"command": "python3 train.py"}'  # without what came later
    return None if name == "hpo_pilot_results.py" else content + b"# older\n" * (name == RUNNER)


@pytest.fixture
def workdir(tmp_path: Path) -> WorkDir:
    return WorkDir.make(tmp_path / "work")


@pytest.fixture
def packed(tmp_path: Path, workdir: WorkDir) -> PackedSearch:
    return pack_searches(write_search(tmp_path / "mine", "upgraded"), workdir)[0]


@pytest.fixture
def store(workdir: WorkDir) -> Iterator[Store]:
    opened = Store.open(workdir.store_url())
    yield opened
    opened.close()


@pytest.mark.parametrize("state", [SearchState.RUNNING, SearchState.PAUSED, SearchState.FAILED])
def test_it_goes_on_with_the_new_runner(store: Store, packed: PackedSearch, state: SearchState) -> None:
    old = replace(packed, sandbox=repacked(packed.sandbox, _other_runner))
    began = register_packed(store, old, go_on=True, who="me")
    store.set_state(began.id, state, "service")
    found = register_packed(store, packed, go_on=True, who="me")
    assert (found.id, found.state, found.sandbox) == (began.id, SearchState.RUNNING, str(packed.sandbox))
    assert store.events(began.id)[-1].what == "goes on with the payload runner of another version of hpo-pilot"
    version = found.version
    assert register_packed(store, packed, go_on=True, who="me").version == version  # once


def test_one_that_is_over_gets_it_with_more_budget(store: Store, packed: PackedSearch) -> None:
    old = replace(packed, sandbox=repacked(packed.sandbox, _other_runner))
    began = register_packed(store, old, go_on=True, who="me")
    store.set_state(began.id, SearchState.DONE, "service")
    found = register_packed(store, packed, go_on=True, who="me")
    assert (found.state, found.sandbox) == (SearchState.DONE, str(old.sandbox))
    budget = packed.search.budget.model_copy(update={"trials": 9})
    more = replace(packed, search=packed.search.model_copy(update={"budget": budget}))
    found = register_packed(store, more, go_on=True, who="me")
    assert (found.state, found.sandbox) == (SearchState.RUNNING, str(packed.sandbox))


def test_a_queue_that_the_file_does_not_name_was_local(store: Store, packed: PackedSearch) -> None:
    """Before 0002 the default stood in the store."""
    began = register_packed(store, packed, go_on=True, who="me")
    filed = packed.search.to_dict()
    filed["site"] = {"profile": "local", "queue": "LOCAL"}
    with store.engine.begin() as connection:
        connection.execute(update(t.searches).values(filed=filed, definition=filed))
    assert register_packed(store, packed, go_on=True, who="me").id == began.id
    elsewhere = packed.search.site.model_copy(update={"queue": "ELSEWHERE"})
    moved = replace(packed, search=packed.search.model_copy(update={"site": elsewhere}))
    with pytest.raises(InputError, match="site changed"):
        register_packed(store, moved, go_on=True, who="me")


def test_a_search_from_before_there_were_ranks_goes_on(store: Store, packed: PackedSearch) -> None:
    """It may have resources that a file no longer may: a core for six ranks."""
    resources = packed.search.resources.model_copy(update={"nodes": 2, "gpus_per_node": 6})
    search = packed.search.model_copy(update={"resources": resources})
    began = register_packed(store, replace(packed, search=search), go_on=True, who="me")
    filed = search.to_dict()
    del filed["resources"]["ranks_per_node"]
    with store.engine.begin() as connection:
        connection.execute(update(t.searches).values(filed=filed, definition=filed))
    found = register_packed(store, replace(packed, search=search), go_on=True, who="me")
    assert (found.id, found.search.resources.ranks) == (began.id, 6)
    own = resources.model_copy(update={"ranks_per_node": 1})
    changed = replace(packed, search=search.model_copy(update={"resources": own}))
    with pytest.raises(InputError, match="resources changed"):
        register_packed(store, changed, go_on=True, who="me")


@pytest.mark.parametrize(
    "change",
    [
        lambda name, content: content + b" " if name == "train.py" else content,
        lambda name, content: None if name == "run.sh" else content,
        lambda name, content: b'{"inputs": ["/data/other"]}' if name == PAYLOAD_DOCUMENT else content,
    ],
    ids=["another file", "a file less", "other inputs"],
)
def test_a_payload_that_changed_is_still_refused(store: Store, packed: PackedSearch, change: Change) -> None:
    old = replace(packed, sandbox=repacked(packed.sandbox, change))
    assert not same_payload(old.sandbox, packed.sandbox)
    register_packed(store, old, go_on=True, who="me")
    with pytest.raises(InputError, match="--new-payload"):
        register_packed(store, packed, go_on=True, who="me")


def test_an_archive_that_is_gone_or_broken_is_named(store: Store, packed: PackedSearch) -> None:
    old = replace(packed, sandbox=packed.sandbox.with_name("sources.old.tar.gz"))
    register_packed(store, old, go_on=True, who="me")
    with pytest.raises(InputError, match=r"sources.old.tar.gz was lost or damaged .* --new-payload"):
        register_packed(store, packed, go_on=True, who="me")
    old.sandbox.write_bytes(packed.sandbox.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"sources.old.tar.gz was lost or damaged .* --new-payload"):
        register_packed(store, packed, go_on=True, who="me")
