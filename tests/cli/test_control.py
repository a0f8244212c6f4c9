"""Commands that change searches: what they take, and what they say to do next."""

from __future__ import annotations

from contextlib import closing

import pytest
from typer.testing import CliRunner

from hpo_pilot.cli.main import app
from hpo_pilot.cli.searches import point_of
from hpo_pilot.errors import InputError
from hpo_pilot.store import SearchState
from tests.rest_api import add_results, set_state, steered, store_of, write_search


@pytest.fixture
def work(tmp_path, monkeypatch):
    for name in ("HPO_PILOT_STORE", "HPO_PILOT_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    store_of(tmp_path / "hpo-pilot").close()
    said("submit", str(write_search(tmp_path, "demo")))
    add_results(tmp_path / "hpo-pilot", "demo")
    with steered(tmp_path / "hpo-pilot"):
        yield tmp_path / "hpo-pilot"


def said(*words):
    result = CliRunner().invoke(app, words)
    if result.exception is not None:
        raise result.exception
    return " ".join(result.output.split())


def test_logs(work):
    assert said("logs", "demo", "1") == "--- fold 0 --- Traceback --- fold 1 --- Traceback"
    assert said("logs", "demo", "1", "--fold", "1") == "--- fold 1 --- Traceback"
    for words, message in (
        (["2"], "trial 2 \\(finished\\)"),
        (["99"], "has no trial 99"),
        (["1", "--fold", "7"], "no log of fold 7"),
    ):
        with pytest.raises(InputError, match=message):
            said("logs", "demo", *words)


RUNS = "`hpo-pilot status demo --watch` shows its progress"


def test_retry(work):
    assert said("retry", "demo") == (
        f"search 'demo' tries 1 failed trial again, ahead of others: its budget grew to 5 trials; {RUNS}"
    )
    with pytest.raises(InputError, match="its point waits"):
        said("retry", "demo", "--trial", "1")
    assert "asked for failed trial 1 again: budget trials 4 -> 5" in said("log", "demo")


def test_try(work):
    assert said("try", "demo", "x=5e-1", "kind=a") == (
        f"search 'demo' tries the point next: its budget grew to 5 trials; {RUNS}"
    )
    set_state(work, "demo", SearchState.PAUSED)
    assert said("try", "demo", "x=0.25", "kind=a").endswith("it is paused: `hpo-pilot resume demo` continues it")
    assert "requested 2 points will run next" in said("status", "demo")


def test_parallel(work):
    assert said("extend", "demo", "--parallel", "9") == f"search 'demo' now has 9 trials at once; {RUNS}"
    assert said("extend", "demo", "--parallel", "2", "--trials", "+1") == (
        f"search 'demo' now has a budget of 5 trials and now has 2 trials at once; {RUNS}"
    )
    with pytest.raises(InputError, match="no amount is given"):
        said("extend", "demo")


def test_words_of_a_point():
    words = ["lr=1e-3", "layers=2", "on=true", "name=adam", 'text="1"', "none=null", "sign=-0.5", "eq=a=b"]
    numbers = {"lr": 0.001, "layers": 2, "sign": -0.5}
    assert point_of(words) == {**numbers, "on": True, "name": "adam", "text": "1", "none": None, "eq": "a=b"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lr"], "expected name=value"),
        (["=1"], "expected name=value"),
        (["lr="], "expected name=value"),
        (["lr=1", "lr=2"], "lr is given twice"),
        (["lr=[1, 2]"], "one value, not a list"),
        (["lr={a: 1}"], "one value, not a mapping"),
        (["lr='1"], "lr='1"),
    ],
)
def test_wrong_words_of_a_point(words, message):
    with pytest.raises(InputError, match=message):
        point_of(words)


@pytest.mark.parametrize("number", [10**23, 2**63, 10**400], ids=["10^23", "2^63", "10^400"])
@pytest.mark.parametrize(
    "words",
    [
        ("extend", "demo", "--trials", "+{}"),
        ("extend", "demo", "--hours", "+{}"),
        ("extend", "demo", "--failures", "+{}"),
        ("extend", "demo", "--parallel", "{}"),
        ("retry", "demo", "--trial", "{}"),
        ("try", "demo", "x={}"),
        ("logs", "demo", "{}"),
        ("logs", "demo", "1", "--fold", "{}"),
        ("serve", "--slots", "{}"),
        ("status", "{}"),
    ],
    ids=" ".join,
)
def test_a_number_beyond_all_maxima_is_refused_in_words(work, words, number):
    result = CliRunner().invoke(app, [word.format(number) for word in words])
    assert isinstance(result.exception, InputError) or result.exit_code == 2
    with closing(store_of(work)) as store:
        assert store.search("demo").search.budget.trials == 4
