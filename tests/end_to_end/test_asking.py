"""Searches without payload: clients here and of a service ask for trials, report values and tell results."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import yaml

from hpo_pilot import connect
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.operations.asking import AskedSearch
from hpo_pilot.operations.client import SearchClient
from tests.end_to_end.conftest import Scan

SPACE = {"x": {"type": "real", "low": 0.0, "high": 1.0}, "kind": {"type": "categorical", "choices": ["a b", "c"]}}


def write(scan: Scan, name: str, **document: object) -> str:
    """A search file without payload, which is submitted."""
    base = {"search": name, "space": SPACE, "optimizer": "random", "budget": {"trials": 40, "parallel": 4}}
    scan.file.write_text(yaml.safe_dump({**base, "payload": "none", **document}, sort_keys=False))
    scan.here("submit", str(scan.file))
    return name


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Iterator[Scan]:
    """A service with a pilot, which has nothing to do."""
    scan = Scan(tmp_path_factory.mktemp("asking"))
    with scan.serving("--slots", "1") as process:
        process.stdout.readline()  # its REST API answers
        yield scan
    assert "trial" not in (scan.workdir / "logs" / "pilot.log").read_text()


@pytest.fixture(params=["here", "service"])
def client(request, scan) -> Iterator[SearchClient]:
    if request.param == "here":
        opened = SearchClient.local(scan.workdir)
    else:
        opened = connect((scan.workdir / "service.url").read_text().strip(), scan.workdir / "tokens" / "user.token")
    with opened:
        yield opened


@pytest.fixture
def named(request, scan) -> Callable[..., str]:
    return lambda **document: write(scan, f"s{abs(hash(request.node.nodeid)) % 10**9}", **document)


def state_of(client: SearchClient, name: str, number: int, *states: str) -> dict:
    """A trial as soon as it has one of these states."""
    end = time.monotonic() + 600
    while (found := client.trial(name, number))["state"] not in states:
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def test_a_search_from_its_first_trial_to_its_end(client, named):
    name = named(budget={"trials": 9, "parallel": 3})
    told: dict[int, float] = {}

    search = client.search(name)

    def work() -> None:
        while (trial := search.ask()) is not None:
            assert not search.report(trial, trial.point["x"] + 1, 0)
            metrics = {"size": np.float32(3.0), "gradient": float("nan")}
            search.tell(trial, np.float64(trial.point["x"]), metrics=metrics)
            assert trial.number not in told
            told[trial.number] = trial.point["x"]

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    assert client.status(name)["state"] == "done"
    trials = list(client.trials(name))
    assert {trial["number"]: trial["value"] for trial in trials} == told
    assert len(told) == 9
    assert [trial["folds"][0]["metrics"] for trial in trials] == [{"size": 3.0}] * 9
    assert [list(pair) for pair in client.intermediate(name)[0]["folds"][0]["values"]] == [[0, told[1] + 1]]
    assert client.best(name)["value"] == min(told.values())
    assert search.ask() is None


def test_what_counts(client, named):
    name = named(objective=[{"metric": "loss"}, {"metric": "size"}])
    search = client.search(name)
    first, second, third, fourth = (search.ask(wait=60) for _ in range(4))
    assert len({one.number for one in (first, second, third, fourth)}) == 4
    assert (first.seed, first.attempt, first.lease) == (first.seed, 1, 3600.0)
    with pytest.raises(TryAgainError, match="4 are out"):
        search.ask(wait=0)
    for values, message in [(0.5, "1 values"), ([0.5, 1, 2], "3 values"), (None, "0 values")]:
        with pytest.raises(InputError, match=f"{message}.*loss, size"):
            search.tell(first, values)
    for _ in range(2):
        assert search.tell(first, [0.5, 7])["counts"]
    assert state_of(client, name, first.number, "finished")["value"] == [0.5, 7.0]
    for _ in range(2):  # from the store, and while only the server knows it
        with pytest.raises(InputError, match=r"counts: 0\.5, 7"):
            search.tell(first, [0.6, 7])
    assert search.tell(first, np.array([0.5, 7]))["counts"]
    search.tell(second, [float("nan"), 7])
    assert "'loss' is no finite number" in state_of(client, name, second.number, "failed")["error"]
    search.tell(third.number, failed="out of memory")
    assert "out of memory" in state_of(client, name, third.number, "failed")["error"]
    search.tell(third.number, failed="again")
    with pytest.raises(InputError, match="counts: failed"):
        search.tell(third, [1, 1])
    for number in (0, 99, 2**70):
        with pytest.raises(InputError, match="has no trial"):
            search.tell(number, [1, 1])
    for step, values in [(-1, [1]), (2**60, [1]), (1, [])]:
        with pytest.raises(InputError, match="a step"):
            search.told(fourth, values, step=step)
    with pytest.raises(InputError, match="lease"):
        search.ask(lease=0)


def test_a_lease_that_ends(client, named):
    name = named(budget={"trials": 2, "parallel": 1})
    lost, late = client.search(name), client.search(name)
    first = late.ask(wait=60, lease=1)
    second = lost.ask(wait=60)  # gets the same trial
    assert (second.number, second.point, second.attempt) == (first.number, first.point, 2)
    assert late.report(first, 0.5, 1)  # it is to end
    assert not lost.report(second, 0.25, 1)
    lost.tell(second, 0.25)
    with pytest.raises(InputError, match=r"counts: 0\.25"):
        late.tell(first, 0.5)
    assert state_of(client, name, first.number, "finished")["value"] == 0.25
    third = lost.ask(wait=60, lease=1)
    for _ in range(15):
        time.sleep(4)
        if late.report(third, 0.5, 1):
            break  # else it renewed a lease that went on
    late.tell(third.number, 0.75)  # it waits for another client: the late result counts
    assert state_of(client, name, third.number, "finished")["value"] == 0.75
    assert lost.ask() is None


def test_pause_and_stop(client, named):
    name = named()
    search = client.search(name)
    first, second = search.ask(wait=60), search.ask(wait=60)
    client.pause(name)
    with pytest.raises(TryAgainError, match="paused"):
        search.ask(wait=0)
    assert search.tell(first, 1.0)["counts"]
    client.resume(name)
    assert search.ask(wait=60).number > second.number
    client.stop(name)
    assert search.ask(wait=60) is None
    state_of(client, name, second.number, "stopped")
    assert search.report(second, 1.0, 1)
    assert not search.tell(second, 1.0)["counts"]
    client.extend(name, {"trials": 1})  # killed trials are not out any more
    assert search.ask(wait=60).number > second.number


def test_early_stopping(client, named):
    stopping = {"method": "asha", "min_steps": 1, "eta": 2}
    name = named(budget={"trials": 20, "parallel": 1}, early_stopping=stopping)
    search = client.search(name)
    for _ in range(3):
        trial = search.ask(wait=60)
        assert not any(search.report(trial, 0.1, step) for step in range(3))
        search.tell(trial, 0.1)
    bad = search.ask(wait=60)
    assert any(search.report(bad, 9.0, 1) or time.sleep(0.1) for _ in range(300))
    state_of(client, name, bad.number, "stopped")
    assert not search.tell(bad, 9.0)["counts"]
    assert search.ask(wait=60).number == bad.number + 1


def test_who_may_not(scan, named, tmp_path):
    name = named()
    scan.here("token", "create", "--name", "mallory", "-o", str(tmp_path / "token"))
    with connect((scan.workdir / "service.url").read_text().strip(), tmp_path / "token") as mallory:
        for call in (lambda: mallory.search(name).ask(wait=0), lambda: mallory.search(name).tell(1, 0.5)):
            with pytest.raises(InputError, match=r"only .* or an operator"):
                call()
    scan.write({"search": "ordinary"})
    scan.here("submit", str(scan.file))
    for command in (["ask"], ["tell", "1", "--value", "1"]):
        refused = scan.here(command[0], "ordinary", *command[1:], status=2)
        assert "has a payload" in refused.stderr


def test_commands(scan, named):
    name = named(budget={"trials": 1, "parallel": 1})
    asked = scan.json("ask", name, "--wait", "60")
    assert (asked["trial"], asked["attempt"], sorted(asked["point"])) == (1, 1, ["kind", "x"])
    assert scan.here("ask", name, status=3).stdout == ""
    scan.here("tell", name, "1", "--value", "0.5", "--step", "3")
    scan.here("tell", name, "1", "--step", "3", status=2)
    scan.here("tell", name, "1", "--value", "0.5", "--metric", "size=big", status=2)
    scan.here("tell", name, "1", "--value", "0.25", "--metric", "size=3")
    scan.until("done", name)
    scan.here("tell", name, "1", "--value", "0.5", "--step", "4", status=4)
    assert scan.here("ask", name, status=4).stdout == ""
    assert scan.json("trials", name)[0]["value"] == 0.25


def test_kills(tmp_path):
    """Service, server and a client are killed: no result is lost, none counts twice."""
    scan = Scan(tmp_path)
    with scan.serving("--slots", "0") as service:
        name = write(scan, "killed", budget={"trials": 12, "parallel": 3})
        words = scan.here("ask", name, "--wait", "60", "--lease", "2").stdout.split()
        assert words[0] == "1" and words[1].startswith("x=")  # this client never comes back
        search: AskedSearch = SearchClient.local(scan.workdir).search(name)
        trial = search.ask(wait=60)
        search.report(trial, 0.5, 0)
        service.send_signal(signal.SIGKILL)
        service.wait()
    told = threading.Thread(target=search.tell, args=(trial, 0.125))
    told.start()  # while nothing answers
    with scan.serving("--slots", "0") as service:
        told.join(600)
        while (trial := search.ask()) is not None:
            search.tell(trial, trial.point["x"])
            search.tell(trial, trial.point["x"])
    trials = scan.json("trials", name)
    assert [trial["state"] for trial in trials] == ["finished"] * 12
    assert trials[1]["value"] == 0.125
    assert trials[0]["folds"][0]["attempt"] == 2
