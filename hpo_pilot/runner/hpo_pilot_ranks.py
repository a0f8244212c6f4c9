"""Measures how each rank of a training spends its time.

The payload imports it from its own folder::

    try:
        import hpo_pilot_ranks
    except ImportError:  # run by hand: nothing is timed
        hpo_pilot_ranks = None

    if hpo_pilot_ranks:
        hpo_pilot_ranks.start()
        loader = hpo_pilot_ranks.loader(loader)
        model = hpo_pilot_ranks.model(model)  # PyTorch's DDP or FSDP, DeepSpeed
        optimizer = hpo_pilot_ranks.optimizer(optimizer)  # Horovod
    ...
    with hpo_pilot_ranks.communicate():  # communication that the wrappers do not see
        hvd.allreduce(loss)

`hpo_pilot_ranks.meet(hvd)` before `hvd.init()` lets a Horovod without MPI run under torchrun, srun, jsrun or mpirun.

Time counts as input or communication inside these contexts and wrappers, and as computation elsewhere. POP defines it
so: all time outside of the communication library is useful. The time of an inner context does not count for the outer
one. Only the process and thread that started the clock are timed, so workers of a data loader are not. Each rank writes
its figures to a file of its own, every few seconds and at the end. `assess` turns the files of all ranks into the
efficiency of the training. Standard library only, Python 3.6 syntax.
"""

import atexit
import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

FOLDER = "hpo_pilot_measured"  # below the job's folder; HPO_PILOT_MEASURED has its path for ranks that run elsewhere
SAVE_EVERY = 5.0  # seconds between writes, so that a killed rank leaves recent figures
#: Variables of the rank and the number of ranks: Horovod, torchrun, OpenMPI, jsrun, Flux, PMI, PMIx, Slurm,
#: whose batch script has a rank and SLURM_NTASKS, too, but is none.
RANK_VARIABLES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)

#: The same without the variables that Horovod reads itself.
LAUNCHED = RANK_VARIABLES[2:]

TIMES = ("seconds", "compute", "communication", "input")
RANK_FILE_LIMIT = 64 * 1024  # bytes of a rank's file
EVENTS = ".events"  # ending of the file with a rank's part of the timeline
EVENTS_KEPT = 32 * 1024 * 1024  # bytes of the timeline of all ranks
RANKS_KEPT = 256  # ranks in the metadata: those with the longest computation, because the others wait for them
MOST_RANKS = 1 << 17  # files that are read


class _Clock:
    """The time of one rank, by activity."""

    def __init__(self, rank: int, size: int, synchronize: "Optional[Callable[[], Any]]") -> None:
        self.rank, self.size, self.synchronize = rank, size, synchronize
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.spent = {"compute": 0.0, "communication": 0.0, "input": 0.0}
        self.doing, self.images = ["compute"], 0  # type: List[str], int
        self.began = self.last = self.saved = time.monotonic()
        self.folder = os.environ.get("HPO_PILOT_MEASURED") or os.path.abspath(FOLDER)
        self.events = []  # type: List[Tuple[str, float, float]]
        self.room = EVENTS_KEPT // size if os.environ.get("HPO_PILOT_TIMELINE") else 0  # bytes for further events

    def mine(self) -> bool:
        """Whether the caller is the process and thread that started the clock.

        A thread that Python did not start counts as well: the backward pass on a GPU runs hooks in one, and the thread
        that called it waits.
        """
        here = self.thread == threading.get_ident() or isinstance(threading.current_thread(), threading._DummyThread)
        return here and self.process == os.getpid()

    def note(self) -> None:
        """Add the time since the last call to the current activity."""
        if self.synchronize is not None:
            self.synchronize()  # counts the work of a GPU where it was started
        now = time.monotonic()
        self.spent[self.doing[-1]] += now - self.last
        if self.room > 0:
            self.events.append((self.doing[-1], self.last, now - self.last))
        self.last = now

    def save(self) -> None:
        """Write the rank's file atomically. A full disk does not end the training."""
        figures = dict(self.spent, rank=self.rank, size=self.size, host=os.uname().nodename, images=self.images)
        figures.update(version=1, seconds=self.last - self.began)
        path = os.path.join(self.folder, "%d.json" % self.rank)
        self.saved = time.monotonic()
        try:
            os.makedirs(self.folder, exist_ok=True)
            with open(path + ".new", "w") as file:
                json.dump(figures, file)
            os.rename(path + ".new", path)
            if self.events:
                self.write_events()
        except OSError as error:
            print("hpo_pilot_ranks: %s is not written: %s" % (path, error))

    def write_events(self) -> None:
        """Append to this rank's part of the timeline, in Chrome's trace event format: times in microseconds."""
        ahead = time.time() - time.monotonic()  # ranks on several nodes have only the time of day in common
        event = '{"name": "%s", "ph": "X", "ts": %.0f, "dur": %.0f, "pid": %d, "tid": 0},\n'
        lines = [event % (name, 1e6 * (at + ahead), 1e6 * took, self.rank) for name, at, took in self.events]
        self.events, self.room = [], self.room - sum(map(len, lines))
        with open(os.path.join(self.folder, "%d%s" % (self.rank, EVENTS)), "a") as file:
            file.writelines(lines)


_clock = None  # type: Optional[_Clock]
_stopped = False  # True: nothing is timed until the next start


def _from_launcher() -> "List[int]":
    """Return the rank of this process and the number of ranks from its launcher; [0, 1] without a launcher."""
    for rank, size in RANK_VARIABLES:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return [int(os.environ[rank]), int(os.environ[size])]
    return [0, 1]


def start(
    rank: "Optional[int]" = None, size: "Optional[int]" = None, synchronize: "Optional[Callable[[], Any]]" = None
) -> None:
    """Start the clock; earlier time does not count. Without this call the first context or wrapper starts it.

    Args:
        rank: of this process, from 0; default: from the launcher.
        size: number of ranks; default: from the launcher.
        synchronize: called before each reading of the clock, such as torch.cuda.synchronize for work on a GPU.
    """
    global _clock, _stopped  # noqa: PLW0603  one clock for each process keeps the use in a payload to two lines
    found = _from_launcher()
    first = _clock is None and not _stopped
    _clock = _Clock(found[0] if rank is None else rank, found[1] if size is None else size, synchronize)
    _stopped = False
    if first:
        atexit.register(_at_exit)


def stop() -> None:
    """Stop the clock. The next start begins from zero."""
    global _clock, _stopped
    if _clock is not None and _clock.mine():
        _clock.note()
        _clock.save()
        _clock, _stopped = None, True


def _at_exit() -> None:
    """Save the time until now, for a payload that calls no `stop`."""
    if _clock is not None and _clock.process == os.getpid():
        _clock.synchronize = None  # it would fail again on a GPU that has failed
        _clock.note()
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
    """Return a context whose time is computation; needed only inside another context."""
    return _doing("compute")


def communicate() -> "Any":
    """Return a context whose time is communication: sending, receiving, waiting for other ranks."""
    return _doing("communication")


def load_input() -> "Any":
    """Return a context whose time is input: reading data and waiting for it."""
    return _doing("input")


def images(count: int) -> None:
    """Add images (or other samples) that this rank has processed."""
    if _clock is not None and _clock.mine():
        _clock.images += int(count)


class loader:
    """Wraps a data loader; waiting for its batches counts as input."""

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


def _time(owner: "Any", name: str) -> None:
    """Count the time of a method as communication; `owner` is an object or a class."""
    inner = getattr(owner, name, None)
    if inner is None or hasattr(inner, "timed"):
        return

    def timed(*given: "Any", **named: "Any") -> "Any":
        with communicate():
            return inner(*given, **named)

    timed.timed = True  # type: ignore[attr-defined]
    setattr(owner, name, timed)


def optimizer(wrapped: "Any") -> "Any":
    """Count a Horovod optimizer's waiting for gradients as communication; returns the same optimizer.

    Communication that overlaps with the backward pass costs no time and is not counted. An optimizer without
    `synchronize` does not wait and is returned unchanged.
    """
    _time(wrapped, "synchronize")
    return wrapped


def model(wrapped: "Any", hook: "Any" = None, state: "Any" = None) -> "Any":
    """Count waiting for other ranks in torch.distributed as communication; returns the same model.

    From the call on, each wait for a collective that Python starts is counted: those of FSDP, of DeepSpeed and of the
    payload. DistributedDataParallel exchanges gradients outside of Python, so it gets a communication hook: when the
    last bucket of gradients is ready, the backward pass has no work left, and the hook waits for all buckets.
    Communication that overlaps with the backward pass costs no time and is not counted.

    On a GPU, pass `start` a `synchronize` that waits for the current stream alone:
    `lambda: torch.cuda.current_stream().synchronize()`. FSDP then no longer overlaps its collectives with computation.

    Args:
        wrapped: the model as the training calls it.
        hook: a communication hook for DistributedDataParallel, which takes only one; default: torch's allreduce_hook.
        state: the hook's first argument; default: the model's process group.
    """
    _time(sys.modules["torch.distributed"].Work, "wait")
    parallel = sys.modules["torch.nn.parallel"].DistributedDataParallel
    if not isinstance(wrapped, parallel):
        return wrapped
    _time(wrapped, "_sync_buffers")  # rank 0's statistics of a batch normalization, before each forward pass
    hooks = __import__("torch.distributed.algorithms.ddp_comm_hooks.default_hooks", fromlist=["allreduce_hook"])
    exchange, pending = hook or hooks.allreduce_hook, []  # type: Any, List[Any]

    def timed(state, bucket):  # type: (Any, Any) -> Any  # torch checks annotations
        pending.append(exchange(state, bucket))
        last = pending[-1]
        if bucket.is_last():
            with communicate():
                while pending:
                    pending.pop().wait()
        return last

    wrapped.register_comm_hook(wrapped.process_group if state is None else state, timed)
    return wrapped


def meet(hvd: "Any", seconds: float = 120.0) -> None:
    """Connect Horovod's ranks over gloo, for a Horovod without MPI under a launcher that only numbers the ranks.

    Does nothing under horovodrun or for one rank. Pilots and torchrun set MASTER_ADDR and MASTER_PORT to the address of
    rank 0, and pilots HPO_PILOT_NODES to the number of nodes; each node has the same number of ranks, in order. The
    default network interface is the one that reaches rank 0; HOROVOD_GLOO_IFACE names another one. SystemExit if they
    do not connect.
    """
    elastic = "TORCHELASTIC_RUN_ID" in os.environ  # torchrun
    variables = RANK_VARIABLES[1:2] if elastic else LAUNCHED
    said = [os.environ.get(size, "") for rank, size in variables if os.environ.get(rank)]
    size = int(said[0] or 1) if said else 1
    through_mpi = hvd.mpi_built() and not elastic
    if size == 1 or "HOROVOD_RANK" in os.environ or through_mpi or "MASTER_ADDR" not in os.environ:
        return
    rank = next(int(os.environ[name]) for name, _ in variables if os.environ.get(name))
    nodes = int(os.environ.get("GROUP_WORLD_SIZE" if elastic else "HPO_PILOT_NODES") or 1)
    local = max(1, size // nodes)
    name, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        address = socket.gethostbyname(name)
    except (OSError, UnicodeError) as error:
        remedy = "set MASTER_ADDR to a name or an address of rank 0's node that this node knows"
        raise SystemExit(
            "hpo_pilot_ranks: MASTER_ADDR=%s has no address here: %s; %s" % (name, error, remedy)
        ) from None
    if elastic:
        port = _agree_on_port(name, port, rank)
    if rank == 0:
        _serve(port, [(each % local, each // local) for each in range(size)], local, nodes)
    _wait(address, port, seconds)
    here = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank % local, "LOCAL_SIZE": local}
    here.update(CROSS_RANK=rank // local, CROSS_SIZE=nodes, GLOO_RENDEZVOUS_PORT=port)
    os.environ.update({"HOROVOD_" + name: str(value) for name, value in here.items()})
    os.environ.update(HOROVOD_GLOO_RENDEZVOUS_ADDR=address, HOROVOD_HOSTNAME="node-%d" % (rank // local))
    os.environ.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
    os.environ.setdefault("HOROVOD_GLOO_IFACE", _interface(address, port))


def _agree_on_port(name: str, port: int, rank: int) -> int:
    """Return a free port of rank 0: torchrun itself listens at MASTER_PORT, with a store that tells it to all ranks."""
    store = __import__("torch.distributed", fromlist=["TCPStore"]).TCPStore(name, port, is_master=False)
    if rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            store.set("hpo_pilot_ranks", str(free.getsockname()[1]))
    return int(store.get("hpo_pilot_ranks"))


def _serve(port: int, places: "List[Any]", local: int, nodes: int) -> None:
    """Run the rendezvous server, where ranks exchange their addresses, in the process of rank 0."""
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
    """Return the name of the network interface through which this node reaches an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # nothing is sent
        own = probe.getsockname()[0]
    found = __import__("psutil").net_if_addrs()  # Horovod needs psutil too
    return next((name for name in sorted(found) for one in found[name] if one.address == own), "lo")


def read_ranks(folder: str, number: "Callable[[Any], Optional[float]]") -> "List[Dict[str, Any]]":
    """Read the files that the ranks wrote, ordered by rank; broken files are skipped. `number` is the runner's."""
    ranks = []
    for name in sorted(os.listdir(folder))[:MOST_RANKS]:
        path = os.path.join(folder, name)
        try:
            if not name.endswith(".json") or os.path.getsize(path) > RANK_FILE_LIMIT:
                continue
            with open(path, "rb") as file:
                told = json.loads(file.read().decode())
            times = {key: number(told[key]) for key in (*TIMES, "images")}
            whole = {key: told[key] for key in ("rank", "size")}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
        sound = all(value is not None and value >= 0 for value in times.values())
        if sound and all(type(value) is int for value in whole.values()) and 0 <= whole["rank"] < whole["size"]:
            ranks.append(dict(times, host=str(told.get("host", ""))[:100], **whole))
    return sorted(ranks, key=lambda rank: rank["rank"])


def join_timelines(folder: str, path: str) -> None:
    """Write the timeline of all ranks, one event a line; viewers need no closing bracket."""
    with open(path, "w") as joined:
        joined.write("[\n")
        for name in sorted(os.listdir(folder)):
            if name.endswith(EVENTS):
                with open(os.path.join(folder, name)) as events:
                    shutil.copyfileobj(events, joined)


def assess(folder: str, number: "Callable[[Any], Optional[float]]") -> "Tuple[Dict[str, float], Dict[str, Any], str]":
    """Compute the parallel efficiency of a training; hpo_pilot_runner.py calls this when the payload has ended.

    The figures are the POP Centre of Excellence's "Standard Metrics for Parallel Performance Analysis" (pop-coe.eu;
    co-design.pop-coe.eu/metrics, "Parallel efficiency", "Load balance efficiency", "Communication efficiency";
    C. Rosas, J. Gimenez, J. Labarta, "Scalability prediction for fundamental performance factors", Supercomputing
    Frontiers and Innovations 1(2) (2014) 4). c is the computation of each rank in seconds, T the run time of the
    slowest rank, both without input:

        load balance               LB = mean(c) / max(c)
        communication efficiency   CE = max(c) / T
        parallel efficiency        PE = LB x CE = mean(c) / T

    POP's model has no input. Input is reported separately, as a fraction of the time of all ranks. images/s includes
    it: all images divided by the time of the slowest rank.

    Returns:
        (figures by name, entries of single ranks for the metadata, why there are no figures).
    """
    ranks = read_ranks(folder, number)
    size = max((rank["size"] for rank in ranks), default=0)
    if [rank["rank"] for rank in ranks] != list(range(size)) or not size:
        return {}, rank_entries(ranks), "%d of %d ranks told what they spent their time on" % (len(ranks), size)
    computed = [rank["compute"] for rank in ranks]
    run_time = max(rank["seconds"] - rank["input"] for rank in ranks)
    longest, slowest = max(computed), max(rank["seconds"] for rank in ranks)
    if not 0 < longest <= run_time * (1 + 1e-6):
        return {}, rank_entries(ranks), "no time was spent on computation, or more than there was"
    mean = sum(computed) / size
    figures = {
        "pop_parallel_efficiency": min(1.0, mean / run_time),
        "pop_load_balance": mean / longest,
        "pop_communication_efficiency": min(1.0, longest / run_time),
        "pop_input_fraction": sum(rank["input"] for rank in ranks) / sum(rank["seconds"] for rank in ranks),
        "ranks": float(size),
        "compute_seconds": mean,
        "communication_seconds": sum(rank["communication"] for rank in ranks) / size,
        "input_seconds": sum(rank["input"] for rank in ranks) / size,
    }
    images = sum(rank["images"] for rank in ranks)
    if images:
        figures["images_per_second"] = images / slowest
    return figures, rank_entries(ranks), ""


def rank_entries(ranks: "List[Dict[str, Any]]") -> "Dict[str, Any]":
    """Return the metadata entry with the times of single ranks, ordered by rank; seconds rounded to microseconds."""
    kept = sorted(ranks, key=lambda rank: -rank["compute"])[:RANKS_KEPT]
    rounded = [dict(rank, **{key: round(rank[key], 6) for key in TIMES}) for rank in kept]
    return {"hpo_pilot_ranks": sorted(rounded, key=lambda rank: rank["rank"])} if ranks else {}
