"""Two real Horovod ranks over gloo: the same training as one process, timed from inside, searched by hpo-pilot."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Scan
from tests.real.processes import write_search
from tests.runner.conftest import Bench

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "payloads" / "digits"
#: No batch but the last is of another size: 1437 images, or 1198 with three folds, in batches of 96.
POINT = {"learning_rate": 0.002, "layers": 2, "width": 48, "alpha": 1e-3, "solver": "adam", "batch": 96, "epochs": 6}
TWO_RANKS = "horovodrun -np 2 --gloo python train_horovod.py"

#: A training of two ranks whose second one computes longer by what its argument says.
DELAYED = """
import json, sys, time
import torch, horovod.torch as hvd
import hpo_pilot_ranks as ranks

hvd.init()
torch.manual_seed(1)
model = torch.nn.Linear(64, 10)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.allreduce(torch.ones(1))
ranks.start(hvd.rank(), hvd.size())
optimizer = ranks.optimizer(optimizer)
for images in ranks.loader([torch.ones(32, 64)] * 20):
    optimizer.zero_grad()
    model(images).sum().backward()
    time.sleep(0.04 + (float(sys.argv[1]) if hvd.rank() == 1 else 0.0))
    optimizer.step()
    ranks.images(32)
ranks.stop()
if hvd.rank() == 0:
    json.dump({"loss": 1.0}, open("output.json", "w"))
"""


#: Learning rates of a small batch and of a large one, over the epochs of a warm-up and after it.
RATES = """
import train_horovod as training
for batch in (8, 128):
    point = {"learning_rate": 1.0, "batch": batch, "warmup": 4}
    print(*(training.learning_rate(point, epochs) for epochs in (0, 2, 4, 9)))
"""


@pytest.fixture
def seconds() -> float:
    return 120.0


@pytest.fixture
def payload_files() -> list[Path]:
    return [DIGITS / "train_horovod.py"]


@pytest.mark.parametrize(
    "solver",
    [{}, {"solver": "sgd", "learning_rate": 0.1, "momentum": 0.9, "scaling": "sqrt", "warmup": 3}],
    ids=["adam", "sgd"],
)
def test_two_ranks_train_what_one_process_does(train, tmp_path, solver):
    fold = {"HPO_PILOT_FOLD": "1", "HPO_PILOT_FOLDS": "3", "HPO_PILOT_SEED": "5"}
    one = train("one", "python train_horovod.py", {**POINT, **solver}, **fold)
    two = train("two", TWO_RANKS, {**POINT, **solver}, **fold)
    assert one["status"] == two["status"] == 0
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
    assert two["metrics"]["accuracy"] == pytest.approx(one["metrics"]["accuracy"], abs=2 / 599)
    curves = [
        [json.loads(line) for line in (tmp_path / name / "progress.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert [line["step"] for line in curves[1]] == [1, 2, 3, 4, 5, 6]
    assert [line["value"] for line in curves[1]] == pytest.approx([line["value"] for line in curves[0]], rel=1e-4)
    assert curves[1][-1]["value"] < curves[1][0]["value"] / 2
    other = train("other", "python train_horovod.py", {**POINT, **solver}, **{**fold, "HPO_PILOT_SEED": "6"})
    assert other["loss"] != pytest.approx(one["loss"], rel=1e-4)


def test_a_batch_smaller_than_the_ranks_leaves_some_without_images(train):
    """1437 images in batches of 1436: the last batch has one, for rank 0 alone."""
    point = {**POINT, "batch": 1436, "epochs": 2}
    one, two = train("one", "python train_horovod.py", point), train("two", TWO_RANKS, point)
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)


def test_it_goes_on_from_a_checkpoint_with_another_number_of_ranks(train, kill_after_a_checkpoint, tmp_path):
    point = {**POINT, "epochs": 40}
    undisturbed = train("undisturbed", "python train_horovod.py", point)
    kill_after_a_checkpoint("killed", "python train_horovod.py", point)
    again = train("killed", TWO_RANKS, point)
    assert "going on after epoch" in again["said"]
    assert again["loss"] == pytest.approx(undisturbed["loss"], rel=1e-3)
    assert not list((tmp_path / "killed" / "ckpt").iterdir())
    assert "going on" not in train("killed", TWO_RANKS, {**POINT, "epochs": 5})["said"]
    assert "epoch   1 " in train("killed", TWO_RANKS, {**POINT, "epochs": 5})["said"], "it begins anew"


def test_a_training_that_diverges_ends_on_all_ranks_with_one_verdict(train):
    verdict = train("wild", TWO_RANKS, {**POINT, "solver": "sgd", "learning_rate": 1e8})
    assert (verdict["status"], verdict["loss"]) == (1, None)
    assert "training diverged in epoch" in verdict["message"]


def test_a_wrong_point_is_refused_with_a_reason(train):
    verdict = train("wrong", TWO_RANKS, {**POINT, "solver": "lbfgs"})
    assert verdict["status"] == 1
    assert "solver must be one of adam, sgd" in verdict["message"]


def test_ranks_without_horovod_are_refused(start, environment, tmp_path):
    (tmp_path / "lone" / "horovod").mkdir(parents=True)
    (tmp_path / "lone" / "horovod" / "__init__.py").write_text("raise ImportError('not here')")
    alone = start("lone", "python train_horovod.py", {**POINT, "epochs": 1})
    said, _ = alone.communicate(timeout=600)
    assert alone.returncode == 0, said
    for launcher in ("OMPI_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE"):
        several = start("lone", "python train_horovod.py", POINT, **{launcher: "2"})
        said, _ = several.communicate(timeout=600)
        assert several.returncode != 0
        assert "2 ranks were started, but this Python has no Horovod" in said


def test_a_delay_of_one_rank_moves_load_balance_by_what_is_computed(tmp_path, environment):
    bench = Bench(tmp_path)

    def balance(delay: float) -> tuple[dict[str, float], list[float]]:
        command = f"horovodrun -np 2 --gloo python delayed.py {delay}"
        ended = bench.run(command, files={"delayed.py": DELAYED}, env=environment)
        assert ended.verdict is not None and ended.verdict["value"] == 1.0, ended
        told = json.loads((ended.folder / "userJobMetadata.json").read_text())["hpo_pilot_ranks"]
        return ended.verdict["metrics"], [rank["compute"] for rank in told]

    planted = 20 * 0.04
    for _ in range(3):  # on a busy machine the other rank is late itself, and waits less
        even, computed = balance(0.0)
        uneven, _ = balance(0.04)
        waited = uneven["communication_seconds"] - even["communication_seconds"]
        if waited > planted / 2 * 0.8:
            break
    else:
        pytest.fail(f"the other rank waited {2 * waited:.2f} s, with {planted:.2f} s planted")
    assert even["pop_load_balance"] > 0.9
    expected = (computed[0] + computed[1] + planted) / 2 / (computed[1] + planted)
    assert uneven["pop_load_balance"] == pytest.approx(expected, rel=0.05)
    assert uneven["images_per_second"] < even["images_per_second"]


def test_a_search_of_two_rank_trainings_shows_how_well_they_use_their_ranks(environment, tmp_path):
    scan = Scan(tmp_path, {"PATH": environment["PATH"]})

    def edit(document):
        document["payload"]["outputs"] = ["model.pt", "horovod_timeline.json"]
        document["space"] |= {name: {"type": "categorical", "choices": [POINT[name]]} for name in ("batch", "epochs")}

    write_search(scan, DIGITS / "search-horovod.yaml", edit, budget={"trials": 2, "parallel": 1}, folds=1)
    scan("run", str(scan.file), timeout=600)
    trials = scan.trials()
    assert [trial["state"] for trial in trials] == ["finished"] * 2
    for trial in trials:
        (fold,) = trial["folds"]
        metrics = fold["metrics"]
        assert metrics["ranks"] == 2 and metrics["images_per_second"] > 0
        assert 0 < metrics["pop_parallel_efficiency"] <= metrics["pop_load_balance"] <= 1
        assert metrics["pop_parallel_efficiency"] == pytest.approx(
            metrics["pop_load_balance"] * metrics["pop_communication_efficiency"]
        )
        assert [rank["rank"] for rank in fold["metadata"]["hpo_pilot_ranks"]] == [0, 1]
    scan("report", "demo", "-o", str(tmp_path / "report.html"))
    assert "Use of the ranks" in (tmp_path / "report.html").read_text()
    scan("fetch", "best", "demo", "-o", str(tmp_path / "best"))
    (timeline,) = (tmp_path / "best").rglob("horovod_timeline.json")
    assert "NEGOTIATE_ALLREDUCE" in timeline.read_text()


def test_a_warm_up_goes_up_or_not_at_all(horovod: Path) -> None:
    done = subprocess.run([horovod, "-c", RATES], cwd=DIGITS, capture_output=True, text=True, timeout=600, check=True)
    small, large = ([float(rate) for rate in line.split()] for line in done.stdout.splitlines())
    assert small == [0.25] * 4
    assert large == [1.0, 2.5, 4.0, 4.0]
