"""What a search has from earlier ones: found when it is registered, its own from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.steering.proposer import Proposer
from hpo_pilot.steering.registration import earlier_results, packed_family, register_family
from tests.made import made_end, made_search
from tests.rest_api import add_trials
from tests.steering.memory_panda import AtOnce

#: Its stores have results that no job gave, and so break invariants.
TRIALS_WITHOUT_JOBS = True


def registered(store, search, value=None):
    """Registers a search or a family; gives each one result."""
    family = packed_family(search, "f.yaml", "/f.yaml", lambda _: Path("/s.tar.gz"), {})
    records = register_family(store, family, go_on=False, who="me")
    for number, record in enumerate(records):
        if value is not None:
            add_result(store, record, 1, value + number)
    return records


def add_result(store, record, number, value):
    add_trials(store, record.name, [Trial(number, number, {"x": number / 100}, seed=7)], generation=number)
    store.record(record.id, (), [made_end(number, TrialState.FINISHED, value, told=number)])


def values(earlier):
    return [value for _, value, *_ in earlier.results]


def test_a_later_change_of_the_earlier_search_changes_nothing(store):
    [old] = registered(store, made_search("old"), 0.5)
    [new] = registered(store, made_search("new", warm_start=["old"]))
    add_result(store, old, 2, 0.25)
    [kept] = store.earlier_results(new.id)
    assert values(kept) == [(0.5,)]
    [later] = registered(store, made_search("later", warm_start=["old"]))
    assert values(store.earlier_results(later.id)[0]) == [(0.5,), (0.25,)]


@pytest.mark.parametrize(("earlier", "heard"), [("old", [[(0.5,)], [(1.5,)]]), ("old-leg", [[(1.5,)], [(1.5,)]])])
def test_each_segment_starts_from_the_same_segment_or_all_from_one(store, earlier, heard):
    registered(store, made_search("old", segments=["arm", "leg"]), 0.5)
    found = registered(store, made_search("new", segments=["arm", "leg"], warm_start=earlier))
    assert [values(store.earlier_results(record.id)[0]) for record in found] == heard


def test_of_a_family_nothing_is_registered_where_one_has_nothing_to_start_from(store):
    registered(store, made_search("old", segments=["arm"]), 0.5)
    with pytest.raises(InputError, match="'old' is a family of 1 searches: name one of old-arm"):
        registered(store, made_search("new", segments=["arm", "leg"], warm_start="old"))
    assert [record.name for record in store.searches()] == ["old-arm"]


def test_a_search_without_results_teaches_nothing(store):
    registered(store, made_search("old"))
    with pytest.raises(InputError, match="warm_start: 'old' has no results yet"):
        earlier_results(store, made_search("new", warm_start="old"), {})


def test_the_optimizer_hears_of_it_as_a_result_of_another_search(store):
    registered(store, made_search("old"), 0.5)
    maximize = {"metric": "loss", "goal": "maximize"}
    registered(store, made_search("high", objective=maximize), 0.5)
    earlier = earlier_results(store, made_search("new", warm_start="old"), {})
    proposer = Proposer(made_search("new"), AtOnce(), lambda: None, earlier)
    for _ in range(2):
        proposer.start(2, [])
        assert len(proposer.take()) == 2
    heard = proposer._optimizer.earlier
    assert {source: [o.value for o in told] for source, told in heard.items()} == {"old": [0.5]}
    assert proposer._optimizer.history == []
    [turned] = earlier_results(store, made_search("new", objective=maximize, warm_start="high"), {})
    assert values(turned) == [(-0.5,)]
