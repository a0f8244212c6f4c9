"""In which Python payloads run: that of the environment active where the search was submitted, or `payload.python`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.conftest import Scan

#: Needs a module that one environment alone has, and notes where it ran.
PAYLOAD = """
import json, os, shutil, sys
import marker
point = json.load(open("input.json"))
names = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "GREETING")
seen = {name: os.environ.get(name) for name in names}
seen.update(marker=marker.NAME, prefix=sys.prefix, python3=shutil.which("python3"), path=os.environ["PATH"])
with open(os.environ["SEEN"], "a") as file:
    file.write(json.dumps(seen) + "\\n")
json.dump({"status": 0, "loss": point["x"] ** 2}, open("output.json", "w"))
"""

#: A torchrun of the environment's own: two ranks, one after another.
TORCHRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
for rank in 0 1; do RANK=$rank WORLD_SIZE=2 "$@" || exit 1; done
"""

OUR_PYTHON = Path(sys.executable).parent
TWO_RANKS = {"minutes": 1, "memory_mb": 500, "ranks_per_node": 2, "cores": 2}


def make_venv(folder: Path) -> Path:
    """A real virtual environment that holds a module `marker`."""
    base = Path(sys.base_prefix, "bin", "python3")
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True, timeout=600)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "marker.py").write_text(f"NAME = {folder.name!r}\n")
    (folder / "bin" / "torchrun").write_text(TORCHRUN)
    (folder / "bin" / "torchrun").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def venvs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("venvs")
    return make_venv(folder / "one"), make_venv(folder / "other")


def active(venv: Path, **more: str) -> dict[str, str]:
    """The variables of a shell in which that environment is active; hpo-pilot itself is not in its PATH."""
    programs = [entry for entry in os.environ["PATH"].split(os.pathsep) if Path(entry) != OUR_PYTHON]
    return {"PATH": os.pathsep.join([f"{venv}/bin", *programs]), "VIRTUAL_ENV": str(venv), **more}


@pytest.fixture
def search(scan: Scan, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME"):
        monkeypatch.delenv(name, raising=False)
    (scan.root / "seen.jsonl").touch()  # beside its work folder, the pilot of a service lets no payload make new files
    monkeypatch.setenv("SEEN", str(scan.root / "seen.jsonl"))

    def write(payload: dict[str, Any] | None = None, **document: Any) -> None:
        payload = {"files": "payload", "command": "python train.py", **(payload or {})}
        scan.write({"budget": {"trials": 2, "parallel": 1}, "payload": payload, **document}, PAYLOAD)

    return write


def seen(scan: Scan) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (scan.root / "seen.jsonl").read_text().splitlines()]


def check(found: dict[str, Any], venv: Path) -> None:
    """A payload ran in that environment, and nothing of ours was there."""
    assert (found["marker"], found["prefix"]) == (venv.name, str(venv))
    assert (found["VIRTUAL_ENV"], found["CONDA_PREFIX"]) == (str(venv), None)
    assert (found["PYTHONPATH"], found["PYTHONHOME"]) == (None, None)
    assert str(OUR_PYTHON) not in found["path"].split(os.pathsep)


@pytest.mark.parametrize("launcher", [None, "mpirun"], ids=["torchrun", "mpirun"])
def test_run_uses_the_active_environment(
    scan: Scan, search: Any, venvs: tuple[Path, Path], launcher: str | None
) -> None:
    """Also where ranks are started; hpo-pilot is called by its path, its own environment being another."""
    search(resources=TWO_RANKS)
    variables = {}
    if launcher:
        if not shutil.which(launcher):
            pytest.skip(f"{launcher} is not installed")
        (scan.root / "sites").mkdir()
        profile = {"name": "local", "launcher": {"name": launcher, "options": ["--oversubscribe"]}}
        (scan.root / "sites" / "local.yaml").write_text(yaml.safe_dump(profile))
        variables = {"HPO_PILOT_SITES": str(scan.root / "sites")}
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    scan.environment |= active(venvs[0], **variables)
    scan("run", str(scan.file), "--slots", "2")
    assert len(seen(scan)) == 4
    for found in seen(scan):
        check(found, venvs[0])


def test_an_interrupted_run_goes_on_in_the_environment_of_the_new_call(
    scan: Scan, search: Any, venvs: tuple[Path, Path]
) -> None:
    search()
    scan.environment |= active(venvs[0])
    scan("run", str(scan.file))
    search(budget={"trials": 3, "parallel": 1})
    scan.environment |= active(venvs[1])
    scan("run", str(scan.file))
    assert [found["marker"] for found in seen(scan)] == ["one", "one", "other"]


def test_a_service_runs_each_search_in_the_environment_of_its_submit(
    scan: Scan, search: Any, venvs: tuple[Path, Path]
) -> None:
    """The service is in one environment, two users' shells in others; one of them mends the payload later."""
    one, other = venvs
    scan.environment |= active(OUR_PYTHON.parent, GREETING="of the service")
    with scan.serving("--slots", "2"):
        for name, venv in (("first", one), ("second", other)):
            search(search=name)
            scan.environment = active(venv, GREETING=f"for {name}")
            scan("submit", str(scan.file))
            scan.until("done", name)
        found = seen(scan)
        assert [(line["marker"], line["GREETING"]) for line in found] == [
            *[("one", "for first")] * 2,
            *[("other", "for second")] * 2,
        ]
        for line in found:
            check(line, one if line["marker"] == "one" else other)
        scan.environment = active(one)
        scan.here("extend", "second", "--trials", "+1")
        scan.until("done", "second", trials=3)
        assert seen(scan)[-1]["marker"] == "other"  # no new payload, no new environment
        kept = list((scan.workdir / "environments").iterdir())
        assert len(kept) == 2 and {path.stat().st_mode & 0o777 for path in kept} == {0o600}


def test_the_search_file_names_the_interpreter(scan: Scan, search: Any, venvs: tuple[Path, Path]) -> None:
    """For `python`, for `python3`, for scripts that call them, and for what starts ranks."""
    one, other = venvs
    command = "python3 -c 'import marker' && sh -c 'python train.py'"
    search({"python": f"{other}/bin/python", "command": command}, resources=TWO_RANKS)
    (one / "bin" / "torchrun").rename(one / "bin" / "hidden")
    try:
        scan.environment |= active(one)
        scan("run", str(scan.file), "--slots", "2")
    finally:
        (one / "bin" / "hidden").rename(one / "bin" / "torchrun")
    assert seen(scan)
    for found in seen(scan):
        check(found, other)


def test_validate_and_doctor_say_which_python_it_is(scan: Scan, search: Any, venvs: tuple[Path, Path]) -> None:
    scan.environment |= active(venvs[0])
    search()
    assert f"python is {venvs[0]}/bin/python" in scan.here("validate", str(scan.file)).stdout
    assert f"{venvs[0]}/bin/python" in scan.here("doctor").stdout
    search({"python": f"{venvs[1]}/bin/python"})
    assert f"python is {venvs[1]}/bin/python" in scan.here("validate", str(scan.file)).stdout
