"""Trains a small transformer on a text that it makes, as one process or as ranks with FSDP: each has a part of it.

    python train.py                                  # one process
    torchrun --nproc-per-node=2 train.py             # two ranks; also srun or mpirun, where MASTER_ADDR is set

Reads `input.json` (the hyper-parameter point) and writes `progress.jsonl` (a line per validation), `output.json` (the
verdict) and, after each validation, a checkpoint in parts: it goes on with another number of ranks. `batch` counts the
sequences of a step of all ranks together. See README.md beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# One thread for each rank, unless the launcher says otherwise; torch reads it when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.functional import cross_entropy
except ImportError as error:
    raise SystemExit(f"{error}: pip install 'torch>=2.6'") from None
from checkpoint import Checkpoint
from model import Transformer
from point import ALPHABET, CONTEXT, TrainingError, cooldown, learning_rate, made_text, read_point

try:
    import hpo_pilot_ranks as measured  # beside this file where hpo-pilot runs it: times what each rank does
except ImportError:
    measured = None

VALIDATE_EVERY, VALIDATED = 25, 256  #: steps; sequences
#: Where launchers say a rank and how many there are: torchrun; Open MPI's mpirun; MPICH's; jsrun; srun.
STARTED = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class Ranks:
    """The processes of this training: which one this is, and its device."""

    def __init__(self) -> None:
        said = [(os.environ.get(rank, ""), int(os.environ.get(size) or 1)) for rank, size in STARTED]
        self.rank, self.size = next(((int(rank), size) for rank, size in said if rank and size > 1), (0, 1))
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            each = max(1, self.size // int(os.environ.get("HPO_PILOT_NODES") or 1))
            local = int(os.environ.get("LOCAL_RANK") or self.rank % each)
            self.device = torch.device("cuda", local % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        if self.size > 1:
            dist.init_process_group(rank=self.rank, world_size=self.size)

    def shard(self, model: Transformer, reshard: bool) -> None:
        """Gives each rank its part of each block; `reshard` frees the others' parts after a block's forward pass."""
        if self.size > 1:
            mesh = init_device_mesh(self.device.type, (self.size,))
            for block in model.blocks:
                fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
            fully_shard(model, mesh=mesh)

    def sum(self, figure: torch.Tensor) -> float:
        """The sum of a figure over all ranks."""
        if self.size > 1:
            dist.all_reduce(figure)
        return figure.item()

    def leave(self) -> None:
        """Ends this rank without Python's own end: a thread of gloo that frees a tensor then aborts the process."""
        if self.size > 1:
            dist.destroy_process_group()
            if measured:
                measured.stop()
            sys.stdout.flush()
            os._exit(0)


def encoded(text: str) -> torch.Tensor:
    """The characters of a text as numbers."""
    return torch.tensor([ALPHABET.index(character) for character in text])


def windows(text: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Sequences of CONTEXT characters and the one after them, from these places of the text."""
    return text[starts[:, None] + torch.arange(CONTEXT + 1)]


def batches(text: torch.Tensor, point: dict[str, Any], seed: int, steps: Iterable[int], ranks: Ranks) -> Iterator[Any]:
    """This rank's share of the sequences of each step; they do not depend on the number of ranks."""
    for step in steps:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(text) - CONTEXT, (point["batch"],), generator=generator)
        yield step, windows(text, starts[ranks.rank :: ranks.size]).to(ranks.device)


def loss_of(model: torch.nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    """The cross-entropy, summed over all characters."""
    scores = model(sequences[:, :-1])
    return cross_entropy(scores.flatten(0, 1), sequences[:, 1:].flatten(), reduction="sum")


def train(
    point: dict[str, Any], text: tuple[str, str], folder: Path, ranks: Ranks, **identity: int
) -> list[dict[str, float]]:
    """Trains in `folder`, going on from its checkpoint if there is one; returns the values by step.

    Args:
        point: as read_point returns it.
        text: to learn from, and held out.
        folder: of progress.jsonl and the checkpoints.
        ranks: of this training.
        identity: `seed` and what else the training depends on.

    Raises:
        TrainingError: the training diverged or cannot be done with this point; all ranks raise it.
    """
    if point["batch"] < ranks.size:
        raise TrainingError(f"a batch of {point['batch']} leaves some of {ranks.size} ranks without sequences")
    learnt, held_out = map(encoded, text)
    step_width = max(1, (len(held_out) - CONTEXT) // VALIDATED)
    valid = windows(held_out, torch.arange(VALIDATED) * step_width)[ranks.rank :: ranks.size].to(ranks.device)
    torch.manual_seed(identity["seed"])  # all ranks draw the same weights, then keep their part
    model = Transformer(point).to(ranks.device)
    ranks.shard(model, point["reshard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=point["weight_decay"])
    has_level = "HPO_PILOT_LEVEL" in os.environ  # of a search with `fidelity`: a later job trains this point on
    same = dict(point, steps=None) if has_level else point
    checkpoint = Checkpoint(folder / "ckpt", {"point": same, **identity})
    history = checkpoint.load(model, optimizer)
    if history and ranks.rank == 0:
        print(f"going on after step {history[-1]['step']:.0f} on {ranks.size} ranks", flush=True)
    if measured:
        wait = (lambda: torch.cuda.current_stream().synchronize()) if ranks.device.type == "cuda" else None
        measured.start(ranks.rank, ranks.size, synchronize=wait)
        if ranks.size > 1:
            measured.model(model)
    end = point["steps"] + (cooldown(point) if has_level else 0)
    steps = batches(learnt, point, identity["seed"], range(int(history[-1]["step"]) if history else 0, end), ranks)
    with (folder / "progress.jsonl").open("w") if ranks.rank == 0 else contextlib.nullcontext() as progress:
        if progress:
            progress.writelines(json.dumps(line) + "\n" for line in history)
        for step, sequences in measured.loader(steps) if measured else steps:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(point, step, has_level=has_level)
            optimizer.zero_grad()
            # FSDP takes the mean of the ranks' gradients; their shares of a step differ by a sequence.
            (loss_of(model, sequences) * ranks.size / (point["batch"] * CONTEXT)).backward()
            optimizer.step()
            if measured:
                measured.images(len(sequences))
            is_kept = step < point["steps"]
            if step + 1 not in (point["steps"], end) and ((step + 1) % VALIDATE_EVERY or not is_kept):
                continue
            with torch.no_grad():
                loss = ranks.sum(loss_of(model, valid).double()) / (VALIDATED * CONTEXT)
            if not abs(loss) < float("inf"):
                raise TrainingError(f"training diverged before step {step + 1}: the predictions are not numbers")
            history.append({"step": min(step + 1, point["steps"]), "loss": loss})
            if progress and is_kept:
                progress.write(json.dumps(history[-1]) + "\n")
                progress.flush()  # heartbeats carry the last line while the training goes on
            if progress:
                print(f"step {step + 1:5d}  loss {loss:.4f}", flush=True)
            if is_kept:
                checkpoint.save(model, optimizer, history)
    if measured:
        measured.stop()
    if not has_level:
        checkpoint.drop()
    return history


def main() -> None:
    """One job: the point in input.json, the verdict in output.json; rank 0 alone writes it."""
    ranks, folder = Ranks(), Path()
    output = folder / "output.json"
    if ranks.rank == 0:
        output.unlink(missing_ok=True)  # an earlier run's result must not pass for this one's
    said = {name: int(os.environ.get(f"HPO_PILOT_{name.upper()}", "0")) for name in ("fold", "folds", "seed")}
    said["folds"] = max(1, said["folds"])
    result: dict[str, Any]
    try:
        history = train(
            read_point(folder / "input.json"), made_text(said["fold"], said["folds"]), folder, ranks, **said
        )
        result = {"status": 0, "loss": history[-1]["loss"], "message": "", "metrics": {"steps": history[-1]["step"]}}
    except TrainingError as error:
        result = {"status": 1, "loss": None, "message": str(error)}
        print(error, flush=True)
    if ranks.rank == 0:
        output.write_text(json.dumps(result) + "\n")
    ranks.leave()


if __name__ == "__main__":
    main()
