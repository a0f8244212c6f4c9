"""A work folder, a quick payload, and the real command `hpo-pilot` in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command_here import command_here

HPO_PILOT = [sys.executable, "-m", "hpo_pilot.cli"]

#: The payload of most tests: a bowl with its lowest point at x = 0.3, a little different in each fold.
BOWL = """
import json, os
point = json.load(open("input.json"))
fold = int(os.environ["HPO_PILOT_FOLD"])
loss = (point["x"] - 0.3) ** 2 + 0.001 * fold
json.dump({"status": 0, "loss": loss, "message": ""}, open("output.json", "w"))
open("model.txt", "w").write("trial %s fold %d\\n" % (os.environ["HPO_PILOT_TRIAL"], fold))
"""


@dataclass
class Scan:
    """A search file with its payload and its work folder."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.root / "search.yaml"

    @property
    def workdir(self) -> Path:
        return self.root / "work"

    def write(self, document: Mapping[str, Any], payload: str = BOWL) -> None:
        (self.root / "payload").mkdir(exist_ok=True)
        (self.root / "payload" / "train.py").write_text(payload)
        base = {
            "search": "demo",
            "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
            "optimizer": "random",
            "budget": {"trials": 4, "parallel": 2},
            "payload": {"files": "payload", "command": "python3 -I -S train.py"},
            "resources": {"minutes": 1, "memory_mb": 500},
        }
        self.file.write_text(yaml.safe_dump({**base, **document}, sort_keys=False))

    @property
    def where(self) -> list[str]:
        """The options that say which searches are meant."""
        return ["--workdir", str(self.workdir)]

    def command(self, *arguments: str) -> list[str]:
        return [*HPO_PILOT, *arguments, *self.where]

    def __call__(
        self, *arguments: str, status: int | None = 0, timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.root,
            env={**os.environ, "COLUMNS": "200", **self.environment},
            check=False,
        )
        if status is not None:
            assert result.returncode == status, (result.returncode, result.stdout, result.stderr, self.logs())
        return result

    def here(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """A command that only looks, or that is refused: in this process, for a start takes a second."""
        result = command_here(*arguments, *self.where, cwd=self.root, env=self.environment)
        assert result.returncode == status, (result.returncode, result.stdout, result.stderr, self.logs())
        return result

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.root,
            env={**os.environ, **self.environment},
        )

    @contextmanager
    def serving(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """A service, which ends in order unless the block ends it; its first line is read."""
        process = self.start("serve", *options)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "serving" in line, (line, process.stdout.read(), self.logs())
            yield process
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=600)
                assert process.returncode == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def until(self, state: str, name: str = "demo", *, trials: int = 0, idle: bool = False) -> dict[str, Any]:
        """The status at a state; `trials`: with so many that are over; `idle`: with none that is not."""
        end = time.monotonic() + 600
        while time.monotonic() < end:
            status = self.json("status", name)
            over = sum(n for kind, n in status["trials"].items() if kind in ("finished", "failed"))
            if status["state"] == state and over >= trials and not (idle and over < sum(status["trials"].values())):
                return status
            time.sleep(0.2)
        raise AssertionError(f"{name} never became {state}: {status}; {self.logs()}")

    def json(self, *arguments: str) -> Any:
        return json.loads(self.here(*arguments, "--json").stdout)

    def trials(self) -> list[dict[str, Any]]:
        return self.json("trials", "demo")

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in self.workdir.glob("logs/*.log"))


@pytest.fixture
def scan(tmp_path: Path) -> Iterator[Scan]:
    yield Scan(tmp_path)
