"""A pilot in an allocation whose commands are stubs, and whose nodes have scratch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pilot.conftest import panda, pilot, verdict
from tests.pilot.test_with_launcher import SLURM, inside, launched, site, tools

__all__ = ["panda", "pilot", "tools"]

#: How many are read from the node's scratch.
LOOK = """found=0
for name in data.bin weights.txt; do
    case $(readlink $name) in */scratch/hpo-pilot-7-*) found=$((found + 1)) ;; esac
    [ -s $name ] || exit 3
done
echo '{"status": 0, "loss": '$found'}' > output.json"""


def steps(tools: Path, what: str) -> int:
    return sum(f"hpo_pilot_stage.py {what} " in line for line in launched(tools))


@pytest.mark.parametrize("wanted", [True, False])
def test_jobs_of_an_allocation(panda, pilot, tools, tmp_path, wanted):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "data.bin").write_bytes(bytes(2 << 20))
    files = {"weights.txt": "w" * (17 << 20)}
    said = {"inputs": [str(tmp_path / "data.bin")], "nodes": 2, "ranks_per_node": 1}
    job = panda.add_job(LOOK, files, **said)
    same = {"jobPars": panda.waiting[0]["jobPars"]}
    here = site(tmp_path, "srun", **SLURM, scratch={"node": f"{tmp_path}/$KIND"})
    options = [*here, "--allocation", "--no-agents", *([] if wanted else ["--no-staging"])]
    pilot.start(*options, variables={**inside(tools), "KIND": "scratch"})
    first = verdict(panda.final(job))
    others = [panda.add_job(LOOK, job=same) for _ in range(2)]
    later = [verdict(panda.final(job)) for job in others]
    assert [one["value"] for one in (first, *later)] == ([2.0] * 3 if wanted else [0.0] * 3)
    assert pilot.end() == 0
    assert (steps(tools, "copy"), steps(tools, "remove")) == ((1, 1) if wanted else (0, 0))
    assert not list((tmp_path / "scratch").iterdir()) and not list(tmp_path.glob("work/staging/*/*"))
    if wanted:
        assert first["metrics"]["stage_in_seconds"] > max(one["metrics"]["stage_in_seconds"] for one in later)
        assert re.search(r"2 files or folders of 19 MB staged on 2 nodes", pilot.said())
    else:
        assert "stage_in_seconds" not in first["metrics"]
