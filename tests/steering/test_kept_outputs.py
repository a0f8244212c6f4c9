"""Outputs at the server: those of the best trials, and no others."""

from __future__ import annotations

import io
import tarfile

import pytest

from hpo_pilot.jobs import JobState, Member
from hpo_pilot.panda.workflow_manager import EAGER
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.steering.results import KeptOutputs, _keep_only
from hpo_pilot.store import NewTask
from tests.made import made_attempt, made_end


class Storage:
    policy = EAGER

    def __init__(self) -> None:
        self.gone: list[str] = []

    def discard(self, output: str) -> None:
        self.gone.append(output)


def finish(store, record, values, archive, confirms=None):
    """Trials 1, 2, … finish with these values; `archive` says where the outputs of trial n are."""
    trials = [Trial(n, 1, {"x": n / 10}, seed=n, confirms=(confirms or {}).get(n)) for n in range(1, len(values) + 1)]
    jobs = tuple((Member(trial.number, 0, trial.number),) for trial in trials)
    task = store.add_generation(
        record.id, history=0, pending=[], trials=trials, task=NewTask(f"t.{record.uid}/", 1, 0, jobs)
    )
    for n, value in enumerate(values, start=1):
        state = TrialState.FINISHED if value is not None else TrialState.FAILED
        outcome = made_attempt(task.id, n, 0, 1, JobState.FINISHED, value=value, output=archive(n))
        store.record(record.id, [outcome], [made_end(n, state, value, told=n, ended=1.0)])


def kept(store, record, numbers):
    storage = Storage()
    trials = {trial.number: trial for trial in store.trials(record.id)}
    outputs = KeptOutputs(record, store, storage, [])
    outputs.keep_best(numbers, trials)
    return storage.gone, {n for n in trials if store.outputs(record.id, n)}


@pytest.fixture
def record(store):
    document = {
        "search": "demo",
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
        "payload": {"command": "true", "outputs": ["m"]},
    }
    return store.create_search(Search.model_validate(document), source="s", sandbox="/s", owner="me")


def test_only_the_best_three_keep_theirs(store, record):
    finish(store, record, [5.0, 4.0, 3.0, 2.0, 1.0], lambda n: f"{n}.tar.gz")
    assert kept(store, record, range(1, 6)) == (["1.tar.gz", "2.tar.gz"], {3, 4, 5})


def test_the_best_confirmed_trial_keeps_its_own_when_the_search_is_extended(store):
    document = {
        "search": "demo",
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
        "payload": {"command": "true", "outputs": ["m"]},
        "confirm": {"top": 1, "repeats": 1},
    }
    record = store.create_search(Search.model_validate(document), source="s", sandbox="/s", owner="me")
    finish(store, record, [5.0, 4.0, 3.0, 2.0, 1.0, 9.0], lambda n: f"{n}.tar.gz", confirms={6: 1})
    _, left = kept(store, record, range(1, 7))
    assert left == {1, 3, 4, 5}, "3 to 5 are better by luck so far; 1 was confirmed"


def test_those_of_a_trial_that_failed_are_of_no_use(store, record):
    finish(store, record, [1.0, None], lambda n: f"{n}.tar.gz")
    assert kept(store, record, [1, 2]) == (["2.tar.gz"], {1})


def test_an_archive_of_several_stays_while_one_of_them_is_wanted(store, record):
    finish(store, record, [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], lambda n: f"{(n + 1) // 2}.tar.gz/t{n}f0")
    # 4, 5 and 6 are the best; 3 shares an archive with 4
    assert kept(store, record, range(1, 7)) == (["1.tar.gz"], {4, 5, 6})


def test_an_archive_is_wanted_by_trials_that_are_not_over_too(store, record):
    finish(store, record, [6.0, 5.0, 1.0, 2.0, 3.0], lambda n: f"{(n + 1) // 2}.tar.gz/t{n}f0")
    assert kept(store, record, [1, 3, 4, 5]) == ([], {2, 3, 4, 5}), "2 has not been heard of, and shares with 1"


def test_one_members_part_of_an_archive(tmp_path):
    path = tmp_path / "a.tar.gz"
    long = "deep/" * 30 + "model.npz"
    with tarfile.open(path, "w:gz") as packed:
        for name in ("t1f0/model.npz", "t10f0/model.npz", f"t1f0/{long}", "t2f0/model.npz"):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            packed.addfile(info, io.BytesIO(name.encode()))
    _keep_only("t1f0", path)
    with tarfile.open(path) as packed:
        found = {member.name: packed.extractfile(member).read().decode() for member in packed}
    assert found == {"model.npz": "t1f0/model.npz", long: f"t1f0/{long}"}
