"""Mistakes in the call of `hpo_pilot.run` with a function; searches that run are in tests/end_to_end."""

from __future__ import annotations

import re
import threading

import pytest

import hpo_pilot
from hpo_pilot.errors import InputError

SPACE = {"x": {"type": "real", "low": 0, "high": 1}}
LOCK = threading.Lock()


def objective(point):
    with LOCK:
        return point["x"]


def calling(point):
    return objective(point)


def one_by_one(x, scale=1):
    return x * scale


def three(point, trial, more):
    return 1


@pytest.mark.parametrize(
    ("search", "options", "message"),
    [
        (objective, {}, "space is missing"),
        (objective, {"space": ["x"]}, "space must be a mapping with each parameter's type and range"),
        (one_by_one, {"space": SPACE}, "one_by_one(x, scale=1) takes the parameters one by one"),
        (one_by_one, {"space": SPACE}, "pass lambda point: one_by_one(**point)"),
        (three, {"space": SPACE}, "is called with the point, and with the trial if it takes two arguments"),
        (objective, {"space": SPACE}, "cannot be sent to a job: cannot pickle '_thread.lock' object"),
        (calling, {"space": SPACE}, "create 'LOCK' (lock) inside the function instead"),
        (objective, {"space": SPACE, "name": "a/b"}, "name: 'a/b' is no name of a search"),
        (len, {"space": SPACE, "budgets": {"trials": 4}}, "budgets"),
        (len, {"space": {"x": {"type": "real", "low": 1, "high": 0}}}, "space.x"),
        (len, {"space": SPACE, "files": "nowhere"}, "files: there is no folder 'nowhere'"),
        (len, {"space": SPACE, "service": "http://127.0.0.1:1"}, "token_file is missing"),
        ("search.yaml", {"budget": {"trials": 4}}, "search file"),
    ],
)
def test_mistakes(search, options, message, tmp_path):
    with pytest.raises(InputError, match=re.escape(message)):
        hpo_pilot.run(search, workdir=tmp_path, **options)
    assert not (tmp_path / "hpo-pilot.db").exists()
