"""Trainings that torchrun starts: DDP and FSDP timed from inside, searched, killed; the manual's listings."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Scan
from tests.manual.pages import MANUAL, listings
from tests.real.processes import missing, until, write_search
from tests.runner.conftest import Bench, encoded

PAYLOADS = Path(__file__).parents[2] / "payloads"
TWO_RANKS = "torchrun --standalone --nproc-per-node=2"

#: A training of two ranks whose second one computes longer, in DDP or sharded.
DELAYED = """
import json, sys, time
import torch
import torch.distributed as dist
import hpo_pilot_ranks as ranks

dist.init_process_group()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))
if sys.argv[1] == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dist.barrier()
ranks.start()
model = ranks.model(model)
for images in ranks.loader([torch.ones(32, 64)] * 20):
    optimizer.zero_grad()
    model(images).sum().backward()
    time.sleep(0.02 + 0.05 * dist.get_rank())
    optimizer.step()
    ranks.images(32)
if dist.get_rank() == 0:
    json.dump({"loss": 1.0}, open("output.json", "w"))
time.sleep(0.5)  # a thread of gloo that frees a tensor while Python ends aborts the process
"""
SMALL = {"learning_rate": 0.005, "batch": 12, "layers": 1, "heads": 2, "head_width": 8, "warmup": 5, "steps": 75}


@pytest.fixture
def seconds() -> float:
    return 240.0


@pytest.fixture
def payload_files() -> list[Path]:
    return list((PAYLOADS / "transformer").glob("*.py"))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_rank_that_waits_for_another_communicates(tmp_path: Path, environment: dict[str, str], kind: str) -> None:
    """The payload calls no `stop`: the time until its end counts."""
    bench, planted = Bench(tmp_path), 20 * 0.05
    for _ in range(3):  # on a busy machine the other rank is late itself
        ended = bench.run(f"{TWO_RANKS} delayed.py {kind}", files={"delayed.py": DELAYED}, env=environment)
        assert ended.verdict is not None and ended.verdict["value"] == 1.0, ended
        metrics = ended.verdict["metrics"]
        first, second = json.loads((ended.folder / "userJobMetadata.json").read_text())["hpo_pilot_ranks"]
        if first["communication"] - second["communication"] > planted / 2:
            break
    else:
        pytest.fail(f"{first} did not wait for {second}")
    assert metrics["ranks"] == 2 and metrics["images_per_second"] > 0
    assert metrics["pop_parallel_efficiency"] < metrics["pop_load_balance"] < 0.9


def test_a_search_shows_how_well_ddp_uses_its_ranks(environment: dict[str, str], tmp_path: Path, horovod: Path) -> None:
    """In a Python whose Horovod cannot be imported."""
    hidden = tmp_path / "hidden" / "horovod"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not here')")
    scan = Scan(tmp_path, {"PATH": environment["PATH"]})

    def edit(document: Any) -> None:
        document["payload"]["command"] = (
            f"env PYTHONPATH={hidden.parent} python train.py --synthetic 320 --classes 4 --size 32 --depth 14 "
            "--width 8 --epochs 2"
        )
        document["payload"]["outputs"] = ["model.pt", "ranks_timeline.json"]

    write_search(scan, PAYLOADS / "resnet50" / "search.yaml", edit, budget={"trials": 1, "parallel": 1})
    scan("run", str(scan.file), timeout=600)
    (trial,) = scan.trials()
    (fold,) = trial["folds"]
    metrics = fold["metrics"]
    assert (trial["state"], metrics["ranks"]) == ("finished", 2)
    assert 0 < metrics["pop_parallel_efficiency"] <= metrics["pop_load_balance"] <= 1
    assert metrics["communication_seconds"] > 0 and metrics["images_per_second"] > 0
    scan("fetch", "best", "demo", "-o", str(tmp_path / "best"))
    (timeline,) = (tmp_path / "best").rglob("ranks_timeline.json")
    events = json.loads(timeline.read_text().rstrip(",\n") + "]")
    assert {event["pid"] for event in events} == {0, 1}
    assert {event["name"] for event in events} == {"compute", "communication", "input"}


def test_a_sharded_checkpoint_goes_on_with_any_number_of_ranks(train: Any, start: Any, tmp_path: Path) -> None:
    undisturbed = train("undisturbed", "python train.py", SMALL)
    process = start("killed", f"{TWO_RANKS} train.py", SMALL)
    until(lambda: list((tmp_path / "killed" / "ckpt").glob("*/25")), "no checkpoint")
    ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout.split()
    for rank in ranks:
        os.kill(int(rank), signal.SIGKILL)
    process.communicate(timeout=600)
    assert not (tmp_path / "killed" / "output.json").exists(), "it had ended before the kill: give it more steps"
    for size in (1, 2, 3):
        shutil.copytree(tmp_path / "killed", tmp_path / str(size))
        again = train(str(size), f"torchrun --standalone --nproc-per-node={size} train.py", SMALL)
        assert f"on {size} ranks" in again["said"]
        assert again["loss"] == pytest.approx(undisturbed["loss"], rel=1e-4)
        assert not list((tmp_path / str(size) / "ckpt").iterdir())


def test_a_level_of_a_sharded_training_goes_on_before_the_fall_of_the_rate(train: Any) -> None:
    train("levels", "python train.py", {**SMALL, "steps": 25}, HPO_PILOT_LEVEL="25")
    high, whole = (train(name, "python train.py", SMALL, HPO_PILOT_LEVEL="75") for name in ("levels", "whole"))
    assert "going on after step 25" in high["said"] and "step    83" in high["said"]
    assert high["loss"] == pytest.approx(whole["loss"], rel=1e-6)


def test_a_sharded_training_that_diverges_ends_on_all_ranks_with_one_verdict(train: Any) -> None:
    verdict = train("wild", f"{TWO_RANKS} train.py", {**SMALL, "learning_rate": 10, "weight_decay": 10, "warmup": 0})
    few = train("few", f"{TWO_RANKS} train.py", {**SMALL, "batch": 1})
    assert verdict["status"] in (0, 1) and few["status"] == 1
    assert "leaves some of 2 ranks without sequences" in few["message"]


LISTINGS = {one.file: one.text for one in listings(MANUAL / "multi-gpu.md") if one.file}


@pytest.mark.parametrize("file", LISTINGS)
def test_the_listings_of_the_manual_are_timed_on_two_ranks(
    file: str, tmp_path: Path, environment: dict[str, str], horovod: Path
) -> None:
    package = file.partition("/")[0]
    if package != "ddp" and subprocess.run([horovod, "-c", f"import {package}"], check=False).returncode:
        missing(f"{package} beside Horovod: tests/real/frameworks.txt")
    if package == "deepspeed":  # its first use compiles a module, for minutes on a busy machine
        environment |= {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        compiling = [horovod, "-c", "import deepspeed; deepspeed.init_distributed()"]
        subprocess.run(compiling, env={**os.environ, **environment, **alone}, check=True, timeout=1200)
    point = {"width": 64, "learning_rate": 0.01}
    task: Any = {"task": encoded([[8, 1, 12]], {"8": point}), "number": 1}
    task |= {"files": {"train.py": LISTINGS[file]}, "env": environment}
    ended = Bench(tmp_path).run(f"{TWO_RANKS} train.py", **task)
    assert ended.verdict is not None and 0 < ended.verdict["value"] < 0.3, ended
    metrics = ended.verdict["metrics"]
    assert metrics["ranks"] == 2 and metrics["communication_seconds"] > 0
    assert 0 < metrics["pop_parallel_efficiency"] < 1
