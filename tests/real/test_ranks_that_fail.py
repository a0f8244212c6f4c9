"""Real Horovod trainings, started by a pilot through horovodrun, of which one rank dies or hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_pilot.hpc.site_files import load_site
from hpo_pilot.transformation.process import WORKER_MARK
from tests.pilot.conftest import ROOT, FakePanda, PilotProcess, panda
from tests.real.processes import until

__all__ = ["panda"]

#: payloads/digits' training, in whose second epoch rank 1 does not go on; rank 0 waits for its gradients.
FAILING = """
import os, sys, time
import train_horovod as training

POINT = {"learning_rate": 0.002, "layers": 1, "width": 16, "alpha": 1e-4, "solver": "adam", "batch": 256, "epochs": 3}
run_epoch = training.run_epoch


def failing(point, model, optimizer, data, batches, epoch):
    if epoch == 2 and batches.ranks.rank == 1:
        print("I am rank 1", flush=True)
        if sys.argv[1] == "dies":
            raise ValueError("its images are lost")
        if sys.argv[1] == "is-killed":
            os.kill(os.getpid(), 9)
        time.sleep(600)
    run_epoch(point, model, optimizer, data, batches, epoch)


training.run_epoch, training.read_point = failing, lambda path: POINT
training.main()
"""
FILES = {"fails.py": FAILING, "train_horovod.py": (ROOT / "payloads" / "digits" / "train_horovod.py").read_text()}


@pytest.fixture
def pilot(tmp_path: Path, panda: FakePanda, environment: dict[str, str]) -> Iterator[PilotProcess]:
    """One that has the site profile of this machine, with room for two trainings of two ranks."""
    profile = load_site(ROOT / "deploy" / "sites" / "local.yaml").model_dump(mode="json")
    profile["launcher"] = {"name": "horovodrun"}
    (tmp_path / "site.json").write_text(json.dumps(profile))
    process = PilotProcess(tmp_path, panda.url)
    process.start("--site", str(tmp_path / "site.json"), "--cores", "4", variables=environment)
    yield process
    for started in process.processes:
        started.kill()
        started.wait()


def ranks_left(pilot: PilotProcess) -> list[str]:
    """The command lines of all processes that bear the mark of this pilot's jobs."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(WORKER_MARK, "").endswith(f"@{pilot.workdir}"):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue  # it ended meanwhile
    return found


def job(panda: FakePanda, how: str, **payload: Any) -> int:
    return panda.add_job(f"python fails.py {how}", FILES, {"coreCount": 2}, ranks_per_node=2, **payload)


def verdict(panda: FakePanda, panda_id: int) -> dict[str, Any]:
    report = panda.final(panda_id, 90.0)
    found: dict[str, Any] = json.loads(report["meta_data"])["user_job_metadata"]["hpo_pilot"]
    return found


def assert_none_is_left(pilot: PilotProcess) -> None:
    until(lambda: not ranks_left(pilot), lambda: str(ranks_left(pilot)))


def test_a_rank_that_dies_ends_all_and_says_why(panda: FakePanda, pilot: PilotProcess) -> None:
    dies, is_killed = job(panda, "dies"), job(panda, "is-killed")
    found = verdict(panda, dies)
    assert found["value"] is None and found["cause"] == ""
    assert found["message"].endswith(": rank 1: ValueError: its images are lost"), found["message"]
    assert "[0]<stdout>:epoch   1" in found["log_tail"] and "[1]<stdout>:I am rank 1" in found["log_tail"]
    found = verdict(panda, is_killed)
    assert found["value"] is None and "exit code 1: rank 1: Killed" in found["message"], found["message"]
    assert_none_is_left(pilot)
    assert len(panda.of(dies, "failed")) + len(panda.of(dies, "finished")) == 1, "one failure, not one of each rank"


def test_a_rank_that_hangs_ends_with_the_time_of_the_job(panda: FakePanda, pilot: PilotProcess) -> None:
    found = verdict(panda, job(panda, "hangs", minutes=0.25))
    assert found["value"] is None and found["cause"] == "limit"
    assert found["message"].startswith("the payload reached its time limit of 0.25 minutes")
    assert found["seconds"] < 15 + 30
    assert_none_is_left(pilot)


def test_ranks_that_hang_are_gone_when_the_pilot_ends(panda: FakePanda, pilot: PilotProcess) -> None:
    """Horovodrun gives each rank a session of its own; told to end, rank 0 waits for rank 1 for ever."""
    hung = job(panda, "hangs")
    wait_for_ranks(pilot)
    pilot.processes[-1].terminate()
    assert pilot.processes[-1].wait(600) == 0
    assert ranks_left(pilot) == []
    assert panda.of(hung, "failed")


def wait_for_ranks(pilot: PilotProcess) -> None:
    """Until rank 1 hangs."""
    logs = pilot.workdir.glob
    until(lambda: any("I am rank 1" in log.read_text() for log in logs("jobs/**/payload.log")), "rank 1")
    assert len(ranks_left(pilot)) > 2
