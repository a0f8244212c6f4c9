"""What somebody tries who means no good, or whose program is broken: each of these once went wrong."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Callable

import pytest

from hpo_pilot.steering.registration import PackedSearch, register_packed
from hpo_pilot.store import Store
from tests.rest_api import write_search

JSON = {"Content-Type": "application/json"}


def search_text(name: str, **document) -> str:
    fields = {
        "search": name,
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
        "optimizer": "random",
        "budget": {"trials": 4, "hours": 5},
        "payload": {"command": "true"},
        "resources": {"minutes": 1, "memory_mb": 100},
        **document,
    }
    return json.dumps(fields)


@pytest.mark.parametrize("what", ["trials", "hours"])
@pytest.mark.parametrize("amount", ["1" + "0" * 400, "-1" + "0" * 400, "1e400", "NaN", "1e300", "9223372036854775807"])
def test_a_budget_grows_by_no_amount_that_is_none(call, what, amount) -> None:
    call("POST", "searches?go_on=true", data=search_text("huge"))
    body = f'{{"add": {{"{what}": {amount}}}}}'
    answer = call("POST", "searches/huge/extend", data=body, headers=JSON)
    assert answer.status_code == 422, answer.text
    assert "does not extend the budget" in answer.json()["message"]


@pytest.mark.parametrize("number", [str(10**23), str(2**63), "9" * 5000, "1e308", "1e400", "-1e308"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("extend", '{"add": {"trials": 1}, "seen": {"trials": %s}}'),
        ("extend", '{"add": {"failures": %s}}'),
        ("parallel", '{"parallel": %s}'),
        ("points", '{"point": {"x": %s}}'),
        ("retry", '{"trials": [%s]}'),
    ],
)
def test_no_number_is_too_much_for_the_service(call, path, body, number) -> None:
    call("POST", "searches?go_on=true", data=search_text("huge"))
    answer = call("POST", f"searches/huge/{path}", data=body.replace("%s", number), headers=JSON)
    assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize("number", [str(10**23), str(2**63), "9" * 5000, "1e308", "1e400", "-1e308"])
@pytest.mark.parametrize("path", ["budget.trials", "budget.hours", "folds.k", "resources.memory_mb", "seed"])
def test_no_number_in_a_search_file_is_too_much_for_the_service(call, path, number) -> None:
    section, _, key = path.partition(".")
    changes = {section: {key: "NUMBER"} if key else "NUMBER"}
    text = search_text("huge-file", **changes).replace('"NUMBER"', number)
    answer = call("POST", "searches", data=text)
    assert answer.status_code == 422, answer.text
    assert section in answer.text


def test_the_largest_counts_are_in_the_description(call) -> None:
    schemas = call("GET", "openapi.json").json()["components"]["schemas"]
    assert schemas["Width"]["properties"]["parallel"]["maximum"] == 100_000
    assert schemas["Extension"]["properties"]["add"]["additionalProperties"]["maximum"] == 10**12


def _archive(build: Callable[[tarfile.TarFile], object]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        build(archive)
    return packed.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    "members",
    [
        [_member("a" * 300)],
        [_member("a"), _member("a/b")],
        [_member("a", tarfile.DIRTYPE), _member("a/b"), _member("a", tarfile.SYMTYPE, "a")],
        [_member("a", tarfile.SYMTYPE, "a"), _member("a/b")],
        [_member("a", tarfile.LNKTYPE, "a")],
    ],
    ids=["long name", "file as folder", "folder as link", "link to itself", "file that is its own link"],
)
def test_an_archive_that_cannot_be_unpacked_is_the_senders_mistake(call, members) -> None:
    """It was answered with 503, so that clients sent it again and again."""
    content = _archive(lambda archive: [archive.addfile(member) for member in members])
    digest = hashlib.sha256(content).hexdigest()
    assert call("PUT", f"payloads/{digest}", data=content).ok
    text = search_text(f"archive-{digest[:8]}", payload={"command": "true", "files": "f"})
    answer = call("POST", f"searches?payload={digest}", data=text)
    assert answer.status_code == 422, answer.text
    assert "is refused" in answer.json()["message"]


def test_a_path_forges_no_line_of_the_log(api, call) -> None:
    call("GET", "searches/a%0aFORGED%20by%20operator")
    assert r"a\nFORGED by operator" in api.log
    assert "\nFORGED" not in api.log


def test_one_registration_sent_many_times_at_once_is_one(call) -> None:
    """The repetition of a call that was still under way met a search of its name, and was refused."""
    for attempt in range(4):
        name = f"at-once-{attempt}"
        barrier, answers = threading.Barrier(8), []

        def register(name: str = name, barrier: threading.Barrier = barrier, answers: list = answers) -> None:
            barrier.wait()
            how = {"data": search_text(name), "headers": {"Idempotency-Key": f"key-of-{name}"}}
            answers.append(call("POST", "searches", **how))

        threads = [threading.Thread(target=register) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [201] * 8, [answer.text for answer in answers]
        assert len({answer.json()["id"] for answer in answers}) == 1


@pytest.mark.parametrize("go_on", [False, True])
def test_a_search_that_comes_between_look_and_registration(tmp_path, monkeypatch, go_on) -> None:
    from hpo_pilot.steering.search_file import load_search

    search = load_search(write_search(tmp_path, "between"))
    packed = PackedSearch(search, "between.yaml", "between.yaml", tmp_path / "sources.x.tar.gz")
    store = Store.open(f"sqlite:///{tmp_path}/hpo-pilot.db")
    try:
        look = store.find_search
        monkeypatch.setattr(store, "find_search", lambda _name: None)
        first = register_packed(store, packed, go_on=go_on, who="alice", uid="12345678")
        again = register_packed(store, packed, go_on=go_on, who="alice", uid="12345678")
        assert first.id == again.id
        monkeypatch.setattr(store, "find_search", look)
        assert len(store.searches()) == 1
    finally:
        store.close()


def test_gzip_is_not_unpacked_for_strangers(call) -> None:
    """A body that says it is packed is looked at as it is: there is no bomb to set off."""
    packed = gzip.compress(b"a" * (50 << 20))
    answer = call("POST", "examinations", data=packed, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 200
    assert answer.json()["valid"] is False
