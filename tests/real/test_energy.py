"""The energy of a job step on two nodes of a real Slurm, whose counters are a file of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hpo_pilot.hpc.launcher import Placement
from hpo_pilot.hpc.launchers import make_launcher
from tests.real.slurm import Slurm, slurm
from tests.runner.conftest import RUNNER
from tests.runner.test_energy import MEASURED_BY_ALL, SPACE, cray

__all__ = ["slurm"]


def test_both_nodes_are_added_up(slurm: Slurm, tmp_path: Path) -> None:
    cray(tmp_path, 100)
    for name in ("orphans", "energy"):
        text = (RUNNER.parent / f"hpo_pilot_{name}.py").read_text()
        (tmp_path / f"hpo_pilot_{name}.py").write_text(text.replace("/sys/cray/pm_counters", f"{tmp_path}/cray"))
    told = {"CORES": str(os.cpu_count()), "GPUS": "0", "MEASURED": str(tmp_path / "hpo_pilot_measured")}
    where = Placement(("n1", "n2"), 2, environment={f"HPO_PILOT_{name}": value for name, value in told.items()})
    payload = f"{MEASURED_BY_ALL.format(ranks=4)}; echo '900 J 1 us' > {tmp_path}/cray/energy"
    wrapped = [sys.executable, "-I", "-S", str(tmp_path / "hpo_pilot_orphans.py"), "/bin/sh", "-c", payload]
    srun = make_launcher({"name": "srun"})
    words, env = (
        ["salloc", "-N2", "--exclusive", *srun.command(wrapped, where)],
        srun.environment(where, slurm.environment),
    )
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    read = [json.loads(path.read_text()) for path in (tmp_path / "hpo_pilot_energy").iterdir()]
    assert sorted(one["at"] for one in read) == ["n1", "n1", "n2", "n2"]
    assert SPACE["total"](read, 2) == {"energy_joules": 1600.0}
