"""What somebody tries who means no good, or whose program is broken: each of these once went wrong."""

from __future__ import annotations

import gzip

import pytest

from hpo_pilot.steering.registration import PackedSearch, register_packed
from hpo_pilot.store import Store
from tests.rest_api import write_search

from .conftest import search_text

JSON = {"Content-Type": "application/json"}
HUGE = [str(10**23), str(2**63), "9" * 5000, "1e308", "1e400", "-1e308"]


@pytest.fixture(scope="module")
def huge(call) -> str:
    return call("POST", "searches?go_on=true", data=search_text("huge")).json()["name"]


@pytest.mark.parametrize("amount", ["1" + "0" * 400, "-1" + "0" * 400, "1e400", "NaN", "1e300", "9223372036854775807"])
def test_a_budget_grows_by_no_amount_that_is_none(call, huge, amount) -> None:
    for limit in ("trials", "hours"):
        body = f'{{"add": {{"{limit}": {amount}}}}}'
        answer = call("POST", f"searches/{huge}/extend", data=body, headers=JSON)
        assert answer.status_code == 422, answer.text
        assert "does not extend the budget" in answer.json()["message"]


@pytest.mark.parametrize("number", HUGE)
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
def test_no_number_is_too_much_for_the_service(call, huge, path, body, number) -> None:
    answer = call("POST", f"searches/{huge}/{path}", data=body.replace("%s", number), headers=JSON)
    assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("path", ["budget.trials", "budget.hours", "folds.k", "resources.memory_mb", "seed"])
def test_no_number_in_a_search_file_is_too_much_for_the_service(call, path, number) -> None:
    section, _, key = path.partition(".")
    changes = {section: {key: "NUMBER"} if key else "NUMBER"}
    answer = call("POST", "searches", data=search_text("huge-file", **changes).replace('"NUMBER"', number))
    assert answer.status_code == 422, answer.text
    assert section in answer.text


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
