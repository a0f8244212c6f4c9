"""Trains a 3D GAN that makes calorimeter showers, as one process or as several ranks with DDP or Horovod.

    python train.py                               # one process
    torchrun --nproc-per-node=2 train.py          # two ranks with DDP
    horovodrun -np 2 --gloo python train.py       # two ranks with Horovod; also mpirun, srun, jsrun

The point is in input.json, the verdict in output.json; rank 0 alone writes. `batch` counts the showers of a step of all
ranks together, and what is random is drawn for all of them alike: a point means the same training on any number of
ranks, up to the order in which numbers are added. Showers come from HDF5 files, or are made (showers.py).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# One thread for each rank, unless the launcher says otherwise; torch reads it when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import numpy as np
    import torch
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install torch numpy") from None
from figure import energy_bins, profiles
from files import ENDINGS, read_showers
from gan import Batches, Gan
from networks import Scale
from point import DEFAULTS, rate_factor, read_point
from problem import TrainingError
from ranks import Ranks, join, measured, timed
from showers import Calorimeter, ShowerMaker, Showers, flat_energies

SAMPLE_SEED = 20_240_301  #: of the made showers and of the folds: every trial, on any number of ranks, sees the same
PARTS_WITHOUT_FOLDS = 5
ENERGY_BINS = 4
CHECKPOINT_EVERY = 2  #: epochs


class Checkpoint:
    """The state of one training after some epoch, in one file that rank 0 writes and reads.

    The name is a digest of what the training depends on; the number of ranks is no part of it.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        text = json.dumps({**identity, "torch": torch.__version__}, sort_keys=True)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.pt"

    def save(self, gan: Gan, history: list[dict[str, float]]) -> None:
        """Replaces the file in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        states = [(model.state_dict(), optimizer.state_dict()) for model, optimizer in gan.parts()]
        torch.save({"states": states, "history": history}, partial)
        partial.replace(self.path)

    def load(self, gan: Gan) -> list[dict[str, float]]:
        """Puts the file's state into both networks and optimizers; returns the epochs done."""
        if not self.path.exists():
            return []
        found = torch.load(self.path, weights_only=True, map_location=gan.ranks.device)
        for (model, optimizer), (weights, state) in zip(gan.parts(), found["states"]):
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
        history: list[dict[str, float]] = found["history"]
        return history

    def drop(self) -> None:
        """Removes the file when the training has ended: the next training of this point begins anew."""
        self.path.unlink(missing_ok=True)


def split(showers: Showers, fold: int, folds: int) -> tuple[Showers, Showers]:
    """Training and validation showers of one fold; without folds one shower in five is for validation."""
    if not 0 <= fold < folds:
        raise TrainingError(f"there is no fold {fold} of {folds}: HPO_PILOT_FOLD counts from 0")
    order = np.random.default_rng(SAMPLE_SEED).permutation(len(showers))
    held_out = order[fold :: folds if folds > 1 else PARTS_WITHOUT_FOLDS]
    return showers.part(np.setdiff1d(order, held_out)), showers.part(np.sort(held_out))


def find_showers(point: dict[str, Any], data: Sequence[str], folder: Path) -> Showers:
    """The user's showers, where there are some; else made ones."""
    paths = [Path(name) for name in data] or sorted(path for path in folder.iterdir() if path.suffix in ENDINGS)
    if paths:
        return read_showers(paths)
    energies = flat_energies(point["events"], point["low"], point["high"], SAMPLE_SEED)
    return ShowerMaker(Calorimeter(point["cells"]), point["particle"]).draw(energies, SAMPLE_SEED)


def train(
    point: dict[str, Any], showers: Showers, fold: int, folds: int, seed: int, folder: Path, ranks: Ranks
) -> dict[str, Any]:
    """Trains in `folder`, going on from its checkpoint if there is one.

    Returns:
        The content of output.json.

    Raises:
        TrainingError: the training diverged, or cannot be done with this point or these showers.
    """
    learnt, valid = split(showers, fold, folds)
    edges = energy_bins(valid.energy, ENERGY_BINS)
    truth = profiles(valid.ecal, valid.energy, edges)
    seen = profiles(learnt.ecal, learnt.energy, energy_bins(learnt.energy, 1))
    scale = Scale(float(learnt.energy.mean()), float(seen.fraction.sum() / seen.count.sum()))
    if not (scale.fraction > 0 and (truth.layers.sum(axis=1) > 0).all()):
        raise TrainingError("nothing is seen in these showers")
    torch.manual_seed(seed)
    gan = Gan(point, tuple(showers.ecal.shape[1:]), scale, ranks)
    batches = Batches(point, learnt, ranks, seed)
    # `events`, `cells` and so on are not enough: files have showers of their own.
    data = hashlib.sha256(showers.ecal.tobytes() + showers.energy.tobytes()).hexdigest()
    has_level = "HPO_PILOT_LEVEL" in os.environ  # of a search with `fidelity`: a later job trains this point on
    same = dict(point, epochs=None) if has_level else point
    identity = {"point": same, "fold": fold, "folds": folds, "seed": seed, "data": data}
    checkpoint = Checkpoint(folder / "ckpt", identity)
    history = checkpoint.load(gan) if ranks.rank == 0 else []
    for model, optimizer in gan.parts():
        history = ranks.broadcast(model, optimizer, history)
    gan.steps = len(history) * len(batches)
    untrained = history[0]["untrained"] if history else gan.evaluate(valid, truth, edges, seed)["figure"]
    ranks.measure()
    is_writer = ranks.rank == 0
    if is_writer and history:
        print(f"going on after epoch {len(history)}: {checkpoint.path} is of a training that was ended", flush=True)
    with (folder / "progress.jsonl").open("w") if is_writer else contextlib.nullcontext() as progress:
        if progress:
            progress.writelines(json.dumps(line) + "\n" for line in history)
        for epoch in range(len(history) + 1, point["epochs"] + 1):
            steps = batches.epoch(epoch)
            for i, step in enumerate(measured.loader(steps) if measured else steps):
                gan.set_rates(rate_factor(point, epoch - 1 + i / len(batches)))
                gan.learn(step)
                if measured:
                    measured.images(len(step.energy))
            with timed("compute"):
                found = gan.evaluate(valid, truth, edges, seed)
            line = {"step": epoch, "untrained": untrained, **found}
            history.append(line)
            if progress:
                progress.write(json.dumps(line) + "\n")
                progress.flush()  # heartbeats carry the last line while the training goes on
                told = "  ".join(f"{name} {value:.4f}" for name, value in found.items())
                print(f"epoch {epoch:3d}  {told}", flush=True)
                if epoch % CHECKPOINT_EVERY == 0:
                    checkpoint.save(gan, history)
    if measured:
        measured.stop()
    if is_writer:
        torch.save(gan.generator.state_dict(), folder / "generator.pt")
        if has_level:
            checkpoint.save(gan, history)
        else:
            checkpoint.drop()
    last = {name: value for name, value in history[-1].items() if name != "step"}
    sizes = {
        f"{model}_parameters": sum(p.numel() for p in getattr(gan, model).parameters()) for model in gan.optimizers
    }
    metrics = {**last, "true_resolution": truth.resolution(), "epochs": len(history), **sizes}
    return {"status": 0, "loss": last["figure"], "message": "", "metrics": metrics}


def main(argv: Sequence[str] | None = None) -> None:
    """One job: the point in input.json, the verdict in output.json."""
    parser = argparse.ArgumentParser(description="Trains a GAN for calorimeter showers; the point is in input.json.")
    parser.add_argument("--data", nargs="+", default=[], help="HDF5 files of showers; by default those beside this")
    for name in ("epochs", "events", "cells"):
        parser.add_argument(f"--{name}", type=int, help=f"where the point does not say; {DEFAULTS[name]} without it")
    parser.add_argument("--over", choices=("auto", "ddp", "horovod"), default="auto", help="what connects the ranks")
    given = parser.parse_args(argv)
    said = {name: value for name in ("epochs", "events", "cells") if (value := getattr(given, name)) is not None}
    ranks, folder = join(given.over), Path()
    output = folder / "output.json"
    if ranks.rank == 0:
        for earlier in (output, folder / "generator.pt"):
            earlier.unlink(missing_ok=True)  # an earlier run's results must not pass for this one's
    try:
        point = read_point(folder / "input.json", said)
        result = train(
            point,
            find_showers(point, given.data, folder),
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
        partial = folder / "output.json.partial"
        partial.write_text(json.dumps(result) + "\n")
        partial.replace(output)
    ranks.leave()


if __name__ == "__main__":
    main()
