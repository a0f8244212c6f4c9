"""Times what each rank of a training does: it lies beside the payload, which may import it.

    try:
        import hpo_pilot_ranks
    except ImportError:  # run by hand: then nothing is timed
        hpo_pilot_ranks = None

    if hpo_pilot_ranks:
        hpo_pilot_ranks.start(rank=hvd.rank(), size=hvd.size())
        loader, optimizer = hpo_pilot_ranks.loader(loader), hpo_pilot_ranks.optimizer(optimizer)
    ...
    with hpo_pilot_ranks.communicate():  # what no wrapper sees
        hvd.allreduce(loss)

`hpo_pilot_ranks.meet(hvd)` before `hvd.init()` lets a Horovod without MPI run under srun, jsrun or mpirun.

Time is input or communication where the payload says so, and else computation, as POP counts it: all that is outside of
the communication library is useful. A context inside another takes its time from it. Only the process and thread that
began are timed: workers of a data loader are not. Each rank's figures go to a file of its own, now and then and at the
end; hpo_pilot_efficiency.py reads them when the payload has ended. Standard library alone, Python 3.6 syntax.
"""

import atexit
import contextlib
import json
import os
import socket
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Iterator, List, Optional

FOLDER = "hpo_pilot_measured"  # below the job's folder; HPO_PILOT_MEASURED names it for who works elsewhere
SAVE_EVERY = 5.0  # seconds: what a rank that is killed has told before
#: Where launchers tell a rank its number, and of how many: Horovod, torchrun, OpenMPI, jsrun, PMI, PMIx, Slurm.
RANK_VARIABLES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)

#: The same, but for what Horovod finds by itself, and for Slurm's in a batch script, which is no rank.
LAUNCHED = (*RANK_VARIABLES[2:-1], ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


class _Clock:
    """The time of one rank, by what it was spent on."""

    def __init__(self, rank: int, size: int, synchronize: "Optional[Callable[[], Any]]") -> None:
        self.rank, self.size, self.synchronize = rank, size, synchronize
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.spent = {"compute": 0.0, "communication": 0.0, "input": 0.0}
        self.doing, self.images = ["compute"], 0  # type: List[str], int
        self.began = self.last = self.saved = time.monotonic()
        self.folder = os.environ.get("HPO_PILOT_MEASURED") or os.path.abspath(FOLDER)

    def mine(self) -> bool:
        """Whether the caller is who began."""
        return self.process == os.getpid() and self.thread == threading.get_ident()

    def note(self) -> None:
        """Count the time since the last note for what is being done."""
        if self.synchronize is not None:
            self.synchronize()  # a GPU's work counts where it was started
        now = time.monotonic()
        self.spent[self.doing[-1]] += now - self.last
        self.last = now

    def save(self) -> None:
        """Write the rank's file, complete or not at all; a full disk is no reason to end a training."""
        figures = dict(self.spent, rank=self.rank, size=self.size, host=os.uname().nodename, images=self.images)
        figures.update(version=1, seconds=self.last - self.began)
        path = os.path.join(self.folder, "%d.json" % self.rank)
        self.saved = time.monotonic()
        try:
            os.makedirs(self.folder, exist_ok=True)
            with open(path + ".new", "w") as file:
                json.dump(figures, file)
            os.rename(path + ".new", path)
        except OSError as error:
            print("hpo_pilot_ranks: %s is not written: %s" % (path, error))


_clock = None  # type: Optional[_Clock]
_stopped = False  # then nothing is timed until the next start


def _from_launcher() -> "List[int]":
    """This process's rank and how many there are, as its launcher says; 0 of 1 without one."""
    for rank, size in RANK_VARIABLES:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return [int(os.environ[rank]), int(os.environ[size])]
    return [0, 1]


def start(
    rank: "Optional[int]" = None, size: "Optional[int]" = None, synchronize: "Optional[Callable[[], Any]]" = None
) -> None:
    """Begin to time; what was before does not count. Without it the first context or wrapper begins.

    Args:
        rank: of this process, from 0; by default what the launcher says.
        size: how many ranks there are.
        synchronize: called before each look at the clock, as torch.cuda.synchronize where the work is a GPU's.
    """
    global _clock, _stopped  # noqa: PLW0603  one process, one clock: that is what makes a payload's use of it two lines
    found = _from_launcher()
    first = _clock is None and not _stopped
    _clock = _Clock(found[0] if rank is None else rank, found[1] if size is None else size, synchronize)
    _stopped = False
    if first:
        atexit.register(_at_exit)


def stop() -> None:
    """Stop: what comes after does not count, until the next start, which begins anew."""
    global _clock, _stopped
    if _clock is not None and _clock.mine():
        _clock.note()
        _clock.save()
        _clock, _stopped = None, True


def _at_exit() -> None:
    """What was timed up to the last context: what the interpreter does then is no training."""
    if _clock is not None and _clock.process == os.getpid():
        _clock.save()


@contextlib.contextmanager
def _doing(what: str) -> "Iterator[None]":
    if _clock is None and not _stopped:
        start()
    clock = _clock
    if clock is None or not clock.mine():
        yield
        return
    clock.note()
    clock.doing.append(what)
    try:
        yield
    finally:
        clock.note()
        clock.doing.pop()
        if clock is _clock and len(clock.doing) == 1 and clock.last - clock.saved >= SAVE_EVERY:
            clock.save()


def compute() -> "Any":
    """A context whose time is computation: inside another one, for all else is computation already."""
    return _doing("compute")


def communicate() -> "Any":
    """A context whose time is communication: sending, receiving, and waiting for others."""
    return _doing("communication")


def load_input() -> "Any":
    """A context whose time is input: reading and waiting for data."""
    return _doing("input")


def images(count: int) -> None:
    """Count images, or whatever else the training's samples are, as processed by this rank."""
    if _clock is not None and _clock.mine():
        _clock.images += int(count)


class loader:
    """A data loader whose batches are waited for as input; all else of it is as it was."""

    def __init__(self, batches: "Iterable[Any]") -> None:
        self._batches = batches

    def __iter__(self) -> "Iterator[Any]":
        with load_input():
            iterator = iter(self._batches)
        while True:
            with load_input():
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._batches, name)


def optimizer(wrapped: "Any") -> "Any":
    """Time a Horovod optimizer's waiting for gradients as communication; returns the same optimizer.

    What overlaps with the backward pass costs nothing and is not seen; an optimizer without `synchronize` has nothing
    to wait for, and stays as it is.
    """
    synchronize = getattr(wrapped, "synchronize", None)
    if synchronize is not None:

        def timed(*given: "Any", **named: "Any") -> "Any":
            with communicate():
                return synchronize(*given, **named)

        wrapped.synchronize = timed
    return wrapped


def meet(hvd: "Any", seconds: float = 120.0) -> None:
    """Let Horovod's ranks find each other over gloo, where it has no MPI and its launcher only says who is who.

    Under horovodrun, and for one rank, there is nothing to do. Pilots say in MASTER_ADDR and MASTER_PORT where rank 0
    is, and in HPO_PILOT_NODES on how many nodes the ranks are, as many on each and in their order. HOROVOD_GLOO_IFACE
    names the network interface where the way to rank 0 is not the right one. SystemExit where they do not meet.
    """
    said = [os.environ.get(size, "") for rank, size in LAUNCHED if os.environ.get(rank)]
    size = int(said[0] or 1) if said else 1
    if size == 1 or "HOROVOD_RANK" in os.environ or hvd.mpi_built() or "MASTER_ADDR" not in os.environ:
        return
    rank = next(int(os.environ[name]) for name, _ in LAUNCHED if os.environ.get(name))
    nodes = int(os.environ.get("HPO_PILOT_NODES") or 1)
    local = max(1, size // nodes)
    address, port = socket.gethostbyname(os.environ["MASTER_ADDR"]), int(os.environ["MASTER_PORT"])
    if rank == 0:
        _serve(port, [(each % local, each // local) for each in range(size)], local, nodes)
    _wait(address, port, seconds)
    here = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank % local, "LOCAL_SIZE": local}
    here.update(CROSS_RANK=rank // local, CROSS_SIZE=nodes, GLOO_RENDEZVOUS_PORT=port)
    os.environ.update({"HOROVOD_" + name: str(value) for name, value in here.items()})
    os.environ.update(HOROVOD_GLOO_RENDEZVOUS_ADDR=address, HOROVOD_HOSTNAME="node-%d" % (rank // local))
    os.environ.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
    os.environ.setdefault("HOROVOD_GLOO_IFACE", _interface(address, port))


def _serve(port: int, places: "List[Any]", local: int, nodes: int) -> None:
    """Where ranks leave their addresses for each other, in rank 0's process."""
    http = __import__("horovod.runner.http.http_server", fromlist=["RendezvousHTTPServer"])
    hosts = __import__("horovod.runner.common.util.hosts", fromlist=["SlotInfo"])
    plan = [
        hosts.SlotInfo("node-%d" % cross, rank, at, cross, len(places), local, nodes)
        for rank, (at, cross) in enumerate(places)
    ]
    try:
        server = http.RendezvousHTTPServer(("", port), http.RendezvousHandler, 0)
    except OSError as error:
        raise SystemExit("hpo_pilot_ranks: rank 0 cannot listen at port %d: %s" % (port, error)) from error
    server.init(plan)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _wait(address: str, port: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((address, port), 5.0).close()
        except OSError as error:
            if time.monotonic() > end:
                raise SystemExit("hpo_pilot_ranks: rank 0 is not at %s:%d: %s" % (address, port, error)) from error
            time.sleep(0.1)


def _interface(address: str, port: int) -> str:
    """The name of the network interface that has the address by which this node reaches another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # nothing is sent
        own = probe.getsockname()[0]
    found = __import__("psutil").net_if_addrs()  # Horovod needs psutil too
    return next((name for name in sorted(found) for one in found[name] if one.address == own), "lo")
