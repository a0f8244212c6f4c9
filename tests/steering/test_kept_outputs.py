"""Outputs at the server: those of the best trials, and no others."""

from __future__ import annotations

import io
import tarfile
from types import SimpleNamespace

import pytest

from hpo_pilot.jobs import JobState
from hpo_pilot.optimizers.base import Recommendation
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.search.ranking import ranked_by_folds
from hpo_pilot.steering.results import KeptOutputs, _keep_only, kept_outputs
from hpo_pilot.store import SearchState
from hpo_pilot.store.steering_store import NumberedTrials
from tests.made import made_attempt, made_end, made_search
from tests.rest_api import add_trials
from tests.steering.memory_panda import Panda, go


def finish(store, record, values, archive, confirms=None):
    """Trials 1, 2, … finish with these values; `archive` says where the outputs of trial n are."""
    numbered = list(enumerate(values, start=1))
    task = add_trials(
        store, "demo", [Trial(n, 1, {"x": n / 20}, confirms=(confirms or {}).get(n)) for n, _ in numbered]
    )
    for n, value in numbered:
        state = TrialState.FINISHED if value is not None else TrialState.FAILED
        outcome = made_attempt(task, n, 0, 1, JobState.FINISHED, value=value, output=archive(n))
        store.record(record.id, [outcome], [made_end(n, state, value, told=n)])


def kept(store, record, numbers):
    panda = Panda()
    trials = NumberedTrials(store, record.id)
    none = SimpleNamespace(fetch=lambda _: [])
    KeptOutputs(record, store, panda, none).keep_best(numbers, trials)
    return panda.discarded, {
        trial.number for trial in store.trials(record.id) if store.outputs(record.id, trial.number)
    }


OUTPUTS = {"payload": {"command": "true", "outputs": ["m"]}}


def alone(n):
    return f"{n}.tar.gz"


def paired(n):
    """Two neighbours share an archive: trials 1 and 2, 3 and 4."""
    return f"{(n + 1) // 2}.tar.gz/t{n}f0"


@pytest.mark.parametrize(
    ("values", "archive", "heard_of", "gone", "left"),
    [
        ([5.0, 4.0, 3.0, 2.0, 1.0], alone, range(1, 6), ["1.tar.gz", "2.tar.gz"], {3, 4, 5}),
        ([1.0, None], alone, [1, 2], ["2.tar.gz"], {1}),
        ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], paired, range(1, 7), ["1.tar.gz"], {4, 5, 6}),
        ([6.0, 5.0, 1.0, 2.0, 3.0], paired, [1, 3, 4, 5], [], {2, 3, 4, 5}),
    ],
    ids=[
        "the best three",
        "a failed trial's are of no use",
        "an archive stays while one of several wants it",
        "trial 2, which is not over, wants the archive of 1 too",
    ],
)
def test_only_the_best_keep_theirs(store, register, values, archive, heard_of, gone, left):
    record = register(made_search(**OUTPUTS))
    finish(store, record, values, archive)
    assert kept(store, record, heard_of) == (gone, left)


@pytest.mark.parametrize(("top", "count"), [(1, 10), (3, 15)])
def test_more_are_kept_where_a_model_chooses_which_to_confirm(store, register, top, count):
    record = register(made_search(**OUTPUTS, confirm={"top": top, "repeats": 1}))
    finish(store, record, [float(n) for n in range(1, 18)], alone)
    _, left = kept(store, record, range(1, 18))
    assert left == set(range(1, count + 1))


def test_the_best_confirmed_trial_keeps_its_own_when_the_search_is_extended(store, register):
    record = register(made_search(**OUTPUTS, confirm={"top": 1, "repeats": 1}))
    finish(store, record, [20.0 - n for n in range(1, 13)] + [9.0], alone, confirms={13: 1})
    _, left = kept(store, record, range(1, 14))
    assert left == {1, *range(3, 13)}, "3 to 12 are better by luck so far; 1 was confirmed"


def test_the_confirmed_trial_has_outputs_whatever_the_model_recommends(steer, store, panda, monkeypatch):
    def worst_first(search, trials, earlier):
        ranked = ranked_by_folds(search, trials)[::-1]
        return [(trial, Recommendation(trial.point, trial.value, 0.1)) for trial in ranked]

    monkeypatch.setattr("hpo_pilot.steering.recommendation.recommend", worst_first)
    steering = steer({**OUTPUTS, "confirm": {"top": 1, "repeats": 2}}, trials=13, parallel=13)
    for outputs in (True, False):
        go(steering, 2)
        for number, task in panda.tasks.items():
            for job in range(1, len(task.jobs) + 1):
                if 100 * number + job not in panda.reports[number]:
                    panda.finish(number, job, outputs=outputs)
        go(steering, 1)
        steering = steer()  # the choice is the same after a restart
    go(steering, 2)
    record = store.search("demo")
    assert record.state is SearchState.DONE
    assert [trial.confirms for trial in store.trials(1)][13:] == [10, 10], "11 to 13 have lost theirs"
    assert kept_outputs(store, record, "best")[0] == 10


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
