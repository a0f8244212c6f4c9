"""Hopeless trials are stopped by PanDA's own kill, with a real pilot and a real training, and their slots go on."""

from __future__ import annotations

from contextlib import closing

import pytest

from hpo_pilot.optimizers.early_stopping import Report, create_rule
from hpo_pilot.store import SearchState, SteeringStore
from hpo_pilot.store.progress import progress_of
from tests.rest_api import store_of


def curve(steps: int, pause: str, figure: str = "loss") -> str:
    """A training that comes down to x; a bad one is a bad one from its first step on.

    Args:
        steps: how many.
        pause: seconds a step, as an expression.
        figure: what its values are called in `progress.jsonl`.
    """
    return f"""
import json, time
point = json.load(open("input.json"))
with open("progress.jsonl", "w") as progress:
    for step in range(1, {steps + 1}):
        loss = point["x"] + 1 / step
        progress.write(json.dumps({{"step": step, "{figure}": loss}}) + "\\n")
        progress.flush()
        time.sleep({pause})
json.dump({{"status": 0, "loss": loss}}, open("output.json", "w"))
open("model.txt", "w").write("done")
"""


def replayed(store: SteeringStore) -> dict[int, tuple[int, str]]:
    """What a new rule decides on the record of the store: the look and the reason, of each trial that it stops."""
    search = store.search("demo").search
    trials = {trial.number: trial for trial in store.trials(1)}
    looks = store.values_by_look(1)
    last = {number: look for look, values in enumerate(looks) for number, *_ in values}
    rule = create_rule(search.early_stopping, search.folds.k)
    decided: dict[int, tuple[int, str]] = {}
    for look, values in enumerate(looks):
        # A trial that ended with this look is not judged by what came with its end.
        out = {n for n in trials if n not in decided and (look < last.get(n, 0) or trials[n].stop)}
        for number, stop in rule.look([Report(*value) for value in values], out).items():
            decided[number] = (look, f"loss {stop.value:.6g} is {stop.reason} (asha)")
    return decided


def test_hopeless_trials_are_stopped_and_their_slots_go_on(scan):
    rule = {"method": "asha", "min_steps": 3, "max_steps": 27, "warmup_trials": 4, "report_seconds": 0.25}
    document = {
        "space": {"x": {"type": "real", "low": 0.0, "high": 10.0}},
        "start": [{"x": x} for x in (0.1, 0.2, 0.3, 5.0, 6.0)],
        "folds": 2,
        "budget": {"trials": 5, "parallel": 3, "queued": 0},
        "early_stopping": rule,
        "payload": {"files": "payload", "command": "python3 -I -S train.py", "outputs": ["model.txt"]},
    }
    scan.write(document, curve(27, '0.12 if point["x"] < 1 else 0.4 if step < 8 else 5'))
    scan("run", str(scan.file), "--slots", "6")
    trials = scan.trials()
    good, stopped = trials[:3], trials[3:]
    assert [trial["state"] for trial in trials] == ["finished"] * 3 + ["stopped"] * 2
    assert [trial["value"] for trial in good] == pytest.approx([x + 1 / 27 for x in (0.1, 0.2, 0.3)])
    for trial in stopped:
        stop = trial["stopped"]
        assert trial["value"] is None and trial["std"] is None and trial["told"] is not None
        assert 3 <= stop["step"] < 27 and stop["value"] == pytest.approx(trial["point"]["x"] + 1 / stop["step"])
        assert trial["error"].startswith("stopped early: loss ") and "at step 3" in trial["error"]
        assert all(fold["value"] is None and fold["seconds"] > 0 for fold in trial["folds"])
    assert sorted(trial["told"] for trial in trials) == [1, 2, 3, 4, 5] and not any(t["stopped"] for t in good)
    with closing(store_of(scan.workdir)) as store:
        record = store.search("demo")
        assert record.state is SearchState.DONE and progress_of(store.engine, 1).best == 1
        stops = {trial.number: trial.stop for trial in store.trials(1) if trial.stop}
        assert replayed(store) == {number: (stop.look, stop.reason) for number, stop in stops.items()}
        assert all(stop.projected[0] > 0.3 + 1 / 27 for stop in stops.values())
        told = [event.what for event in store.events(1) if "is told to stop: loss " in event.what]
        assert len(told) == len(stopped) == len(stops)
