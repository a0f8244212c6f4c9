"""Kill anything while trials are being stopped early: no decision is lost, taken twice or forgotten half-way."""

from __future__ import annotations

import random
from collections import Counter

from hpo_pilot.store import SteeringStore
from tests.chaos.test_interruption import run_with_kills
from tests.end_to_end.test_early_stopping import curve, replayed

CURVE = curve(12, "0.25", "value")


def test_kills_while_trials_are_stopped(scan):
    early = {"method": "asha", "min_steps": 2, "max_steps": 12, "eta": 2, "report_seconds": 0.25}
    scan.write({"budget": {"trials": 16, "parallel": 4}, "early_stopping": early, "folds": 2}, CURVE)
    run_with_kills(scan, random.Random(3), 8)
    trials = scan.trials()
    assert [trial["number"] for trial in trials] == list(range(1, 17))
    assert sorted(trial["told"] for trial in trials) == list(range(1, 17))
    states = Counter(trial["state"] for trial in trials)
    assert states.keys() == {"finished", "stopped"} and states["stopped"] >= 3
    for trial in trials:
        assert (trial["value"] is None) == (trial["state"] == "stopped") == (trial["stopped"] is not None)
    store = SteeringStore.open(f"sqlite:///{scan.workdir / 'hpo-pilot.db'}")
    try:
        stops = {trial.number: trial.stop for trial in store.trials(1) if trial.stop}
        assert replayed(store) == {number: (stop.look, stop.reason) for number, stop in stops.items()}
        told = Counter(event.what.split(" is told")[0] for event in store.events(1) if "is told to stop" in event.what)
        assert told == {f"trial {number}": 1 for number in stops}
    finally:
        store.close()
