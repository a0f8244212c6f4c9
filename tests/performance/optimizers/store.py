"""Stored results, and what tells results of other versions apart."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from hpo_pilot.optimizers import optimizer_class, optimizer_names
from tests.performance.optimizers.run import RunResult
from tests.performance.optimizers.runners import OURS, runner_class

# Which code and which machine a stored result is of.

_PACKAGES = ("hpo_pilot.optimizers", "hpo_pilot.search")
_MAKERS = {"create_optimizer", "optimizer_class"}
_LIBRARIES = ("numpy", "scipy", "scikit-learn", "scikit-optimize", "deap")


@cache
def runner_version(runner: str) -> str:
    """What has to be the same for two results of a runner to be of one kind.

    Ours: a digest of the sources that the optimizer imports, and the versions of the libraries under it. Peers: the
    revision of the code here that drives them; the versions of their libraries stand in the environment.
    """
    if runner not in OURS:
        return f"r{runner_class_revision(runner)}"
    digest = hashlib.sha256()
    for path in sorted(_sources(optimizer_class(runner).__module__)):
        digest.update(path.read_bytes())
    digest.update(json.dumps(library_versions(_LIBRARIES)).encode())
    return digest.hexdigest()[:10]


def runner_class_revision(runner: str) -> int:
    """The revision of a peer's class; 1 where its library is missing, so that its stored results can be shown."""
    try:
        return runner_class(runner).revision
    except ImportError:
        return 1


def _sources(module: str) -> set[Path]:
    """The files of `module` and of what it imports from the packages named above, directly or not."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        spec = find_spec(name) if name.startswith(_PACKAGES) else None
        if spec is None or spec.origin is None or Path(spec.origin) in found:
            continue
        path = Path(spec.origin)
        found.add(path)
        waiting += _imported(path)
    return found


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if _MAKERS & {alias.name for alias in node.names}:  # it makes others by name: any of them
                yield from (optimizer_class(name).__module__ for name in optimizer_names())
            yield from (f"{node.module}.{alias.name}" for alias in node.names if _is_module(node.module, alias.name))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _is_module(package: str, name: str) -> bool:
    return package.startswith(_PACKAGES) and find_spec(package) is not None and _has_file(package, name)


def _has_file(package: str, name: str) -> bool:
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return any(Path(folder, f"{name}.py").exists() for folder in folders or ())


def library_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Name to version; those not installed are left out."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def environment(runner: str) -> dict[str, object]:
    """The machine and the versions that a run of `runner` has now."""
    libraries = _LIBRARIES if runner in OURS else runner_class(runner).libraries
    return {
        "cpu": _cpu_model(),
        "python": platform.python_version(),
        "libraries": library_versions(libraries),
    }


@cache
def _cpu_model() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


# Results of runs in files of JSON lines, each appended at once, so that a killed suite goes on where it was.

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
    recommended: float | None = None

    @property
    def key(self) -> RunKey:
        return (self.runner, self.version, self.problem, self.digest, self.setting, self.seed)

    @property
    def regret(self) -> float:
        """At the end, of the recommended point if there is one."""
        return self.trace[-1] if self.recommended is None else self.recommended


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
            self._keep(row)

    def _keep(self, row: Mapping[str, Any]) -> None:
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
            row.get("recommended"),
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
        if result.recommended is not None:
            row["recommended"] = _rounded(result.recommended)
        path = self._folders[-1] / f"{result.runner}.jsonl"
        lines = []
        if name not in self._noted[path]:
            lines.append({"environment": name, **environment})
            self._noted[path].add(name)
            self.environments[name] = environment
        row["environment"] = name
        lines.append(row)
        _append(path, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        self._keep(row)


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
