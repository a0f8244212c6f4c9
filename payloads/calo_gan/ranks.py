"""The processes of a training: Horovod's, or this one alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any

import torch

try:
    import horovod.torch as hvd
except ImportError:  # then as one process
    hvd = None
try:
    import hpo_pilot_ranks as measured  # beside this file where hpo-pilot runs it: times what each rank does
except ImportError:
    measured = None

#: Where launchers say how many ranks they started: horovodrun; Open MPI's mpirun; MPICH's; jsrun; srun.
STARTED = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE", "SLURM_STEP_NUM_TASKS")


class Ranks:
    """The processes of this training, and which one this is."""

    def __init__(self) -> None:
        if hvd is not None:
            if measured is not None:
                measured.meet(hvd)
            hvd.init()
        started = max(int(os.environ.get(name) or 1) for name in STARTED)
        self.rank, self.size = (hvd.rank(), hvd.size()) if hvd is not None else (0, 1)
        if self.size == 1 < started:
            raise SystemExit(f"{started} ranks were started, but this Python has no Horovod that sees the others")
        local = hvd.local_rank() if hvd is not None else 0
        gpus = torch.cuda.device_count()
        self.device = torch.device("cuda", local % gpus) if gpus else torch.device("cpu")

    def sum(self, figures: list[float]) -> list[float]:
        """The sum of each figure over all ranks, in double precision."""
        if self.size == 1:
            return figures
        with timed("communicate"):
            total: list[float] = hvd.allreduce(torch.tensor(figures, dtype=torch.float64), op=hvd.Sum).tolist()
        return total

    def distribute(self, name: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer that adds up all ranks' gradients; `name` keeps two networks' parameters apart."""
        if self.size == 1:
            return optimizer
        named = [(f"{name}.{key}", parameter) for key, parameter in model.named_parameters()]
        distributed: torch.optim.Optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, op=hvd.Sum)
        return distributed

    def broadcast(
        self, parts: Iterable[tuple[torch.nn.Module, torch.optim.Optimizer]], history: list[dict[str, float]]
    ) -> list[dict[str, float]]:
        """Gives all ranks the networks, the optimizers' states and the epochs done that rank 0 has."""
        if self.size == 1:
            return history
        parts = list(parts)
        with timed("communicate"):
            for model, _ in parts:
                hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            # Not hvd.broadcast_optimizer_state: it takes a step to make the state of a new optimizer.
            told = ([optimizer.state_dict() for _, optimizer in parts], history)
            states, history = hvd.broadcast_object(told, root_rank=0)
        for (_, optimizer), state in zip(parts, states):
            optimizer.load_state_dict(state)
        return history

    def measure(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Begins to time this rank, where somebody measures."""
        if measured:
            measured.start(self.rank, self.size, torch.cuda.synchronize if self.device.type == "cuda" else None)
            for optimizer in optimizers:
                measured.optimizer(optimizer)


def timed(what: str) -> contextlib.AbstractContextManager[None]:
    """A context whose time counts as `communicate`, `compute` or `load_input`; nothing where nobody measures."""
    return getattr(measured, what)() if measured else contextlib.nullcontext()


def count(images: int) -> None:
    """Counts images as processed by this rank."""
    if measured:
        measured.images(images)


def stop() -> None:
    """Ends the timing."""
    if measured:
        measured.stop()


def of_each(batches: Iterable[Any]) -> Iterable[Any]:
    """The same batches, waited for as input."""
    timed_batches: Iterable[Any] = measured.loader(batches) if measured else batches
    return timed_batches
