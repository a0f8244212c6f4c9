"""A search file that is run again with a larger budget."""

from __future__ import annotations

import pytest
import yaml

from hpo_pilot.steering.changes import extend
from hpo_pilot.steering.registration import pack_searches, register_family
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import Store


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
