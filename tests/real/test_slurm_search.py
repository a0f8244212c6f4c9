"""A whole search on a real Slurm of two nodes: Horovod trials in containers side by side, through two allocations."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.conftest import HPO_PILOT, Scan
from tests.real.processes import missing, serving, until
from tests.real.slurm import Slurm, slurm
from tests.real.test_images import IN_IMAGE, image

__all__ = ["image", "slurm"]

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "payloads" / "digits"
TRIALS, EPOCHS = 3, 12

#: The training, which in the first allocation stops after its first checkpoint, and waits there.
PACED = """
import os, time
import train_horovod

class Waiting(train_horovod.Checkpoint):
    def save(self, *state):
        super().save(*state)
        if os.environ["HPO_PILOT_ATTEMPT"] == "1":
            time.sleep(300)

train_horovod.Checkpoint = Waiting
train_horovod.main()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Seen by all nodes, and not in /tmp, of which containers have their own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="hpo-pilot-test-") as path:
        yield Path(path)


def profile(venv: Path) -> dict[str, Any]:
    """A cluster whose users have Horovod with gloo, in a folder that their containers see."""
    return {
        "name": "here",
        "node": {"count": 2, "cores": 8, "memory_mb": 4000},
        "batch": {
            "system": "slurm",
            "queue": "debug",
            "queues": {"debug": {"walltime": [{"nodes": 2, "hours": 1.0}]}},
            # The pilot takes an early warning at its word: so much time is left then.
            "warning": {"signal": "USR1", "seconds": 4},
        },
        "launcher": {"name": "srun"},
        "containers": {"runtime": "charliecloud", "read_only": [str(venv)]},
        # The names of these nodes are Slurm's alone.
        "environment": {"MASTER_ADDR": "127.0.0.1"},
    }


def search(image: Path, python: Path, files: Path) -> dict[str, Any]:
    files.mkdir()
    shutil.copy(DIGITS / "train_horovod.py", files)
    (files / "paced.py").write_text(PACED)
    document: dict[str, Any] = yaml.safe_load((DIGITS / "search-horovod.yaml").read_text())
    for name in ("scaling", "warmup", "momentum"):
        del document["space"][name]
    document["space"]["batch"]["choices"] = [128, 256]
    document["space"]["epochs"] = {"type": "categorical", "choices": [EPOCHS]}
    document["payload"] |= {"files": str(files), "outputs": [], "container": str(image)}
    document["payload"]["command"] = f"{IN_IMAGE} && {python} paced.py"
    document["resources"] = {"ranks_per_node": 2, "cores": 4, "memory_mb": 1500, "minutes": 5}
    document |= {"search": "demo", "optimizer": "random", "folds": 1, "site": {"profile": "here"}}
    return {**document, "budget": {"trials": TRIALS, "parallel": TRIALS}}


def test_a_search_from_its_file_to_its_report(slurm: Slurm, folder: Path, image: Path, horovod: Path) -> None:
    if not (image / str(horovod.resolve()).lstrip("/")).exists():
        missing(f"Horovod was built for {horovod.resolve()}, the image has {sys.base_prefix}")
    (folder / "sites").mkdir()
    (folder / "sites" / "here.yaml").write_text(yaml.safe_dump(profile(horovod.parents[1].resolve())))
    environment = {name: slurm.environment[name] for name in ("PATH", "SLURM_CONF")}
    scan = Scan(folder, {**environment, "HPO_PILOT_SITES": str(folder / "sites"), "OMP_NUM_THREADS": "1"})
    scan.file.write_text(yaml.safe_dump(search(image, horovod.parents[1].resolve() / "bin" / "python", folder / "p")))
    assert f"at once      {TRIALS} jobs" in subprocess.run(
        [*HPO_PILOT, "plan", str(scan.file), "--site", "here"],
        env={**os.environ, **scan.environment}, capture_output=True, text=True, timeout=600, check=True,
    ).stdout  # fmt: skip

    def allocate() -> tuple[str, str, Path]:
        """Name, job and log of an allocation of both nodes."""
        said = scan("pilots", "submit", "--site", "here", "--nodes", "2", "--walltime", "0:20").stdout
        name, job = said.split()[1], said.split(" as job ")[1].split(":")[0]
        return name, job, scan.workdir / "allocations" / name / "output.log"

    with serving(scan):
        scan("submit", str(scan.file))
        _, job, log = allocate()
        kept = scan.workdir / "checkpoints"
        until(lambda: len(list(kept.glob("*/*/t*f0/.kept"))) == TRIALS, log)
        steps = slurm.run("squeue", "--steps", "--noheader", "--format=%j %N").splitlines()
        named = [line for line in steps if line.startswith("hpo-pilot-")]
        running = [line.split()[1] for line in named if not line.startswith("hpo-pilot-agents ")]
        assert len(running) == TRIALS and set(running) == {"n1", "n2"}, steps
        slurm.run("scancel", "--batch", "--signal=USR1", job)
        slurm.wait(job, "COMPLETED")
        said = log.read_text()
        assert "the batch system warns" in said and said.count("is in the queue again") == TRIALS, said
        assert f"{TRIALS} checkpointed" in said
        name, job, log = allocate()
        until(lambda: scan.json("status", "demo")["state"] == "done", log)
        assert f"cancelled {name}, job {job}" in scan("pilots", "cancel", name).stdout
        until(lambda: "pilot ends" in log.read_text(), log)
        assert f"{TRIALS} resumed" in log.read_text()
        trials = scan.trials()
        scan("report", "demo", "-o", str(folder / "report.html"))
    assert [trial["state"] for trial in trials] == ["finished"] * TRIALS
    for trial in trials:
        (fold,) = trial["folds"]
        assert 0 < trial["value"] < 20 and fold["metrics"]["ranks"] == 2 and fold["metrics"]["epochs"] == EPOCHS
        assert [rank["rank"] for rank in fold["metadata"]["hpo_pilot_ranks"]] == [0, 1], json.dumps(fold)[:2000]
    assert "Use of the ranks" in (folder / "report.html").read_text()
