"""The processes of a training: Horovod's, or this one alone; and the device that each of them uses."""

from __future__ import annotations

import contextlib
import os
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


def timed(what: str) -> contextlib.AbstractContextManager[None]:
    """A context whose time counts as `communicate`, `compute` or `load_input`; nothing where nobody measures."""
    return getattr(measured, what)() if measured else contextlib.nullcontext()


class Ranks:
    """The processes of this training."""

    def __init__(self) -> None:
        if hvd is not None:
            if measured is not None:
                measured.meet(hvd)
            hvd.init()
        started = max(int(os.environ.get(name) or 1) for name in STARTED)
        self.rank, self.size = (hvd.rank(), hvd.size()) if hvd is not None else (0, 1)
        if self.size == 1 < started:
            raise SystemExit(f"{started} ranks were started, but this Python has no Horovod that sees the others")
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            # The launcher may show a rank its own GPU alone, or all of the node's.
            own = (hvd.local_rank() if hvd is not None else 0) % torch.cuda.device_count()
            self.device = torch.device("cuda", own)
            torch.cuda.set_device(self.device)
            torch.backends.cudnn.benchmark = True

    def describe(self) -> str:
        """What the training runs on."""
        where = "CPU"
        if self.device.type == "cuda":
            where = torch.cuda.get_device_name(self.device)
        through = "one process"
        if self.size > 1:
            over = "NCCL" if where != "CPU" and hvd.nccl_built() else "MPI" if hvd.mpi_enabled() else "gloo"
            through = f"{self.size} ranks, Horovod over {over}"
        return f"{through}, {where}, torch {torch.__version__}"

    def sum(self, figures: list[float]) -> list[float]:
        """The sum of each figure over all ranks, in double precision."""
        if self.size == 1:
            return figures
        with timed("communicate"):
            total: list[float] = hvd.allreduce(torch.tensor(figures, dtype=torch.float64), op=hvd.Sum).tolist()
        return total

    def average_statistics(self, model: torch.nn.Module) -> None:
        """Gives all ranks the mean of their batch normalizations' statistics: one model is validated and kept."""
        buffers = [(name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point()]
        if self.size == 1 or not buffers:
            return
        with timed("communicate"):
            handles = [
                hvd.allreduce_async_(buffer, name=f"statistics.{name}", op=hvd.Average) for name, buffer in buffers
            ]
            for handle in handles:
                hvd.synchronize(handle)

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, passes: int, compression: str
    ) -> torch.optim.Optimizer:
        """The optimizer that adds up all ranks' gradients once in `passes` passes.

        With `compression: fp16` they travel in half precision.
        """
        if self.size == 1:
            return optimizer
        distributed: torch.optim.Optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=hvd.Compression.fp16 if compression == "fp16" else hvd.Compression.none,
            backward_passes_per_step=passes,
            op=hvd.Sum,
        )
        return distributed

    def broadcast(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, others: Any) -> Any:
        """Gives all ranks the parameters, the optimizer's state and `others` that rank 0 has; returns those."""
        if self.size == 1:
            return others
        with timed("communicate"):
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            # Not hvd.broadcast_optimizer_state: it takes a step to make the state of a new optimizer, and with weight
            # decay that step moves the parameters.
            state, others = hvd.broadcast_object((optimizer.state_dict(), others), root_rank=0)
        optimizer.load_state_dict(state)
        return others

    def agree(self, trouble: str) -> str:
        """The first trouble that any rank has, on all of them: else the others would wait for the one that left."""
        if self.size == 1:
            return trouble
        with timed("communicate"):
            told: list[str] = hvd.allgather_object(trouble)
        return next((one for one in told if one), "")
