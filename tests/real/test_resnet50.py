"""The ResNet-50 payload in the Python that has torch and Horovod: its parts by numbers, its trainings by comparison."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot import load_search
from tests.payloads.conftest import PAYLOADS
from tests.pilot.conftest import until
from tests.real.processes import missing
from tests.runner.conftest import Bench, encoded

PAYLOAD = PAYLOADS / "resnet50"
SMALL = "--synthetic 320 --classes 4 --size 32 --depth 14 --width 8"
#: Group normalization: that over batches takes another mean where a batch is shared out otherwise.
GROUPED = f"{SMALL} --norm group --epochs 2"
POINT = {"learning_rate": 0.3, "batch": 32, "warmup": 1}
TWO_RANKS = {"DDP": "torchrun --standalone --nproc-per-node=2", "Horovod": "horovodrun -np 2 --gloo python"}

PARTS = """
import json, sys, torch
from images import Batches, SyntheticImages, random_crop
from model import STAGES, ResNet
from optimizers import LARC, LARS, new_optimizer
from point import DEFAULTS, TrainingError

def stepped(kind, gradients, lr=0.5, **group):
    weights = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))
    optimizer = kind([{"params": [weights], **group}], lr=lr, momentum=0.5, weight_decay=0.1, trust=0.2)
    path = []
    for gradient in gradients:
        weights.grad = torch.tensor([gradient])
        optimizer.step()
        path.append(weights.tolist()[0])
    return path

told = {"parameters": sum(p.numel() for p in ResNet().parameters())}
told["lars"] = stepped(LARS, [[0.6, 0.8], [0.0, 2.0]])
told["larc"] = stepped(LARC, [[0.6, 0.8]])
told["clipped"] = stepped(LARC, [[0.6, 0.8]], lr=0.05)
told["plain"] = stepped(LARS, [[0.6, 0.8]], adapt=False)
told["no_gradient"] = stepped(LARS, [[0.0, 0.0]])

model = ResNet(classes=10, depth=14, width=8)
small = torch.randn(2, 3, 64, 64)
told["scores"] = list(model(small).shape)
told["odd"] = list(model(torch.randn(2, 3, 33, 47)).shape)
block = model.features[5].eval()
images = torch.randn(2, 32, 8, 8)
told["zero_init"] = torch.equal(block.inner(images), torch.zeros_like(block.inner(images)))
told["v1_5"] = [module.stride[0] for module in block.inner if isinstance(module, torch.nn.Conv2d)]
point = {**DEFAULTS, "learning_rate": 0.1, "optimizer": "lars"}
told["groups"] = [(len(g["params"]), g["weight_decay"], g["adapt"]) for g in new_optimizer(point, model).param_groups]
model(small.to(memory_format=torch.channels_last)).sum().backward()
told["contiguous"] = all(p.grad.is_contiguous() for p in model.parameters())

generator = torch.Generator().manual_seed(1)
boxes = [random_crop(500, 375, generator) for _ in range(500)]
told["inside"] = all(0 <= l < r <= 500 and 0 <= t < b <= 375 for l, t, r, b in boxes)
told["areas"] = [f((r - l) * (b - t) / 187500 for l, t, r, b in boxes) for f in (min, max)]
told["aspects"] = [f((r - l) / (b - t) for l, t, r, b in boxes) for f in (min, max)]
told["slit"] = random_crop(1000, 10, generator)
try:
    Batches(range(100), batch=1, passes=1, rank=0, size=2, seed=0)
except TrainingError as error:
    told["few"] = str(error)
try:
    Batches(range(100), batch=32, passes=4, rank=0, size=2, seed=0)
except TrainingError as error:
    told["large"] = str(error)
shares = [Batches(range(100), batch=15, passes=2, rank=rank, size=2, seed=0) for rank in (0, 1)]
told["shares"] = [[len(part) for part in share.epoch(1)] for share in shares]
told["seen"] = sorted(index for share in shares for part in share.epoch(1) for index, _ in part)
many = SyntheticImages(5, 100, 48)
told["many_classes"] = list(many[(3, -1)][0].shape)
json.dump(told, sys.stdout)
"""

#: What two ranks have in common after they have exchanged it.
SHARED = """
import json, torch
from ranks import join

ranks = join()
norm = torch.nn.BatchNorm2d(1)
norm.running_mean.fill_(float(ranks.rank))
ranks.average_statistics(norm)
told = {"mean": norm.running_mean.tolist(), "agreed": ranks.agree("rank 1 has one" if ranks.rank == 1 else "")}
for compression in ("none", "fp16"):
    model = torch.nn.Linear(1, 1, bias=False)
    network, optimizer = ranks.distribute(
        model, torch.optim.SGD(model.parameters(), lr=1.0), name=compression, compression=compression
    )
    network(torch.full((1, 1), 1 + 2.0**-12)).sum().backward()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    told[compression] = model.weight.grad.tolist()
json.dump(told, open(f"{ranks.rank}.json", "w"))
"""


__all__ = ["until"]  # fixtures


@pytest.fixture
def train(tmp_path: Path, environment: dict[str, str]) -> Callable[..., dict[str, Any]]:
    """Trains in a folder of that name; returns output.json, with the lines of progress.jsonl and what was said."""

    def run(name: str, options: str, point: dict[str, Any], launcher: str = "python", **variables: str) -> Any:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "input.json").write_text(json.dumps(point))
        done = subprocess.run(
            f"{launcher} {PAYLOAD / 'train.py'} {options}".split(),
            cwd=folder,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert (folder / "output.json").exists(), done.stdout
        progress = folder / "progress.jsonl"
        lines = progress.read_text().splitlines() if progress.exists() else []
        result: dict[str, Any] = json.loads((folder / "output.json").read_text())
        return {**result, "lines": [json.loads(line) for line in lines], "said": done.stdout, "rc": done.returncode}

    return run


@pytest.fixture(scope="module")
def parts(environment: dict[str, str]) -> dict[str, Any]:
    """What PARTS tells."""
    path = {"PYTHONPATH": str(PAYLOAD), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["python", "-c", PARTS], env={**environment, **path}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def losses(result: dict[str, Any]) -> list[float]:
    assert result["status"] == 0, result
    return [line["loss"] for line in result["lines"]]


# --- parts ------------------------------------------------------------------------------------------------------------


def test_it_is_resnet_50(parts: dict[str, Any]) -> None:
    assert parts["parameters"] == 25_557_032, "as He et al.'s with 1000 classes, and torchvision's"
    assert parts["scores"] == parts["odd"] == [2, 10]
    assert parts["v1_5"] == [1, 2, 1], "the stride is in the 3 x 3 convolution"
    assert parts["zero_init"]


def test_lars_steps_as_its_algorithm_says(parts: dict[str, Any]) -> None:
    """By hand: ‖w‖ = 5, ‖g‖ = 1; the ratio is 0.2 × 5 / (1 + 0.1 × 5) = 2/3, the rate 1/3; g + 0.1 w = (0.9, 1.2)."""
    first, second = parts["lars"]
    assert first == pytest.approx([3 - 0.3, 4 - 0.4])
    # Then w = (2.7, 3.6), ‖w‖ = 4.5, ‖g‖ = 2: the rate is 0.5 × 0.9 / 2.45; half of the last step is added to its own.
    rate = 0.5 * 0.9 / 2.45
    assert second == pytest.approx([2.7 - 0.15 - rate * 0.27, 3.6 - 0.2 - rate * 2.36])


def test_larc_never_goes_faster_than_the_learning_rate(parts: dict[str, Any]) -> None:
    """The ratio 2/3 is above the learning rates 0.5 and 0.05; LARS would multiply."""
    assert parts["larc"] == [pytest.approx([3 - 0.5 * 0.9, 4 - 0.5 * 1.2])]
    assert parts["clipped"] == [pytest.approx([3 - 0.05 * 0.9, 4 - 0.05 * 1.2])]


def test_biases_and_scales_are_stepped_plainly(parts: dict[str, Any]) -> None:
    assert parts["plain"] == [pytest.approx([3 - 0.5 * 0.9, 4 - 0.5 * 1.2])]
    assert parts["no_gradient"] == [pytest.approx([3 - 0.5 * 0.3, 4 - 0.5 * 0.4])]
    kernels, vectors = parts["groups"]
    assert kernels[1:] == [1e-4, True]
    assert vectors[1:] == [0.0, False]
    assert vectors[0] == 2 * (kernels[0] - 1) + 1, "a scale and a shift for each convolution, a bias for the classifier"


def test_gradients_are_in_the_order_that_horovod_takes(parts: dict[str, Any]) -> None:
    assert parts["contiguous"]


def test_crops_and_made_images_are_what_they_should_be(parts: dict[str, Any]) -> None:
    assert parts["inside"]
    assert 0.08 <= parts["areas"][0] < 0.15 and 0.85 < parts["areas"][1] <= 1
    assert 0.75 <= parts["aspects"][0] < 0.8 and 1.25 < parts["aspects"][1] <= 4 / 3 + 1e-9
    assert parts["slit"] == [0, 0, 1000, 10]
    assert parts["many_classes"] == [3, 48, 48]


def test_each_image_of_an_epoch_goes_to_one_rank(parts: dict[str, Any]) -> None:
    assert parts["shares"] == [[8] * 6, [7] * 6]
    assert len(set(parts["seen"])) == len(parts["seen"]) == 90
    assert parts["few"] == "a batch of 1 leaves some of 2 ranks without images"
    assert parts["large"] == "100 images are less than a step of 4 x 32"


# --- trainings --------------------------------------------------------------------------------------------------------


def test_a_training_learns_and_goes_on(train: Any, tmp_path: Path, environment: dict[str, str]) -> None:
    point = {**POINT, "batch": 16, "learning_rate": 1, "schedule": "steps"}
    whole = train("whole", f"{SMALL} --epochs 4", point)
    assert losses(whole)[-1] < 0.8 * losses(whole)[0]
    assert whole["loss"] == whole["metrics"]["error"] == whole["lines"][-1]["error"] < 0.5
    assert whole["metrics"]["images_per_second"] > 0
    assert "one process, " in whole["said"] and "float32" in whole["said"]
    assert (tmp_path / "whole" / "model.pt").exists()
    assert not list((tmp_path / "whole" / "ckpt").iterdir()), "another training of this point would begin anew"
    # As a kill after the second epoch leaves it: only that epoch's checkpoint, put into another run's folder.
    killed = tmp_path / "killed"
    killed.mkdir()
    stop = "import checkpoint, runpy, sys; sys.argv = sys.argv[1:]; save = checkpoint.Checkpoint.save\n"
    stop += (
        "def once(self, history, **parts):\n    save(self, history, **parts)\n    len(history) == 2 and sys.exit(3)\n"
    )
    stop += "checkpoint.Checkpoint.save = once; runpy.run_path(sys.argv[0], run_name='__main__')"
    (killed / "input.json").write_text(json.dumps(point))
    done = subprocess.run(
        ["python", "-c", stop, str(PAYLOAD / "train.py"), *f"{SMALL} --epochs 4".split()],
        cwd=killed,
        env={**environment, "PYTHONPATH": str(PAYLOAD), "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=600,
        check=False,
    )
    assert done.returncode == 3
    assert len(list((killed / "ckpt").iterdir())) == 1
    again = train("killed", f"{SMALL} --epochs 4", point)
    assert "going on after epoch 2" in again["said"]
    assert again["lines"] == whole["lines"], "the same as if nothing had happened"


def test_a_level_goes_on_before_the_fall_of_the_rate(train: Any) -> None:
    point = {**POINT, "schedule": "stable"}

    def level(name: str, epochs: int) -> Any:
        return train(name, SMALL, {**point, "epochs": epochs}, HPO_PILOT_LEVEL=str(epochs))

    low, high, whole = level("levels", 1), level("levels", 3), level("whole", 3)
    assert "going on after epoch 1" in high["said"] and high["lines"][:1] == low["lines"]
    assert (high["lines"], high["metrics"]["loss"]) == (whole["lines"], whole["metrics"]["loss"])
    assert (
        "schedule must be stable" in train("x", SMALL, {**point, "schedule": "steps"}, HPO_PILOT_LEVEL="1")["message"]
    )


def test_what_the_search_file_declares_is_all_that_a_killed_training_goes_on_from(
    tmp_path: Path, environment: dict[str, str], until: Callable[..., None]
) -> None:
    """As a pilot runs it: the first attempt is ended after an epoch, the second has the declared files alone."""
    bench, search = Bench(tmp_path), load_search(PAYLOAD / "search.yaml")
    bench.quick = {"SAVE_EVERY": 0.5, "QUIET": 0.05}
    files = {path.name: path.read_text() for path in PAYLOAD.glob("*.py")}
    more: dict[str, Any] = {"files": files, "env": environment, "checkpoint": list(search.payload.checkpoint)}
    more |= {"task": encoded([[8, 1, 12]], {"8": POINT}), "number": 1, "metric": "error"}
    command = f"python train.py {SMALL} --epochs 400"
    process, folder = bench.start(command, **more)
    own = bench.checkpoints / "1a2b3c4d" / "t8f1"
    until(lambda: list(own.glob(".kept/ckpt/*.pt")))
    process.terminate()
    process.communicate(timeout=600)
    assert {path.relative_to(own).parts[0] for path in own.rglob("*.pt")} <= {".kept", ".old"}, "it wrote elsewhere"
    process, folder = bench.start(command, **more)
    until(lambda: any("going on after epoch" in log.read_text() for log in folder.glob("payload.log")))
    process.terminate()
    process.communicate(timeout=600)


def test_two_passes_and_two_ranks_train_what_one_process_does_in_one_pass(train: Any) -> None:
    """Two passes a step of 15 images, of which the ranks have 8 and 7; a step has 30."""
    # At 0.3 the training magnifies rounding, which differs between processors, to 4e-4.
    point = {**POINT, "learning_rate": 0.1}
    one = losses(train("one", GROUPED, {**point, "batch": 30}))
    assert one[1] < one[0]
    two = {**point, "batch": 15, "accumulation": 2}
    assert losses(train("passes", GROUPED, two)) == pytest.approx(one, rel=1e-4)
    for over, launcher in TWO_RANKS.items():
        both = train(over, GROUPED, two, launcher)
        assert f"2 ranks, {over} over gloo, " in both["said"]
        assert losses(both) == pytest.approx(one, rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("over", TWO_RANKS)
def test_ranks_share_statistics_troubles_and_gradients_also_in_half_precision(
    environment: dict[str, str], tmp_path: Path, over: str
) -> None:
    (tmp_path / "shared.py").write_text(SHARED)
    path = {"PYTHONPATH": str(PAYLOAD), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*TWO_RANKS[over].split(), "shared.py"]
    subprocess.run(command, cwd=tmp_path, env={**environment, **path}, timeout=600, check=True)
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert told[0] == told[1]
    assert told[0]["mean"] == [0.5], "of 0 and 1"
    assert told[0]["agreed"] == "rank 1 has one"
    assert told[0]["none"] == [[1 + 2**-12]]
    assert told[0]["fp16"] == [[1.0]], "1 + 2^-12 has no half precision"


def test_a_training_that_diverges_says_so(train: Any) -> None:
    verdict = train("wild", f"{SMALL} --norm group --epochs 1", {**POINT, "learning_rate": 1e12})
    assert verdict["status"] == 1
    assert "training diverged in epoch 1" in verdict["message"]


@pytest.mark.long
def test_a_folder_of_images_is_read(train: Any, tmp_path: Path, environment: dict[str, str]) -> None:
    """Red and blue images of several shapes, told apart; a damaged one is named."""
    paint = "import sys, PIL.Image as image\nfor path, mode, colour, *size in eval(sys.argv[1]):\n"
    paint += "    image.new(mode, tuple(size), colour).save(path)"
    pictures = []
    for part, count in (("train", 20), ("val", 4)):
        for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
            folder = tmp_path / "data" / part / name
            folder.mkdir(parents=True)
            pictures += [(f"{folder}/{i}.png", "RGB", colour, 40 + i, 60 - i) for i in range(count)]
    done = subprocess.run(
        ["python", "-c", paint, repr(pictures)], env=environment, capture_output=True, text=True, check=False
    )
    if "No module named 'PIL'" in done.stderr:
        missing("Pillow in Horovod's Python: make horovod")
    assert done.returncode == 0, done.stderr
    options = f"--data {tmp_path / 'data'} --size 32 --depth 14 --width 8 --epochs 2 --norm group"
    verdict = train("colours", options, {**POINT, "batch": 8, "learning_rate": 1})
    assert verdict["loss"] == 0 and losses(verdict)[-1] < 0.5
    damaged = tmp_path / "data" / "val" / "red" / "0.png"
    damaged.write_bytes(b"no image")
    verdict = train("damaged", f"{options} --workers 1 --epochs 1", {**POINT, "batch": 8})
    assert verdict["status"] == 1
    assert f"{damaged} cannot be read as an image" in verdict["message"]
    assert "Traceback" not in verdict["message"]
