"""Trials that share a GPU: as many at once as its shares, each told its part, and charged for it."""

from __future__ import annotations

import os

import pytest

from tests.end_to_end.conftest import Scan
from tests.programs import program

#: Ends when as many trials run beside it as there are shares, or after ten minutes.
TOGETHER = """
import json, os, pathlib, time
here = pathlib.Path(os.environ["MEETING"])
(here / os.environ["HPO_PILOT_TRIAL"]).touch()
end = time.monotonic() + 600
while len(list(here.iterdir())) < 4 and time.monotonic() < end:
    time.sleep(0.05)
names = ("CUDA_VISIBLE_DEVICES", "HPO_PILOT_GPU_MEMORY_MB", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
seen = [os.environ.get(name) for name in names]
together = len(list(here.iterdir()))
json.dump({"status": 0, "loss": together}, open("output.json", "w"))
open("seen.json", "w").write(json.dumps(seen))
"""


def test_four_trials_on_two_gpus(scan: Scan) -> None:
    tools = program(scan.root / "tools" / "nvidia-smi", 'echo "0, A100, 40000, 550"; echo "1, A100, 40000, 550"').parent
    (scan.root / "meeting").mkdir()
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    scan.environment |= {"PATH": path, "MEETING": str(scan.root / "meeting")}
    scan.write(
        {
            "budget": {"trials": 4, "parallel": 4},
            "payload": {"files": "payload", "command": "python3 -I -S train.py", "outputs": ["seen.json"]},
            "resources": {"minutes": 20, "memory_mb": 100, "gpus_per_node": 0.5},
        },
        TOGETHER,
    )
    scan("run", str(scan.file), "--slots", "4")
    trials = scan.trials()
    assert [trial["value"] for trial in trials] == [4.0] * 4, "all ran at the same time"
    scan("fetch", "best", "demo", "-o", str(scan.root / "out"))
    (seen,) = (scan.root / "out").glob("**/seen.json")
    assert seen.read_text() in ('["0", "20000", null]', '["1", "20000", null]')
    cost = scan.json("status", "demo")["cost"]
    assert cost["gpu_hours"] == pytest.approx(cost["core_hours"] / 2)
