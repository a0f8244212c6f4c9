"""Trains ResNet-50 in PyTorch, as one process or as several ranks with DDP or Horovod.

    python train.py --epochs 3                                    # one process, made images, 20 minutes
    torchrun --nproc-per-node=2 train.py --data DIR               # two ranks with DDP, a folder of images
    horovodrun -np 2 --gloo python train.py --data DIR            # two ranks with Horovod; also mpirun, srun, jsrun

Reads `input.json` (the hyper-parameter point) and writes `progress.jsonl` (a line per epoch), `output.json` (the
verdict), `model.pt` (the weights) and, after each epoch, a checkpoint. Rank 0 alone writes. `batch` counts the images
of a pass of all ranks together; `accumulation` passes make a step. See README.md beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# One thread for each rank, unless the launcher says otherwise; torch reads it when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import torch
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install torch") from None
from checkpoint import Checkpoint
from folders import list_images, split
from images import Batches, FolderImages, Key, Sample, SyntheticImages, validation_keys
from model import STAGES, ResNet
from optimizers import new_optimizer
from point import COOLDOWN, ImageError, TrainingError, learning_rate, read_point
from ranks import Ranks, join, measured, timed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Precision:
    """The precision of the network's arithmetic; weights and their updates are in float32 in each of them.

    `auto` is float32 on a CPU, and on a GPU bfloat16 where its hardware has that (NVIDIA: from Ampere on), else float16
    with the loss scaled (P. Micikevicius et al., arXiv:1710.03740).
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "auto":
            name = "float32"
            if device.type == "cuda":
                name = "bfloat16" if torch.cuda.get_device_capability(device)[0] >= 8 else "float16"
        self.name, self.device = name, device
        scaler = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler  # since 2.3
        self.scaler = scaler(enabled=name == "float16" and device.type == "cuda")

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Where the network computes."""
        if self.name == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=PRECISIONS[self.name])


class Training:
    """One training: its model, optimizer and images on this rank."""

    def __init__(self, point: dict[str, Any], options: argparse.Namespace, ranks: Ranks, seed: int) -> None:
        self.point, self.options, self.ranks, self.seed = point, options, ranks, seed
        self.images, self.trained, self.held_out, classes = load(options)
        torch.manual_seed(seed)
        self.model = ResNet(classes, options.depth, options.width, options.norm).to(ranks.device)
        self.precision = Precision(options.precision, ranks.device)
        passes = point["accumulation"]
        self.batches = Batches(self.trained, point["batch"], passes, ranks.rank, ranks.size, seed)
        self.network, self.optimizer = ranks.distribute(
            self.model, new_optimizer(point, self.model), passes=passes, compression=point["compression"]
        )

    def epoch(self, epoch: int, end: float = math.inf) -> int:
        """One pass over the training data; `epoch` counts from 1. Returns how many images this rank looked at.

        Args:
            epoch: number of the pass.
            end: epochs after which it ends, also within the pass.
        """
        self.model.train()
        passes, together = self.point["accumulation"], self.point["batch"] * self.point["accumulation"]
        seen, steps = 0, math.ceil(min(1.0, end - epoch + 1) * self.batches.steps - 1e-9)
        for number, (images, labels) in enumerate(self._batches(list(self.batches.epoch(epoch))[: steps * passes])):
            step, part = divmod(number, passes)
            if part == 0:
                rate = learning_rate(self.point, epoch - 1 + (step + 0.5) / self.batches.steps, self.options.epochs)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                self.optimizer.zero_grad()
            smoothing, is_last = self.point["label_smoothing"], part == passes - 1
            with self.ranks.exchanging(self.network, is_last):
                with self.precision.context():
                    scores = self.network(images)
                loss = cross_entropy(scores.float(), labels, reduction="sum", label_smoothing=smoothing)
                # Shares of a step differ by an image: the ranks' mean of this is the mean over a whole step.
                loss = loss * self.ranks.size / together
                self.precision.scaler.scale(loss).backward()
            if is_last:
                self.ranks.step(self.optimizer, self.precision.scaler)
                self.precision.scaler.update()
            seen += len(labels)
            if measured:
                measured.images(len(labels))
        return seen

    def validate(self, epoch: int) -> dict[str, float]:
        """The epoch's line of progress.jsonl: top-1 error and cross-entropy, each rank having looked at its share.

        Raises:
            TrainingError: the predictions are not numbers; all ranks raise it, for all know the sum.
        """
        self.ranks.average_statistics(self.model)
        self.model.eval()
        loss = right = 0.0
        share = -(-self.point["batch"] // self.ranks.size)
        keys = validation_keys(self.held_out, share, self.ranks.rank, self.ranks.size)
        with torch.no_grad():
            for images, labels in self._batches(keys):
                with self.precision.context():
                    scores = self.model(images).double()
                loss += cross_entropy(scores, labels, reduction="sum").item()
                right += (scores.argmax(dim=1) == labels).sum().item()
        loss, right = self.ranks.sum([loss, right])
        if not abs(loss) < float("inf"):
            raise TrainingError(f"training diverged in epoch {epoch}: the predictions are not numbers")
        total = len(self.held_out)
        return {"step": epoch, "error": (total - right) / total, "loss": loss / total}

    def _batches(self, keys: list[list[Key]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The images of each list of keys, on the device."""
        on_gpu, workers = self.ranks.device.type == "cuda", self.options.workers
        loader = DataLoader(
            self.images,
            batch_sampler=keys,
            num_workers=workers,
            pin_memory=on_gpu,
            # Not a fork: the threads that talk to other ranks and the GPU's state do not survive it.
            multiprocessing_context="forkserver" if workers else None,
        )
        device = self.ranks.device
        for images, labels in measured.loader(loader) if measured else loader:
            with timed("load_input"):
                # The images alone, not the weights: Horovod takes gradients in torch's usual order only.
                moved = (
                    images.to(device, non_blocking=on_gpu, memory_format=torch.channels_last),
                    labels.to(device, non_blocking=on_gpu),
                )
            yield moved


def load(options: argparse.Namespace) -> tuple[Dataset[Sample], list[int], list[int], int]:
    """The images, the indices of those to train on and of those held out, and how many classes there are.

    Raises:
        TrainingError: the folder is none of class folders, or too small for the folds.
    """
    fold, folds = (int(os.environ.get(f"HPO_PILOT_{name}", one)) for name, one in (("FOLD", "0"), ("FOLDS", "1")))
    if options.data is None:
        made = SyntheticImages(options.synthetic, options.classes, options.size)
        return made, *split(made.labels, fold, folds), options.classes
    train, valid = options.data / "train", options.data / "val"
    paths, labels, classes = list_images(train if train.is_dir() else options.data)
    if train.is_dir() and valid.is_dir() and folds == 1:
        more, more_labels, more_classes = list_images(valid)
        if more_classes != classes:
            raise TrainingError(f"{train} and {valid} hold different classes")
        count = len(paths)
        images = FolderImages(paths + more, labels + more_labels, options.size)
        return images, list(range(count)), list(range(count, len(images))), len(classes)
    return FolderImages(paths, labels, options.size), *split(labels, fold, folds), len(classes)


def train(options: argparse.Namespace, seed: int, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Trains in `folder`, going on from its checkpoint if there is one.

    Returns:
        The content of output.json.

    Raises:
        TrainingError: wrong input, or the training diverged; all ranks raise it.
    """
    trouble, training = "", None
    try:
        training = Training(read_point(folder / "input.json"), options, ranks, seed)
    except TrainingError as error:
        trouble = str(error)
    trouble = ranks.agree(trouble)
    if trouble or training is None:
        raise TrainingError(trouble)
    is_writer, model, scaler = ranks.rank == 0, training.model, training.precision.scaler
    has_level = "HPO_PILOT_LEVEL" in os.environ  # of a search with `fidelity`: a later job trains this point on
    options.epochs = training.point.pop("epochs", options.epochs)
    is_stable = training.point["schedule"] == "stable"
    if has_level and not is_stable:
        raise TrainingError("with fidelity schedule must be stable: the others depend on the last epoch")
    variables = {name: os.environ.get(name) for name in ("HPO_PILOT_FOLD", "HPO_PILOT_FOLDS")}
    unkept = ("workers", "over", "epochs") if has_level else ("workers", "over")
    kept = {name: value for name, value in vars(options).items() if name not in unkept}
    identity = {"point": training.point, "options": kept, "seed": seed, **variables}
    checkpoint = Checkpoint(folder / "ckpt", identity)
    parts = {"model": model, "optimizer": training.optimizer, "scaler": scaler}
    history = checkpoint.load(ranks.device, **parts) if is_writer else []
    history, state = ranks.broadcast(model, training.optimizer, (history, scaler.state_dict()))
    scaler.load_state_dict(state)
    if is_writer:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"{ranks.describe()}, {training.precision.name}; {parameters} parameters", flush=True)
        if history:
            print(f"going on after epoch {len(history)}: {checkpoint.path} is of a training that was ended", flush=True)
    ranks.measure()
    began, seen = time.monotonic(), 0
    with (folder / "progress.jsonl").open("w") if is_writer else contextlib.nullcontext() as progress:
        if progress:
            progress.writelines(json.dumps(line) + "\n" for line in history)
        for epoch in range(len(history) + 1, options.epochs + 1):
            seen += training.epoch(epoch)
            line = training.validate(epoch)
            history.append(line)
            if progress:
                progress.write(json.dumps(line) + "\n")
                progress.flush()  # heartbeats carry the last line while the training goes on
                print(f"epoch {epoch:3d}  error {line['error']:.4f}  loss {line['loss']:.4f}", flush=True)
                checkpoint.save(history, **parts)
        if is_stable:  # the next level does not go on from this
            end = options.epochs * (1 + COOLDOWN)
            for epoch in range(options.epochs + 1, math.ceil(end) + 1):
                seen += training.epoch(epoch, end)
            history.append(training.validate(options.epochs))
            if is_writer:
                print(f"then the rate fell to 0: error {history[-1]['error']:.4f}", flush=True)
    elapsed = time.monotonic() - began
    (total,) = ranks.sum([float(seen)])
    if measured:
        measured.stop()  # nothing is exchanged from here on: that would begin anew
    if is_writer:
        torch.save(model.state_dict(), folder / "model.pt")
        if not has_level:
            checkpoint.drop()
    metrics = {"error": history[-1]["error"], "loss": history[-1]["loss"], "epochs": options.epochs}
    if not measured and seen:  # else hpo-pilot says it
        metrics["images_per_second"] = total / elapsed
    return {"status": 0, "loss": history[-1]["error"], "message": "", "metrics": metrics}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder of class folders, or of train and val with those")
    parser.add_argument("--synthetic", type=_count, default=1280, help="without --data: how many images are made")
    parser.add_argument("--classes", type=_count, default=10, help="without --data: of how many classes")
    parser.add_argument("--size", type=_count, default=224, help="pixels of a side")
    parser.add_argument("--epochs", type=_count, default=90)
    parser.add_argument("--depth", type=int, choices=sorted(STAGES), default=50, help="layers")
    parser.add_argument("--width", type=_count, default=64, help="channels of the first stage")
    parser.add_argument("--norm", choices=("batch", "group"), default="batch", help="what the layers normalize over")
    parser.add_argument("--precision", choices=("auto", *PRECISIONS), default="auto")
    parser.add_argument("--over", choices=("auto", "ddp", "horovod"), default="auto", help="what connects the ranks")
    parser.add_argument("--workers", type=int, default=0, help="processes of each rank that read images")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return number


def main() -> None:
    """One job: the point in input.json, the verdict in output.json."""
    options, folder = parse(), Path()
    ranks = join(options.over)
    output = folder / "output.json"
    if ranks.rank == 0:
        for earlier in (output, folder / "model.pt"):
            earlier.unlink(missing_ok=True)  # an earlier run's results must not pass for this one's
    try:
        result = train(options, int(os.environ.get("HPO_PILOT_SEED", "0")), folder, ranks)
    except TrainingError as error:
        message = str(error).strip().splitlines()[-1]  # a loader's process sends a traceback before it
        result = {"status": 1, "loss": None, "message": message}
        print(f"rank {ranks.rank}: {error}", flush=True)
        if isinstance(error, ImageError) and ranks.size > 1:
            raise SystemExit(1) from error  # the others know nothing of it: the launcher ends them
    if ranks.rank == 0:
        output.write_text(json.dumps(result) + "\n")
    ranks.leave()


if __name__ == "__main__":
    main()
