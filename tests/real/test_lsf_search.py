"""A whole search on an LSF that is not there: stubs check what real commands check, and run what they are given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.conftest import Scan
from tests.real.processes import serving, until

ROOT = Path(__file__).parents[2]

#: Two ranks on each of two nodes; the first waits for the others.
RANKS = """
import json, os, time
rank = os.environ["PMIX_RANK"]
mine = [os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HPO_PILOT_SEED"], os.environ["OMP_NUM_THREADS"]]
with open("new-" + rank, "w") as file:
    json.dump(mine, file)
os.rename("new-" + rank, "rank-" + rank)
if rank == "0":
    while not all(os.path.exists("rank-%d" % other) for other in range(4)):
        time.sleep(0.02)
    assert all(json.load(open("rank-%d" % other)) == mine for other in range(4))
    x = json.load(open("input.json"))["x"]
    json.dump({"loss": (x - 0.3) ** 2, "metrics": {"gpus": mine[0].count(",") + 1}}, open("output.json", "w"))
"""

#: tests/hpc/stubs/lsf.py looks at the options and keeps the books; the script then runs as LSF would run it.
BSUB = """#!/bin/sh
script=$(mktemp "$LSF_STUB/script.XXXXXX")
cat >"$script"
said=$({python} {stub} bsub <"$script") || exit $?
echo "$said"
CUT_LOOSE='import os, sys; os.closerange(3, 256); os.setsid(); os.execvp("bash", ["bash", sys.argv[1]])'
log=$(sed -n 's/^#BSUB -o //p' "$script")
(
    export LSB_JOBID=1000 LSB_MCPU_HOSTS="batch1 1 a01n01 42 a01n02 42" LSB_HOSTS="batch1 a01n01 a01n02"
    export STUB_CPUS=42 STUB_GPUS=6
    exec {python} -c "$CUT_LOOSE" "$script" >>"$log" 2>&1 </dev/null
) &
echo $! >"$LSF_STUB/pid"
"""
BJOBS = """#!/bin/sh
[ "$3" = time_left ] && echo "1:59 L" && exit
exec {python} {stub} bjobs "$@"
"""
BKILL = """#!/bin/sh
kill -TERM "$(cat "$LSF_STUB/pid")"
exec {python} {stub} bkill "$@"
"""


@pytest.fixture
def lsf(tmp_path: Path) -> dict[str, str]:
    """The variables that lead to the stubs; a project that is charged is ABC123."""
    tools = tmp_path / "tools"
    tools.mkdir()
    names = {"python": sys.executable, "stub": ROOT / "tests" / "hpc" / "stubs" / "lsf.py"}
    jsrun = f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/hpc/stub_jsrun.py "$@"\n'
    scripts = {"bsub": BSUB.format(**names), "bjobs": BJOBS.format(**names), "bkill": BKILL.format(**names)}
    for name, text in {**scripts, "jsrun": jsrun}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tools / "project").write_text("ABC123")
    return {"LSF_STUB": str(tools), "PATH": f"{tools}:/usr/bin:/bin"}


def summit() -> dict[str, Any]:
    """The profile but for what this machine lacks: modules, NVMe, GPFS, a way out through OLCF's proxy."""
    profile: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "sites" / "summit.yaml").read_text())
    for name in ("modules", "scratch", "network", "containers"):
        del profile[name]
    return {**profile, "name": "like-summit"}


def test_a_search_of_two_node_trials(lsf: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "like-summit.yaml").write_text(yaml.safe_dump(summit()))
    scan = Scan(tmp_path, {**lsf, "HPO_PILOT_SITES": str(tmp_path / "sites")})
    needs = {"nodes": 2, "ranks_per_node": 2, "gpus_per_node": 6, "cores": 42, "memory_mb": 1000, "minutes": 5}
    scan.write({"resources": needs, "site": {"profile": "like-summit"}}, RANKS)
    asked = ["pilots", "submit", "--site", "like-summit", "--nodes", "2", "--walltime", "2:00", "--account"]
    with serving(scan):
        scan("submit", str(scan.file))
        assert "User is not in project nope" in scan(*asked, "nope", status=2).stderr
        name = scan(*asked, "ABC123").stdout.split()[1]
        log = scan.workdir / "allocations" / name / "output.log"
        until(lambda: scan.json("status", "demo")["state"] == "done", log)
        assert f"cancelled {name}, job 1000" in scan("pilots", "cancel", name).stdout
        until(lambda: "pilot ends" in log.read_text(), log)
        trials = scan.trials()
    assert "allocation of 2 nodes (a01n01, a01n02)" in log.read_text() and "4 finished" in log.read_text()
    assert [trial["state"] for trial in trials] == ["finished"] * 4
    assert {fold["metrics"]["gpus"] for trial in trials for fold in trial["folds"]} == {6.0}
