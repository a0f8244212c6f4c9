"""Trains the network of train.py in PyTorch, as one process or as several ranks under Horovod.

    python train_horovod.py                               # one process; Horovod need not be installed
    horovodrun -np 2 --gloo python train_horovod.py       # two ranks; also mpirun, srun, jsrun

It reads and writes what train.py does, the same folds included; rank 0 alone writes. `batch` counts the images of a
step of all ranks together, and a batch of any size is shared out exactly: so a point means the same training on any
number of ranks, up to the order in which numbers are added.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# One thread for each rank, unless the launcher says otherwise; torch reads it when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import StratifiedKFold
    from torch.nn.functional import cross_entropy
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip install torch scikit-learn, or `make horovod` for a Python with Horovod too"
    ) from None
try:
    import horovod.torch as hvd
except ImportError:  # then as one process
    hvd = None
try:
    import hpo_pilot_ranks as measured  # beside this file where hpo-pilot runs it: times what each rank does
except ImportError:
    measured = None

SPLIT_SEED = 20_240_229  #: as train.py: every trial, on any number of ranks, sees the same folds
PARTS_WITHOUT_FOLDS = 5
CHECKPOINT_EVERY = 5  #: epochs
DEFAULT_EPOCHS = 30
BASE_BATCH = 32  #: the batch that `learning_rate` is for
SCALINGS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}  #: the power of batch / BASE_BATCH in the learning rate
SOLVERS = ("adam", "sgd")
#: Where launchers say how many ranks they started: horovodrun; Open MPI's mpirun; MPICH's; jsrun; srun.
STARTED = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE", "SLURM_STEP_NUM_TASKS")
REQUIRED = {"learning_rate", "layers", "width", "alpha", "solver", "batch"}
OPTIONAL = {"momentum", "epochs", "scaling", "warmup"}


class TrainingError(Exception):
    """The training gives no figure of merit; the message says why and goes to output.json."""


class Ranks:
    """The processes of this training: Horovod's, or this one alone."""

    def __init__(self) -> None:
        if hvd is not None:
            if measured is not None:
                measured.meet(hvd)
            hvd.init()
        started = max(int(os.environ.get(name) or 1) for name in STARTED)
        self.rank, self.size = (hvd.rank(), hvd.size()) if hvd is not None else (0, 1)
        if self.size == 1 < started:
            raise SystemExit(f"{started} ranks were started, but this Python has no Horovod that sees the others")

    def sum(self, figures: list[float]) -> list[float]:
        """The sum of each figure over all ranks, in double precision."""
        if self.size == 1:
            return figures
        with timed("communicate"):
            total: list[float] = hvd.allreduce(torch.tensor(figures, dtype=torch.float64), op=hvd.Sum).tolist()
        return total

    def distribute(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer that adds up all ranks' gradients."""
        if self.size == 1:
            return optimizer
        distributed: torch.optim.Optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), op=hvd.Sum
        )
        return distributed

    def broadcast(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, history: list[dict[str, float]]
    ) -> list[dict[str, float]]:
        """Gives all ranks the parameters, the optimizer's state and the epochs done that rank 0 has."""
        if self.size == 1:
            return history
        with timed("communicate"):
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            # Not hvd.broadcast_optimizer_state: it takes a step to make the state of a new optimizer, and with weight
            # decay that step moves the parameters.
            state, history = hvd.broadcast_object((optimizer.state_dict(), history), root_rank=0)
        optimizer.load_state_dict(state)
        return history


def timed(what: str) -> contextlib.AbstractContextManager[None]:
    """A context whose time counts as `communicate`, `compute` or `load_input`; nothing where nobody measures."""
    return getattr(measured, what)() if measured else contextlib.nullcontext()


def read_point(path: Path) -> dict[str, Any]:
    """The hyper-parameter point in `path`.

    Raises:
        TrainingError: the file is missing or is no point of this training.
    """
    try:
        point = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot read the point from {path.name}: {error}") from error
    if not isinstance(point, dict):
        raise TrainingError(f"{path.name} must hold an object of parameters, not {type(point).__name__}")
    missing = sorted(REQUIRED - point.keys())
    unknown = sorted(point.keys() - REQUIRED - OPTIONAL)
    if missing or unknown:
        raise TrainingError(f"{path.name}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
    for name, choices in (("solver", SOLVERS), ("scaling", tuple(SCALINGS))):
        if point.get(name, choices[0]) not in choices:
            raise TrainingError(f"{path.name}: {name} must be one of {', '.join(choices)}, not {point[name]!r}")
    if point.get("epochs", DEFAULT_EPOCHS) < 1:
        raise TrainingError(f"{path.name}: epochs must be 1 or more, not {point['epochs']}")
    return point


def load_fold(fold: int, folds: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images, training labels, validation images, validation labels of one fold, as train.py has them.

    Returns:
        Images of shape (n, 64) with values in [0, 1]; labels of shape (n,), 0 to 9.
    """
    if not 0 <= fold < folds:
        raise TrainingError(f"there is no fold {fold} of {folds}: HPO_PILOT_FOLD counts from 0")
    images, labels = load_digits(return_X_y=True)
    parts = StratifiedKFold(folds if folds > 1 else PARTS_WITHOUT_FOLDS, shuffle=True, random_state=SPLIT_SEED)
    train, valid = list(parts.split(images, labels))[fold]
    data, classes = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    return data[train], classes[train], data[valid], classes[valid]


def new_model(point: dict[str, Any]) -> torch.nn.Sequential:
    """An untrained network for `point`, of torch's seed."""
    parts: list[torch.nn.Module] = []
    inward = 64
    for _ in range(point["layers"]):
        parts += [torch.nn.Linear(inward, point["width"]), torch.nn.ReLU()]
        inward = point["width"]
    return torch.nn.Sequential(*parts, torch.nn.Linear(inward, 10))


def new_optimizer(point: dict[str, Any], model: torch.nn.Module) -> torch.optim.Optimizer:
    """The point's solver; its learning rate is set before each step."""
    if point["solver"] == "adam":
        return torch.optim.Adam(model.parameters(), lr=point["learning_rate"], weight_decay=point["alpha"])
    momentum = point.get("momentum", 0.9)
    return torch.optim.SGD(
        model.parameters(), lr=point["learning_rate"], momentum=momentum, weight_decay=point["alpha"], nesterov=True
    )


def learning_rate(point: dict[str, Any], epochs_done: float) -> float:
    """The learning rate at a moment: grown with the batch, and reached gradually (Goyal et al., arXiv:1706.02677).

    What is smaller than the point's own, for a batch below `BASE_BATCH`, needs no warm-up.
    """
    factor = (point["batch"] / BASE_BATCH) ** SCALINGS[point.get("scaling", "linear")]
    warmup = point.get("warmup", 0)
    reached = min(1.0, epochs_done / warmup) if warmup else 1.0
    first = min(1.0, factor)
    return point["learning_rate"] * (first + (factor - first) * reached)


class ShardedBatches:
    """This rank's share of each batch of an epoch: every image is seen once, by one rank."""

    def __init__(self, images: int, batch: int, ranks: Ranks, seed: int) -> None:
        self.images, self.batch, self.ranks, self.seed = images, batch, ranks, seed

    def __len__(self) -> int:
        return math.ceil(self.images / self.batch)

    def epoch(self, epoch: int) -> Iterator[tuple[torch.Tensor, int]]:
        """Pairs of (indices of this rank's images, how many all ranks have); a small last batch may leave it none."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)  # the same on every rank
        for part in torch.randperm(self.images, generator=generator).split(self.batch):
            yield part[self.ranks.rank :: self.ranks.size], len(part)


class Checkpoint:
    """The state of one training after some epoch, in one file that rank 0 writes and reads.

    The name is a digest of what the training depends on; the number of ranks is no part of it.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        text = json.dumps({**identity, "torch": torch.__version__}, sort_keys=True)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.pt"

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, history: list[dict[str, float]]) -> None:
        """Replaces the file in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history}, partial)
        partial.replace(self.path)

    def load(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, float]]:
        """Puts the file's state into model and optimizer; returns the epochs done."""
        if not self.path.exists():
            return []
        state = torch.load(self.path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        history: list[dict[str, float]] = state["history"]
        return history

    def drop(self) -> None:
        """Removes the file when the training has ended: the next training of this point begins anew."""
        self.path.unlink(missing_ok=True)


def run_epoch(
    point: dict[str, Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: tuple[torch.Tensor, torch.Tensor],
    batches: ShardedBatches,
    epoch: int,
) -> None:
    """One pass over the training data; `epoch` counts from 1."""
    shares = batches.epoch(epoch)
    for step, (mine, together) in enumerate(measured.loader(shares) if measured else shares):
        with timed("load_input"):
            images, labels = data[0][mine], data[1][mine]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(point, epoch - 1 + step / len(batches))
        optimizer.zero_grad()
        # Each rank's part of the mean over the whole batch: their sum is its gradient for any distribution over ranks.
        (cross_entropy(model(images), labels, reduction="sum") / together).backward()
        optimizer.step()
        if measured:
            measured.images(len(mine))


def validate(
    model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, ranks: Ranks, epoch: int
) -> dict[str, float]:
    """The epoch's line of progress.jsonl: log-loss and accuracy, each rank having looked at its share.

    Raises:
        TrainingError: the predictions are not numbers; all ranks raise it, for all know the sum.
    """
    mine = slice(ranks.rank, None, ranks.size)
    with torch.no_grad():
        predicted = model(images[mine])
        loss = cross_entropy(predicted.double(), labels[mine], reduction="sum").item()
        right = (predicted.argmax(dim=1) == labels[mine]).sum().item()
    loss, right = ranks.sum([loss, right])
    if not abs(loss) < float("inf"):
        raise TrainingError(f"training diverged in epoch {epoch}: the predictions are not numbers")
    return {"step": epoch, "value": loss / len(labels), "accuracy": right / len(labels)}


def train(point: dict[str, Any], fold: int, folds: int, seed: int, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Trains in `folder`, going on from its checkpoint if there is one.

    Returns:
        The content of output.json.

    Raises:
        TrainingError: the training diverged.
    """
    train_images, train_labels, valid_images, valid_labels = load_fold(fold, folds)
    torch.manual_seed(seed)
    model = new_model(point)
    optimizer = ranks.distribute(model, new_optimizer(point, model))
    checkpoint = Checkpoint(folder / "ckpt", {"point": point, "fold": fold, "folds": folds, "seed": seed})
    history = checkpoint.load(model, optimizer) if ranks.rank == 0 else []
    history = ranks.broadcast(model, optimizer, history)
    batches = ShardedBatches(len(train_images), point["batch"], ranks, seed)
    if measured:
        measured.start(ranks.rank, ranks.size)
        optimizer = measured.optimizer(optimizer)
    is_writer = ranks.rank == 0
    if is_writer and history:
        print(f"going on after epoch {len(history)}: {checkpoint.path} is of a training that was ended", flush=True)
    with (folder / "progress.jsonl").open("w") if is_writer else contextlib.nullcontext() as progress:
        if progress:
            progress.writelines(json.dumps(line) + "\n" for line in history)
        for epoch in range(len(history) + 1, point.get("epochs", DEFAULT_EPOCHS) + 1):
            run_epoch(point, model, optimizer, (train_images, train_labels), batches, epoch)
            line = validate(model, valid_images, valid_labels, ranks, epoch)
            history.append(line)
            if progress:
                progress.write(json.dumps(line) + "\n")
                progress.flush()  # heartbeats carry the last line while the training goes on
                print(f"epoch {epoch:3d}  loss {line['value']:.4f}  accuracy {line['accuracy']:.4f}", flush=True)
                if epoch % CHECKPOINT_EVERY == 0:
                    checkpoint.save(model, optimizer, history)
    if measured:
        measured.stop()
    if is_writer:
        torch.save(model.state_dict(), folder / "model.pt")
        checkpoint.drop()
    last = history[-1]
    return {
        "status": 0,
        "loss": last["value"],
        "message": "",
        "metrics": {
            "accuracy": last["accuracy"],
            "epochs": len(history),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
    }


def main() -> None:
    """One job: the point in input.json, the verdict in output.json."""
    ranks, folder = Ranks(), Path()
    output = folder / "output.json"
    if ranks.rank == 0:
        for earlier in (output, folder / "model.pt"):
            earlier.unlink(missing_ok=True)  # an earlier run's results must not pass for this one's
    try:
        result = train(
            read_point(folder / "input.json"),
            fold=int(os.environ.get("HPO_PILOT_FOLD", "0")),
            folds=int(os.environ.get("HPO_PILOT_FOLDS", "1")),
            seed=int(os.environ.get("HPO_PILOT_SEED", "0")),
            folder=folder,
            ranks=ranks,
        )
    except TrainingError as error:
        result = {"status": 1, "loss": None, "message": str(error)}
        print(error, flush=True)
    if ranks.rank == 0:
        output.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
