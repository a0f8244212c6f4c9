from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from hpo_pilot.errors import GiveUpError
from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.pilot import launch
from hpo_pilot.pilot.launch import LauncherOutage, probe_launcher
from hpo_pilot.pilot.settings import Site
from tests.programs import program


class Launcher:
    """Says why it starts nothing, as a test has it."""

    def __init__(self) -> None:
        self.why = "away"
        self.good: set[str] = set()  # nodes where it works all the same
        self.tried: list[tuple[str, ...]] = []
        self.over, self.given_up = threading.Event(), threading.Event()
        self.errors: list[GiveUpError] = []
        self.outage = LauncherOutage(
            self.attempt, others=lambda: ["n1", "n2", "n3"], over=self.over.set, give_up=self.give_up
        )

    def attempt(self, nodes: Sequence[str]) -> str:
        self.tried.append(tuple(nodes))
        return "" if self.good.issuperset(nodes) else self.why

    def give_up(self, error: GiveUpError) -> None:
        self.errors.append(error)
        self.given_up.set()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(launch, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(launch, "_LONGEST_PAUSE", 0.05)


def test_it_is_tried_until_it_works():
    launcher = Launcher()
    assert not launcher.outage.is_on
    for _ in range(3):  # many jobs fail at once
        launcher.outage.begin("away", ["n1", "n2"])
    assert launcher.outage.is_on
    while len(launcher.tried) < 3:
        time.sleep(0.01)
    assert launcher.tried[:3] == [("n1",), ("n2",), ("n3",)] and not launcher.over.is_set()
    launcher.why = ""
    assert launcher.over.wait(600) and not launcher.outage.is_on
    launcher.outage.begin("away again", ["n2"])
    assert launcher.outage.is_on
    launcher.outage.stop()


def test_it_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(launch, "_OUTAGE", 0.2)
    launcher = Launcher()
    launcher.outage.begin("away", ["n1"])
    assert launcher.given_up.wait(600) and launcher.outage.is_on
    assert "the launcher has started nothing for" in str(launcher.errors[0]) and "(away)" in str(launcher.errors[0])


def test_whose_fault_a_launch_was():
    launcher = Launcher()
    assert launcher.outage.is_everywhere(["n1", "n2"]) and launcher.tried == [("n1", "n2"), ("n3",)]
    launcher.good = {"n2", "n3"}
    assert not launcher.outage.is_everywhere(["n1"])  # that node is dead, of which nobody says so
    launcher.why = ""
    assert not launcher.outage.is_everywhere(["n1"])
    tried = len(launcher.tried)
    assert not launcher.outage.is_everywhere(["n2"]) and len(launcher.tried) == tried  # known from the last one
    launcher.outage.begin("away", ["n1"])
    assert launcher.outage.is_everywhere(["n2"])
    launcher.outage.stop()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 0", ""),
        ("echo hm; echo 'srun: error: Unable to create step for job 7: no'; exit 1", "srun: error: Unable to create"),
        ("echo something; exit 1", "something"),
        ("exit 4", "srun ended with status 4"),
    ],
)
def test_the_probe(script, why, tmp_path, monkeypatch):
    program(tmp_path / "srun", f'echo "$@" > {tmp_path}/words\n{script}')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = probe_launcher(Site(launcher=make_launcher({"name": "srun"})), ["n2"], ["n1", "n2"])
    assert said.startswith(why) and bool(said) == bool(why)
    words = (tmp_path / "words").read_text().split()
    assert words[-1] == "true" and {"-N1", "-n1", "--nodelist=n2", "--mem=64M", "-c1"} <= set(words)


def test_a_probe_that_waits_for_cores(tmp_path, monkeypatch):
    """Others have them: whoever says so has been answered."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(launch, "_PROBE_SECONDS", 0.5)
    for words, good in (("Job 7 step creation temporarily disabled, retrying", True), ("hm", False)):
        program(tmp_path / "srun", f"echo 'srun: {words}'\nexec sleep 5")
        assert bool(probe_launcher(Site(launcher=make_launcher({"name": "srun"})), ["n1"], ["n1"])) is not good
