"""The package of the manual's page "Extending": installed by pip, checked, and used in a search."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import HPO_PILOT, Scan
from tests.image_root import make_image_root
from tests.manual.pages import MANUAL, listings

TRAIN = """
import json, os
point = json.load(open("input.json"))
if os.environ["RANK"] == "1":
    open("model.txt", "w").write(os.environ["WORLD_SIZE"] + " " + str(os.path.exists("/etc/image")))
else:
    json.dump({"status": 0, "loss": (point["x"] - 0.3) ** 2}, open("output.json", "w"))
"""


def files() -> dict[str, str]:
    return {one.file: one.text for one in listings(MANUAL / "extending.md") if one.file}


def install(package: Path, written: dict[str, str]) -> Path:
    """Installs a package in a folder of its own."""
    for name, text in written.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    installed = package / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", installed, package], check=True, timeout=600)
    return installed


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("plugin"), {**files(), "hpo_pilot_workstation/__init__.py": ""})


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no user namespaces")
    return make_image_root(tmp_path_factory.mktemp("image"))


def test_its_classes_keep_their_contracts(installed: Path, image: Path) -> None:
    command = [sys.executable, installed.parent / "check.py", image]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_search_with_all_of_them(scan: Scan, installed: Path, image: Path) -> None:
    sites = scan.root / "sites"
    sites.mkdir()
    (sites / "workstation.yaml").write_text(files()["workstation.yaml"])
    scan.environment |= {"PYTHONPATH": str(installed), "HPO_PILOT_SITES": str(sites)}
    scan.write(
        {
            "optimizer": {"name": "local", "step": 0.2},
            "payload": {
                "files": "payload",
                "command": "python3 -I -S train.py",
                "container": str(image),
                "outputs": ["model.txt"],
            },
            "resources": {"minutes": 1, "memory_mb": 500, "ranks_per_node": 2, "cores": 2},
            "site": {"profile": "workstation"},
        },
        TRAIN,
    )
    with scan.serving("--slots", "0"):
        scan("submit", str(scan.file))
        said = scan("pilots", "submit", "--site", "workstation", "--nodes", "1", "--walltime", "0:10").stdout
        name = said.split()[1]
        scan.until("done")
        assert name in scan("pilots", "list").stdout
        scan("pilots", "cancel", name)
    assert [trial["state"] for trial in scan.trials()] == ["finished"] * 4
    scan("fetch", "best", "demo", "-o", str(scan.root / "out"))
    (model,) = (scan.root / "out").glob("**/model.txt")
    assert model.read_text() == "2 True"


@pytest.mark.parametrize(
    ("value", "says"),
    [("hpo_pilot_broken:Missing", "has no attribute 'Missing'"), ("json:JSONDecoder", "must be a subclass of")],
)
def test_a_class_that_cannot_be_used_is_named(scan: Scan, tmp_path: Path, value: str, says: str) -> None:
    project = '[project]\nname = "broken"\nversion = "1"\n[tool.setuptools]\npy-modules = ["hpo_pilot_broken"]\n'
    groups = "".join(
        f'[project.entry-points."hpo_pilot.{group}"]\nbad = "{value}"\n'
        for group in ("optimizers", "batch_systems", "launchers", "runtimes")
    )
    written = {"pyproject.toml": project + groups, "hpo_pilot_broken.py": ""}
    scan.environment["PYTHONPATH"] = str(install(tmp_path / "plugin", written))
    scan.write({"optimizer": "bad"})
    site = scan.root / "here.yaml"
    site.write_text("{name: here, batch: {system: bad}, launcher: {name: bad}, containers: {runtime: bad}}")
    answers = [
        (scan("validate", str(scan.file), status=2).stderr, 1),
        (_run(scan, "sites", "check", str(site)), 3),
        (
            _run(
                scan, "pilot", "--container-runtime", "bad", "--server", "http://x", "--queue", "Q", "--token-file", "t"
            ),
            1,
        ),
    ]
    for said, count in answers:
        assert said.count(says) == count and "package broken" in said, said


def _run(scan: Scan, *words: str) -> str:
    env = {**os.environ, **scan.environment, "COLUMNS": "400"}
    done = subprocess.run([*HPO_PILOT, *words], env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2, done
    return done.stdout + done.stderr
