"""Results of runs in files of JSON lines, each appended at once, so that a killed suite goes on where it was."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.performance.optimizers.run import RunResult

#: Peers' results that come with the repository, and those that were made here.
COMMITTED = Path(__file__).parent / "results"
FRESH = Path("build/bench/optimizers/results")

#: (runner, version, problem, problem's digest, setting, seed)
RunKey: TypeAlias = tuple[str, str, str, str, str, int]


@dataclass(frozen=True)
class StoredRun:
    """A line of a file.

    Attributes:
        trace: the regret after each round of evaluations (as many as there are slots), infinite before the first
            feasible point.
        environment: the name of the environment, which has a line of its own.
    """

    runner: str
    version: str
    problem: str
    digest: str
    setting: str
    seed: int
    trace: tuple[float, ...]
    cpu: float
    repeats: int
    infeasible: int
    environment: str

    @property
    def key(self) -> RunKey:
        return (self.runner, self.version, self.problem, self.digest, self.setting, self.seed)

    @property
    def regret(self) -> float:
        """At the end."""
        return self.trace[-1]


class Store:
    """The runs in some folders; new ones go to the last of them.

    A line that is no JSON was cut off when its writer was killed: that run counts as not done.
    """

    def __init__(self, folders: Iterable[Path] = (COMMITTED, FRESH)) -> None:
        self._folders = tuple(folders)
        self.runs: dict[RunKey, StoredRun] = {}
        self.environments: dict[str, Mapping[str, Any]] = {}
        self._noted: dict[Path, set[str]] = defaultdict(set)  # environments that a file has
        for folder in self._folders:
            for path in sorted(folder.glob("*.jsonl")):
                self._read(path)

    def _read(self, path: Path) -> None:
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if "cpu_seconds" not in row:
                name = row.pop("environment")
                self.environments[name] = row
                self._noted[path].add(name)
                continue
            run = StoredRun(
                row["runner"],
                row["version"],
                row["problem"],
                row["digest"],
                row["setting"],
                row["seed"],
                tuple(math.inf if regret is None else regret for regret in row["trace"]),
                row["cpu_seconds"],
                row.get("repeats", 0),
                row.get("infeasible", 0),
                row["environment"],
            )
            self.runs[run.key] = run

    def add(self, result: RunResult, version: str, digest: str, slots: int, environment: Mapping[str, Any]) -> None:
        """Appends a run, and keeps it."""
        name = hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:8]
        rounds = [_rounded(regret) for regret in result.trace[slots - 1 :: slots]]
        row: dict[str, Any] = {
            "runner": result.runner,
            "version": version,
            "problem": result.problem,
            "digest": digest,
            "setting": result.setting,
            "seed": result.seed,
            "trace": [regret if math.isfinite(regret) else None for regret in rounds],
            "cpu_seconds": round(result.cpu, 3),
        }
        counts = {"repeats": result.repeats, "infeasible": result.infeasible}
        row |= {key: count for key, count in counts.items() if count}
        path = self._folders[-1] / f"{result.runner}.jsonl"
        lines = []
        if name not in self._noted[path]:
            lines.append({"environment": name, **environment})
            self._noted[path].add(name)
            self.environments[name] = environment
        lines.append({**row, "environment": name})
        _append(path, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        run = StoredRun(
            result.runner,
            version,
            result.problem,
            digest,
            result.setting,
            result.seed,
            tuple(rounds),
            result.cpu,
            result.repeats,
            result.infeasible,
            name,
        )
        self.runs[run.key] = run


def _rounded(regret: float) -> float:
    return float(f"{regret:.4g}")


def _append(path: Path, text: str) -> None:
    """One write, after whatever a killed writer left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                text = "\n" + text
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
