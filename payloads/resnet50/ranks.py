"""The processes of a training: PyTorch's own (DDP), Horovod's, or this one alone; and the device that each uses.

resnet50 and calo_gan have the same file: a payload's folder stands alone.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

try:
    import horovod.torch as hvd
except ImportError:
    hvd = None
try:
    import hpo_pilot_ranks as measured  # beside this file where hpo-pilot runs it: times what each rank does
except ImportError:
    measured = None

#: Where launchers say a rank and how many there are: horovodrun; torchrun; Open MPI's mpirun; MPICH's; jsrun; srun.
STARTED = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def timed(what: str) -> contextlib.AbstractContextManager[None]:
    """A context whose time counts as `communicate`, `compute` or `load_input`; nothing where nobody measures."""
    return getattr(measured, what)() if measured else contextlib.nullcontext()


class Ranks:
    """The processes of a training; this class is that of one process alone.

    The others replace its short methods: a training has one loop, whatever started it.
    """

    rank, size, local = 0, 1, 0
    through = "one process"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            # The launcher may show a rank its own GPU alone, or all of the node's.
            self.device = torch.device("cuda", self.local % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
            torch.backends.cudnn.benchmark = True

    def distribute(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        name: str = "",
        passes: int = 1,
        compression: str = "none",
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """The model to call and the optimizer to step, which take the mean of all ranks' gradients.

        Args:
            model: as it is saved.
            optimizer: of its parameters.
            name: keeps the parameters of several models apart.
            passes: backward passes of a step.
            compression: `fp16`: gradients travel in half precision.
        """
        return model, optimizer

    def exchanging(self, network: torch.nn.Module, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """Around each pass: the gradients of the last one of a step are exchanged."""
        return contextlib.nullcontext()

    def step(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        """A step of the optimizer; the scale is taken off the ranks' mean, so that all see the same infinities."""
        scaler.step(optimizer)

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by the sum over all ranks."""

    def send(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by rank 0's."""

    def send_object(self, what: Any) -> Any:
        """What rank 0 has."""
        return what

    def gather(self, what: Any) -> list[Any]:
        """What each rank has."""
        return [what]

    def leave(self) -> None:
        """Ends this rank, once its files are written."""

    def measure(self) -> None:
        """Begins to time this rank, where somebody measures."""
        if measured:
            wait = (lambda: torch.cuda.current_stream().synchronize()) if self.device.type == "cuda" else None
            measured.start(self.rank, self.size, synchronize=wait)

    # --- made of the above ---

    def describe(self) -> str:
        """What the training runs on."""
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        through = f"{self.size} ranks, {self.through}" if self.size > 1 else "one process"
        return f"{through}, {where}, torch {torch.__version__}"

    def sum(self, figures: list[float]) -> list[float]:
        """The sum of each figure over all ranks, in double precision."""
        total = torch.tensor(figures, dtype=torch.float64, device=self.device)
        with timed("communicate"):
            self.add_up(total)
        found: list[float] = total.tolist()
        return found

    def average_statistics(self, model: torch.nn.Module) -> None:
        """Gives all ranks the mean of their batch normalizations' statistics: one model is validated and kept."""
        with timed("communicate"):
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    self.add_up(buffer)
                    buffer.div_(self.size)

    def broadcast(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, others: Any) -> Any:
        """Gives all ranks the parameters, the optimizer's state and `others` that rank 0 has; returns those."""
        with timed("communicate"):
            for tensor in model.state_dict().values():
                self.send(tensor)
            state, others = self.send_object((optimizer.state_dict(), others))
        optimizer.load_state_dict(state)
        return others

    def agree(self, trouble: str) -> str:
        """The first trouble that any rank has, on all of them: else the others would wait for the one that left."""
        with timed("communicate"):
            return next((one for one in self.gather(trouble) if one), "")


class TorchRanks(Ranks):
    """Ranks of torch.distributed, whose gradients DistributedDataParallel exchanges: over NCCL on GPUs, else gloo."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        # Other launchers than torchrun: hpo-pilot says how many nodes there are, with as many ranks each, in order.
        each = max(1, size // int(os.environ.get("HPO_PILOT_NODES") or 1))
        self.local = int(os.environ.get("LOCAL_RANK") or rank % each)
        super().__init__()
        dist.init_process_group(rank=rank, world_size=size)
        self.through = "DDP over NCCL" if self.device.type == "cuda" else "DDP over gloo"

    def distribute(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        name: str = "",
        passes: int = 1,
        compression: str = "none",
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """See Ranks."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415  needs c10d

        # The images are in channels-last order, the weights are not: that costs a copy, and is said for each rank.
        warnings.filterwarnings("ignore", "Grad strides do not match")
        # Instead of rank 0's statistics before each pass, `average_statistics` shares the mean. Renamed in torch 2.13.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        sync = next(name for name in ("forward_sync_buffers", "broadcast_buffers") if name in known)
        network = DistributedDataParallel(model, **{sync: False})
        hook = default_hooks.fp16_compress_hook if compression == "fp16" else default_hooks.allreduce_hook
        if measured:
            measured.model(network, hook)
        else:
            network.register_comm_hook(dist.group.WORLD, hook)
        return network, optimizer

    def exchanging(self, network: torch.nn.Module, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """See Ranks."""
        return contextlib.nullcontext() if is_last else network.no_sync()

    def add_up(self, tensor: torch.Tensor) -> None:
        """See Ranks."""
        dist.all_reduce(tensor)

    def send(self, tensor: torch.Tensor) -> None:
        """See Ranks."""
        dist.broadcast(tensor, 0)

    def send_object(self, what: Any) -> Any:
        """See Ranks."""
        told = [what]
        dist.broadcast_object_list(told, 0)
        return told[0]

    def gather(self, what: Any) -> list[Any]:
        """See Ranks."""
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, what)
        return told

    def leave(self) -> None:
        """See Ranks. Not by Python's own end: a thread of gloo that frees a tensor then aborts the process."""
        dist.destroy_process_group()
        if measured:
            measured.stop()
        sys.stdout.flush()
        os._exit(0)


class HorovodRanks(Ranks):
    """Ranks of Horovod, whose optimizer exchanges the gradients."""

    def __init__(self) -> None:
        if measured is not None:
            measured.meet(hvd)
        hvd.init()
        self.rank, self.size, self.local = hvd.rank(), hvd.size(), hvd.local_rank()
        super().__init__()
        on_gpu = self.device.type == "cuda"
        over = "NCCL" if on_gpu and hvd.nccl_built() else "MPI" if hvd.mpi_enabled() else "gloo"
        self.through = f"Horovod over {over}"

    def distribute(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        name: str = "",
        passes: int = 1,
        compression: str = "none",
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """See Ranks."""
        distributed = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=[(f"{name}.{key}", parameter) for key, parameter in model.named_parameters()],
            compression=hvd.Compression.fp16 if compression == "fp16" else hvd.Compression.none,
            backward_passes_per_step=passes,
        )
        return model, measured.optimizer(distributed) if measured else distributed

    def step(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        """See Ranks."""
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)

    def add_up(self, tensor: torch.Tensor) -> None:
        """See Ranks."""
        hvd.allreduce_(tensor, op=hvd.Sum)

    def send(self, tensor: torch.Tensor) -> None:
        """See Ranks."""
        hvd.broadcast_(tensor, 0)

    def send_object(self, what: Any) -> Any:
        """See Ranks.

        Not hvd.broadcast_optimizer_state for an optimizer: it takes a step to make the state of a new one, and with
        weight decay that step moves the parameters.
        """
        return hvd.broadcast_object(what, 0)

    def gather(self, what: Any) -> list[Any]:
        """See Ranks."""
        told: list[Any] = hvd.allgather_object(what)
        return told


def join(over: str = "auto") -> Ranks:
    """The ranks that the launcher started.

    Args:
        over: `ddp`, `horovod`, or `auto`: Horovod where it is installed, else DDP; under torchrun always DDP.
    """
    said = [(os.environ.get(rank, ""), int(os.environ.get(size) or 1)) for rank, size in STARTED]
    rank, size = next(((int(rank), size) for rank, size in said if rank and size > 1), (0, 1))
    if over == "auto":
        over = "horovod" if hvd is not None and "TORCHELASTIC_RUN_ID" not in os.environ else "ddp"
    if over == "horovod" and hvd is None:
        raise SystemExit("this Python has no Horovod: `make horovod` builds it, and --over ddp does without")
    if over == "ddp" and size > 1 and "MASTER_ADDR" not in os.environ:
        raise SystemExit(f"{size} ranks were started, and MASTER_ADDR does not say where they meet: use torchrun")
    ranks = HorovodRanks() if over == "horovod" else TorchRanks(rank, size) if size > 1 else Ranks()
    if ranks.size == 1 < size:
        raise SystemExit(f"{size} ranks were started, but this Python has no Horovod that sees the others")
    return ranks
