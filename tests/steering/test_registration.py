"""A search file that is run again with a larger budget."""

from __future__ import annotations

from contextlib import closing

import pytest
import yaml

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobState
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.steering.changes import extend
from hpo_pilot.steering.registration import pack_searches, register_family
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SearchState, SteeringStore, Store
from tests.made import made_attempt, made_end
from tests.rest_api import add_trials


@pytest.fixture
def folder(tmp_path):
    return WorkDir.make(tmp_path / "work")


@pytest.fixture
def store(folder):
    opened = Store.open(folder.store_url(None))
    yield opened
    opened.close()


def test_what_commands_have_added_stays_when_the_file_grows(tmp_path, folder, store):
    file = tmp_path / "demo.yaml"

    def register(**budget):
        space = {"x": {"type": "real", "low": 0.0, "high": 1.0}}
        document = {"search": "demo", "space": space, "budget": budget, "payload": {"command": "true"}}
        file.write_text(yaml.safe_dump(document))
        return register_family(store, pack_searches(file, folder), go_on=True, who="me")[0]

    record = register(trials=10, hours=1.0, failures=5)
    extend(store, record, "me", {"trials": 20, "failures": 7})
    budget = register(trials=20, hours=2.0, failures=5).search.budget
    assert (budget.trials, budget.hours, budget.failures) == (30, 2.0, 12)
    assert register(trials=40, hours=2.0, failures=3).search.budget.failures == 3, "the file says so now"


def test_a_wrong_result_is_corrected_while_no_trial_has_one(tmp_path, folder):
    file = tmp_path / "demo.yaml"

    def register(pattern, command="true"):
        payload = {"command": command, "result": {"stdout": pattern}}
        space = {"x": {"type": "real", "low": 0.0, "high": 1.0}}
        file.write_text(yaml.safe_dump({"search": "demo", "space": space, "payload": payload}))
        return register_family(store, pack_searches(file, folder), go_on=True, who="me")[0]

    def trial(number, state):
        task = add_trials(store, "demo", [Trial(number, number, {"x": 0.5}, seed=1)], generation=number)
        value = 0.5 if state is TrialState.FINISHED else None
        attempt = made_attempt(task, number, 0, 1, JobState.FINISHED, value)
        return [attempt], [made_end(number, state, value, told=number)], [task]

    with closing(SteeringStore.open(folder.store_url(None))) as store:
        first = register(r"los=(\S+)")
        attempts, ends, tasks = trial(1, TrialState.FAILED)
        with pytest.raises(InputError, match=r"payload\.result changed .* trials of it are open"):
            register(r"loss=(\S+)")
        store.record(first.id, attempts, ends, ended_tasks=tasks)
        with pytest.raises(InputError, match=r"payload\.result changed .* it is submitted; stop it first"):
            register(r"loss=(\S+)")
        store.set_state(first.id, SearchState.FAILED, "service", "all failed")
        with pytest.raises(InputError, match="payload changed since"):
            register(r"loss=(\S+)", "false")
        corrected = register(r"loss=(\S+)")
        assert (corrected.search.payload.result.stdout, corrected.id) == (r"loss=(\S+)", first.id)
        assert (corrected.state, corrected.version) == (SearchState.RUNNING, first.version + 1), "in one change"
        assert corrected.sandbox != first.sandbox
        assert "payload.result corrected" in [event.what for event in store.events(first.id)]
        attempts, ends, tasks = trial(2, TrialState.FINISHED)
        store.record(first.id, attempts, ends, ended_tasks=tasks)
        store.set_state(first.id, SearchState.STOPPED, "service")
        with pytest.raises(InputError, match=r"payload\.result changed .* have a result"):
            register(r"los=(\S+)")
