"""Searches in image roots that containers/build_root.py makes, through the real command; and the recipes' own tools."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.transformation.container import RUNTIMES, ContainerStart, Inside, image_architecture
from tests.end_to_end.conftest import Scan
from tests.image_root import SCRIPT
from tests.real.processes import missing, write_search

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
DIGITS = ROOT / "payloads" / "digits"
REQUIREMENTS = CONTAINERS / "sklearn" / "requirements.txt"
#: True in the image alone; this checkout may be in /tmp, which ch-run shows its containers.
IN_IMAGE = "test -d /home/payload && test ! -e /etc/apt"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpo_pilot"


@pytest.fixture(scope="session")
def image() -> Path:
    """The root of the sklearn family: kept, outside of the checkout, as long as what it is made of is the same."""
    python = f"{sys.base_prefix} {sys.version} {platform.platform()}"
    made_of = hashlib.sha256(python.encode() + SCRIPT.read_bytes() + REQUIREMENTS.read_bytes())
    root = CACHE / f"root-sklearn-{made_of.hexdigest()[:12]}"
    if not root.exists():
        argv = [sys.executable, str(SCRIPT), str(root), "--requirements", str(REQUIREMENTS)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        if not root.exists():  # nor made by a test beside this one
            missing(f"the image root cannot be made here: {done.stderr.strip()[-500:]}")
    return root


def test_the_root_is_of_this_machine_s_kind_and_small(image: Path) -> None:
    assert image_architecture(str(image)) == platform.machine()
    assert not [path for path in image.rglob("*") if path.name in ("pip", "gcc", "cc", "make") or path.suffix == ".a"]
    size = sum(path.lstat().st_size for path in image.rglob("*") if path.is_file())
    assert size < 500e6, f"{size / 1e6:.0f} MB"
    assert "payload:x:1000:" in (image / "etc" / "passwd").read_text()


@pytest.fixture
def alone(tmp_path: Path) -> str:
    """A PATH that has all of /usr/bin but the container runtimes other than Charliecloud: `run` takes the first one."""
    check_charliecloud()
    others = {program for kind in RUNTIMES.values() for program in kind.programs} - {"ch-run"}
    for program in [*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()]:
        link = tmp_path / "programs" / program.name
        link.parent.mkdir(exist_ok=True)
        if program.name not in others and not link.is_symlink():
            link.symlink_to(program)
    return str(tmp_path / "programs")


def check_charliecloud() -> None:
    if shutil.which("ch-run") is None:
        missing("ch-run: `make test-real` installs it, if root")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder outside of /tmp, of which containers have their own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="hpo-pilot-test-") as path:
        yield Path(path)


def write(scan: Scan, image: Path, command: str) -> None:
    """Two quick trials of payloads/digits."""

    def edit(document: Any) -> None:
        document["payload"] |= {"outputs": [], "container": str(image), "command": command}

    write_search(scan, DIGITS / "search.yaml", edit, folds=None, start=None, budget={"trials": 2, "parallel": 2})


def test_a_search_in_it(folder: Path, image: Path, alone: str) -> None:
    """With its Python and its scikit-learn."""
    scan = Scan(folder, {"PATH": alone})
    write(scan, image, f"{IN_IMAGE} && python train.py")
    scan("run", str(scan.file))
    trials = scan.trials()
    assert len(trials) == 2
    assert all(trial["value"] is not None and 0 < trial["value"] < 20 for trial in trials), trials


def test_two_ranks_of_horovod_in_it(folder: Path, image: Path, environment: dict[str, str]) -> None:
    """The launcher outside, a container around each rank; Horovod's venv is bound, and its Python is the image's."""
    runtime, python = RUNTIMES["charliecloud"], Path(environment["PATH"].split(":")[0]) / "python"
    check_charliecloud()
    if not (image / str(python.resolve()).lstrip("/")).exists():
        missing(f"Horovod was built for {python.resolve()}, the image has {sys.base_prefix}")
    shutil.copy(DIGITS / "train_horovod.py", folder)
    point = {
        "learning_rate": 0.002,
        "layers": 1,
        "width": 32,
        "alpha": 1e-3,
        "solver": "adam",
        "batch": 96,
        "epochs": 2,
    }
    (folder / "input.json").write_text(json.dumps(point))
    where = Inside(gpu_kind="none", read_only=[python.parents[1].resolve()])
    venv = python.parents[1].resolve() / "bin" / "python"
    rank = runtime.wrap(
        ContainerStart([str(venv), "train_horovod.py"], str(image), [folder], environment, folder, where)
    )
    done = subprocess.run(
        ["horovodrun", "-np", "2", "--gloo", *rank],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "output.json").read_text())
    assert result["status"] == 0 and 0 < result["loss"] < 3, result


@pytest.mark.long
def test_a_debian_of_its_own(tmp_path: Path) -> None:
    """Two minutes: it is fetched and configured."""
    check_charliecloud()
    if shutil.which("mmdebstrap") is None:
        missing("mmdebstrap: `make test-real` installs it, if root")
    argv = [sys.executable, str(SCRIPT), str(tmp_path / "root"), "--base", "debian"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    code = "import sys; print(sys.version_info[:2], open('/etc/debian_version').read())"
    argv = RUNTIMES["charliecloud"].wrap(
        ContainerStart(["python", "-c", code], str(tmp_path / "root"), [tmp_path], {}, tmp_path)
    )
    said = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert said.stdout.startswith("(3, 11) 12."), said.stderr


@pytest.mark.parametrize("path", sorted(CONTAINERS.glob("*/*Containerfile")), ids=lambda path: path.parent.name)
def test_recipes_pass_hadolint(path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        missing("hadolint: `make test-real` installs it")
    # DL3008, versions of Debian's packages: its releases keep one of each, and the base image says which release.
    done = subprocess.run([hadolint, "--ignore", "DL3008", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", sorted(CONTAINERS.glob("*/*.def")), ids=lambda path: path.stem)
def test_definition_files_are_read_and_their_scripts_parsed(path: Path) -> None:
    parsers = pytest.importorskip("spython.main.parse.parsers", reason="spython: `make test-real` installs it")
    recipe = parsers.SingularityParser(str(path)).recipe["spython-base"]
    assert recipe.fromHeader.startswith("docker.io/")
    assert recipe.files and recipe.install and recipe.environ and recipe.labels
    for part in ("post", "environment", "test"):
        lines = re.search(rf"^%{part}\n((?:    .*\n)*)", path.read_text(), re.MULTILINE)
        script = re.sub(r"{{ \w+ }}", "given", lines[1]) if lines else ""
        done = subprocess.run(["/bin/sh", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
