"""Which code and which machine a stored result is of."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from hpo_pilot.optimizers import optimizer_class, optimizer_names
from tests.performance.optimizers.runners import OURS, runner_class

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
