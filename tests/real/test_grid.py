"""deploy/grid/pilot.sh: a pilot from a folder of `make pilot` that was copied elsewhere, and from an image root."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pilot.conftest import GOOD, FakePanda, PilotProcess, panda, pilot, verdict
from tests.programs import program

__all__ = ["panda", "pilot"]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "grid" / "pilot.sh"
#: The payload gets nothing of the pilot's.
PAYLOAD = f'test -z "$PYTHONPATH" && {GOOD}'
BASE_PYTHON = Path(sys.base_prefix, "bin", "python3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder at another place than where it was made, as on CVMFS."""
    made, copy = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("cvmfs") / "pilot"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", made, ROOT], check=True, timeout=600)
    shutil.move(made, copy)
    return copy


def start(pilot: PilotProcess, source: Path, **variables: str) -> subprocess.Popen[bytes]:
    argv = [
        "env",
        "-i",
        *(f"{name}={value}" for name, value in variables.items()),
        ROOT / "deploy" / "grid" / "pilot.sh",
    ]
    options = ["--server", pilot.url, "--queue", "LOCAL", "--token-file", pilot.token_file, "--workdir", "work"]
    with pilot.log.open("ab") as log:
        process = subprocess.Popen([*argv, source, *options], stdout=log, stderr=log, cwd=pilot.folder)
    pilot.processes.append(process)
    return process


def test_a_copied_folder_runs_jobs_without_pip(folder: Path, pilot: PilotProcess, panda: FakePanda) -> None:
    job = panda.add_job(PAYLOAD)
    process = start(pilot, folder, PATH="/usr/bin:/bin", HPO_PILOT_PYTHON=str(BASE_PYTHON))
    assert verdict(panda.final(job))["value"] == 0.5
    process.terminate()
    assert process.wait(600) == 0, pilot.said()


def test_an_image_root_is_run_by_apptainer(folder: Path, pilot: PilotProcess, panda: FakePanda, tmp_path: Path) -> None:
    """With a program in apptainer's place that runs the same words here: apptainer itself is not in Debian."""
    image, tools = tmp_path / "image", tmp_path / "tools"
    (image / "usr").mkdir(parents=True)
    program(
        tools / "apptainer",
        f'''test "$1 $2 $4 $5" = "exec --bind --pwd $PWD" || exit 64
case ",$3," in *",$PWD,"*) ;; *) exit 65 ;; esac
test "$6" = {image} && shift 6 && test "$1 $2" = "python3 -I" && shift 2
exec {sys.executable} "$@"''',
    )
    job = panda.add_job(PAYLOAD)
    process = start(pilot, image, PATH=f"{tools}:/usr/bin:/bin")
    assert verdict(panda.final(job))["value"] == 0.5
    process.terminate()
    assert process.wait(600) == 0, pilot.said()


@pytest.mark.parametrize(
    ("source", "says"), [("image", "no apptainer"), ("nothing", "is CVMFS mounted?"), ("folder", "HPO_PILOT_PYTHON")]
)
def test_it_says_what_is_missing(tmp_path: Path, pilot: PilotProcess, source: str, says: str) -> None:
    (tmp_path / "image" / "usr").mkdir(parents=True)
    (tmp_path / "folder" / "hpo_pilot").mkdir(parents=True)
    assert start(pilot, tmp_path / source, PATH="/nowhere").wait(600) == 2
    assert says in pilot.said()
