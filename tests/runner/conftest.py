from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.runner import hpo_pilot_runner
from tests.pilot.conftest import RUNNER, alive, until

__all__ = ["alive", "until"]


def encoded(jobs: list[Any], points: Mapping[str, Any], folds: int = 3, **more: Any) -> str:
    """The value of `--task`."""
    table = {"search": "digits", "uid": "1a2b3c4d", "generation": 2, "folds": folds, "jobs": jobs, "points": points}
    table |= more
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(table).encode())).decode()


@dataclass
class Ended:
    code: int
    said: str
    verdict: dict[str, Any] | None
    folder: Path

    @property
    def message(self) -> str:
        assert self.verdict is not None, self.said
        return str(self.verdict["message"])


class Bench:
    """Runs the runner as a pilot does, on payloads that are shell commands."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.checkpoints = folder / "checkpoints"
        self.quick: dict[str, float] = {}
        self._count = 0

    def start(
        self,
        command: str,
        *,
        number: int = 2,
        env: Mapping[str, str] | None = None,
        lifeline: int | None = None,
        task: str | None = None,
        files: Mapping[str, str] | None = None,
        series: bool = False,
        **payload: Any,
    ) -> tuple[subprocess.Popen[str], Path]:
        """Starts the runner in a new folder; `series`: as in jobs of several points."""
        self._count += 1
        folder = self.root / f"job{self._count}"
        (folder / "payload" if series else folder).mkdir(parents=True)
        programs = {program.name: program.read_text() for program in RUNNER.parent.glob("hpo_pilot_*.py")}
        if series:
            programs["hpo_pilot_point.py"] = programs[RUNNER.name]
            programs[RUNNER.name] = programs.pop("hpo_pilot_series.py")
        for program, text in programs.items():
            (folder / program).write_text(self._quickened(text))
        for name, content in (files or {}).items():
            (folder / name).write_text(content)
        document = {"command": command, "metric": "loss", "minutes": 5.0, "nodes": 1, "gpus_per_node": 0} | payload
        (folder / "hpo_pilot_payload.json").write_text(json.dumps(document))
        task = task or encoded([[7, 0, 11], [8, 1, 12]], {"7": {"x": 0}, "8": {"x": 0.25, "name": "é"}})
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", RUNNER.name, "--task", task, "--number", str(number)],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HPO_PILOT_CHECKPOINT_ROOT": str(self.checkpoints)}
            | dict(env or {})
            | ({"HPO_PILOT_LIFELINE_FD": str(lifeline)} if lifeline is not None else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
            pass_fds=[] if lifeline is None else [lifeline],
        )
        return process, folder

    def _quickened(self, text: str) -> str:
        for name, seconds in self.quick.items():
            text = text.replace(f"\n{name} = ", f"\n{name} = {seconds}  # was ", 1)
        return text

    def finish(self, process: subprocess.Popen[str], folder: Path) -> Ended:
        said, _ = process.communicate(timeout=900)  # a payload may compile something first
        path = folder / "userJobMetadata.json"
        verdict = None
        if path.exists():
            assert path.stat().st_size < 1_000_000
            verdict = json.loads(path.read_bytes(), parse_constant=_no_constant)["hpo_pilot"]
        return Ended(process.returncode, said, verdict, folder)

    def run(self, command: str, **options: Any) -> Ended:
        return self.finish(*self.start(command, **options))


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """What the runner reads from the result that a shell command leaves: values, metrics, why there are none."""
    monkeypatch.chdir(tmp_path)

    def judge(command: str, *wanted: str) -> tuple[list[Any], dict[str, float], str]:
        subprocess.run(["/bin/sh", "-c", command], check=True)
        return hpo_pilot_runner.judge("output.json", list(wanted or ["loss"]), "", {})

    return judge


@pytest.fixture
def bench(tmp_path):
    yield Bench(tmp_path)
