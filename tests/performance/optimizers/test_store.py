from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from tests.performance.optimizers import suite
from tests.performance.optimizers.fingerprint import runner_version
from tests.performance.optimizers.problems import problem
from tests.performance.optimizers.run import RunResult
from tests.performance.optimizers.run import run as run_once
from tests.performance.optimizers.runners import OURS
from tests.performance.optimizers.store import COMMITTED, Store

RESULT = RunResult("cmaes", "branin", "8x12", 4, (math.inf, math.inf, 0.5, 0.123456, 0.1, 1e-7), 1.25, 2, 1)
MACHINE = {"cpu": "some", "python": "3.11", "libraries": {"cmaes": "1"}}


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    store = Store([tmp_path])
    store.add(RESULT, "r1", "abc", 2, MACHINE)
    store.add(dataclasses.replace(RESULT, seed=5), "r1", "abc", 2, MACHINE)
    again = Store([tmp_path])
    assert again.runs == store.runs
    assert again.environments == store.environments
    run = again.runs["cmaes", "r1", "branin", "abc", "8x12", 4]
    assert run.trace == (math.inf, 0.1235, 1e-7)
    assert (run.cpu, run.repeats, run.infeasible) == (1.25, 2, 1)
    assert again.environments[run.environment] == MACHINE


def test_a_line_cut_off_by_a_kill_costs_that_run_only(tmp_path: Path) -> None:
    store = Store([tmp_path])
    for seed in (1, 2):
        store.add(dataclasses.replace(RESULT, seed=seed), "r1", "abc", 2, MACHINE)
    path = tmp_path / "cmaes.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    resumed = Store([tmp_path])
    assert [run.seed for run in resumed.runs.values()] == [1]
    resumed.add(dataclasses.replace(RESULT, seed=2), "r1", "abc", 2, MACHINE)
    assert [run.seed for run in Store([tmp_path]).runs.values()] == [1, 2]


def test_new_results_go_to_the_last_folder(tmp_path: Path) -> None:
    Store([tmp_path / "kept", tmp_path / "fresh"]).add(RESULT, "r1", "abc", 2, MACHINE)
    assert not (tmp_path / "kept").exists()
    assert len(Store([tmp_path / "kept", tmp_path / "fresh"]).runs) == 1


@pytest.fixture
def suite_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The suite with its folders here; the runs that it does."""
    done: list[tuple[Any, ...]] = []
    real = run_once

    def noted(*arguments: Any) -> RunResult:
        done.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(suite, "run", noted)
    monkeypatch.setattr(suite, "COMMITTED", tmp_path / "kept")
    monkeypatch.setattr(suite, "FRESH", tmp_path / "fresh")
    monkeypatch.setattr(suite, "_PAGES", tmp_path / "pages")
    return done


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    suite.add_options(parser)
    return parser.parse_args(arguments)


def test_the_suite_goes_on_where_it_stopped_and_shows_the_figures(
    suite_in: list[tuple[Any, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--setting", "8x12", "--problem", "branin", "--problem", "mixed7", "--against", "seeds-ea"]
    runners = ["--runner", "random", "--runner", "seeds-ea"]
    suite.measure(quick=False, options=options(*asked, *runners, "--seeds", "1"))
    assert len(suite_in) == 4
    figures = suite.measure(quick=False, options=options(*asked, *runners, "--seeds", "2"))["8x12"]
    assert len(suite_in) == 8
    assert set(figures["rank"]) == {"random", "seeds-ea"}
    assert sum(figures["rank"].values()) == pytest.approx(3.0)
    shown = suite.measure(quick=False, options=options(*asked, *runners, "--seeds", "5", "--show"))["8x12"]
    assert len(suite_in) == 8
    assert shown["regret"] == figures["regret"]
    assert "branin" in capsys.readouterr().out
    assert (tmp_path / "pages" / "8x12.html").stat().st_size > 1e6  # with its JavaScript


def test_results_of_changed_sources_are_not_shown(
    suite_in: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = options("--setting", "8x12", "--problem", "branin", "--runner", "random", "--seeds", "1")
    suite.measure(quick=False, options=asked)
    monkeypatch.setattr(suite, "runner_version", lambda runner: "changed")
    suite.measure(quick=False, options=asked)
    assert len(suite_in) == 2


def test_a_change_of_one_optimizer_leaves_the_others_results_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    def versions() -> dict[str, str]:
        runner_version.cache_clear()
        return {runner: runner_version(runner) for runner in ("random", "evolutionary", "cma")}

    before, read = versions(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == "evolutionary.py"))
    after = versions()
    runner_version.cache_clear()
    changed = {runner for runner, version in before.items() if after[runner] != version}
    assert "evolutionary" in changed
    assert "random" not in changed


def test_the_committed_results_are_of_peers_and_of_these_problems() -> None:
    store = Store([COMMITTED])
    assert store.runs
    for run in store.runs.values():
        assert run.runner not in OURS
        assert run.digest == problem(run.problem).digest, run.problem
        assert run.environment in store.environments
    assert sum(path.stat().st_size for path in COMMITTED.iterdir()) < 1.5e6
