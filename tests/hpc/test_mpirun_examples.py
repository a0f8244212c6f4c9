"""Command lines of mpirun, horovodrun and torchrun in documents, and the words in which ours differ from them.

Each test names the document, its section and the line's shape.

    [I] Intel MPI Library, Developer Guide; its mpirun is MPICH's Hydra.
    [M] MPICH, wiki page "Using the Hydra Process Manager".
    [H] Horovod 0.28.1, docs/mpi.rst, docs/running.rst, docs/docker.rst.
    [T] PyTorch 2.13, torch/distributed/run.py, the module's description, section "Usage".
"""

from __future__ import annotations

import shlex

from hpo_pilot.hpc.launchers import Placement, make_launcher
from tests.command_lines import compare, nodes, options

# Another site with PBS and Hydra's mpirun.

#: -bind-to none: two jobs on a node would both be bound to its first cores. -genvlist: names, as for srun.
HYDRA_OURS = "-bind-to none -genvlist OMP_NUM_THREADS,PATH"


def test_generic_pbs_hosts() -> None:
    """[I] "Controlling Process Placement": two nodes, two ranks on each."""
    compare(
        "generic-pbs",
        Placement(("node1", "node2"), 2, 1, 1, "nvidia"),
        "mpirun -n 4 -ppn 2 -hosts node1,node2 ./testc",
        "./testc",
        ours=HYDRA_OURS,
    )


def test_generic_pbs_a_file_of_hosts() -> None:
    """[I] "Running an MPI Program": the same shape, with the hosts in a file; ours needs none."""
    compare(
        "generic-pbs",
        Placement(("node1", "node2"), 2, 1, 1, "nvidia"),
        "mpirun -n 4 -ppn 2 -f hosts ./myprog",
        "./myprog",
        ours=f"-hosts node1,node2 {HYDRA_OURS}",
        theirs="-f hosts",
    )


def test_generic_pbs_one_node() -> None:
    """[M]: four ranks, here on one node. mpiexec is mpirun's other name there."""
    compare(
        "generic-pbs",
        Placement(("node1",), 4, 0, 1),
        "mpirun -f hosts -n 4 ./app",
        "./app",
        ours=f"-hosts node1 -ppn 4 {HYDRA_OURS}",
        theirs="-f hosts",
    )


# This machine, and others that are reached by ssh: horovodrun, and Open MPI's mpirun as Horovod has it.

SERVERS = tuple(f"server{number}" for number in range(1, 5))


def test_local_one_machine() -> None:
    """[H] running.rst: one machine with four GPUs."""
    program = "python train.py"
    where = Placement(("localhost",), 4, 1, 1, "nvidia")
    compare("local", where, f"horovodrun -np 4 -H localhost:4 {program}", program)


def test_local_four_machines() -> None:
    """[H] running.rst: four machines with four GPUs each."""
    program = "python train.py"
    hosts = "server1:4,server2:4,server3:4,server4:4"
    compare("local", Placement(SERVERS, 4, 1, 1, "nvidia"), f"horovodrun -np 16 -H {hosts} {program}", program)


def test_local_two_machines() -> None:
    """[H] docker.rst, "Running containers with different ports": two machines with four GPUs each."""
    program = "python keras_mnist_advanced.py"
    where = Placement(("host1", "host2"), 4, 1, 1, "nvidia")
    compare("local", where, f"horovodrun -np 8 -H host1:4,host2:4 {program}", program)


#: [H] mpi.rst, in all its examples. Ours has values of variables in the environment, and names alone on the line.
_VARIABLES = {"NCCL_DEBUG": "INFO", "LD_LIBRARY_PATH": "/lib"}
_EXPORTED = "-x NCCL_DEBUG -x OMP_NUM_THREADS"
_TCP = ["-mca", "pml", "ob1", "-mca", "btl", "^openib"]


def test_open_mpi_one_machine() -> None:
    """[H] mpi.rst, first example: one machine with four GPUs, MPI over TCP."""
    compare(
        make_launcher({"name": "mpirun", "options": _TCP}),
        Placement(("localhost",), 4, 1, 1, "nvidia", _VARIABLES),
        "mpirun -np 4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH "
        "-mca pml ob1 -mca btl ^openib python train.py",
        "python train.py",
        ours=f"-H localhost:4 {_EXPORTED}",
        theirs="-x NCCL_DEBUG=INFO",
    )


def test_open_mpi_four_machines() -> None:
    """[H] mpi.rst, second example: four machines with four GPUs each."""
    compare(
        make_launcher({"name": "mpirun", "options": _TCP}),
        Placement(SERVERS, 4, 1, 1, "nvidia", _VARIABLES),
        "mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 -bind-to none -map-by slot "
        "-x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib python train.py",
        "python train.py",
        ours=_EXPORTED,
        theirs="-x NCCL_DEBUG=INFO",
    )


def test_open_mpi_with_rdma() -> None:
    """[H] mpi.rst, "Open MPI with RDMA": the same shape."""
    compare(
        make_launcher({"name": "mpirun", "options": _TCP[:3]}),
        Placement(SERVERS, 4, 1, 1, "nvidia", {**_VARIABLES, "HOROVOD_MPI_THREADS_DISABLE": "1"}),
        "mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO "
        "-x LD_LIBRARY_PATH -x HOROVOD_MPI_THREADS_DISABLE=1 -x PATH -mca pml ob1 python train.py",
        "python train.py",
        ours=f"{_EXPORTED} -x HOROVOD_MPI_THREADS_DISABLE",
        theirs="-x NCCL_DEBUG=INFO -x HOROVOD_MPI_THREADS_DISABLE=1",
    )


def test_open_mpi_with_interfaces_left_out() -> None:
    """[H] mpi.rst, "Hangs due to non-routed network interfaces": the same shape."""
    leave_out = ["-mca", "btl_tcp_if_exclude", "lo,docker0"]
    compare(
        make_launcher({"name": "mpirun", "options": [*_TCP, *leave_out]}),
        Placement(SERVERS, 4, 1, 1, "nvidia", {**_VARIABLES, "NCCL_SOCKET_IFNAME": "^lo,docker0"}),
        "mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO "
        "-x LD_LIBRARY_PATH -x PATH -x NCCL_SOCKET_IFNAME=^lo,docker0 -mca pml ob1 -mca btl ^openib "
        "-mca btl_tcp_if_exclude lo,docker0 python train.py",
        "python train.py",
        ours=f"{_EXPORTED} -x NCCL_SOCKET_IFNAME",
        theirs="-x NCCL_DEBUG=INFO -x NCCL_SOCKET_IFNAME=^lo,docker0",
    )


# torchrun. --no-python: a job's command names its Python itself.


def test_torchrun_one_node() -> None:
    """[T] "Single-node multi-worker": one node, four ranks."""
    compare(
        make_launcher({"name": "torchrun"}),
        Placement(nodes(1), 4, 1, 1, "nvidia"),
        "torchrun --standalone --nnodes=1 --nproc-per-node=4 train.py --arg1",
        "train.py --arg1",
        ours="--no-python",
    )


def test_torchrun_stacked() -> None:
    """[T] "Stacked single-node multi-worker": one of several jobs on a node, four ranks.

    --standalone stands for the document's two words: c10d on a free port of this node, and a name of its own.
    """
    compare(
        make_launcher({"name": "torchrun"}),
        Placement(nodes(1), 4, 1, 1, "nvidia"),
        "torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=4 train.py",
        "train.py",
        ours="--standalone --no-python",
        theirs="--rdzv-backend=c10d --rdzv-endpoint=localhost:0",
    )


def test_torchrun_on_several_nodes() -> None:
    """[T] "Fault tolerant": two nodes, four ranks each; on each node, here by srun.

    --max-restarts: a job that fails is the server's to try again, from its checkpoint.
    """
    launcher = make_launcher({"name": "torchrun", "starter": "srun"})
    line = launcher.command(["train.py"], Placement(("node1", "node2"), 4, 1, 1, "nvidia", port=29400))
    started = line[line.index("torchrun") + 1 : -1]
    printed = (
        "--nnodes=2 --nproc-per-node=4 --max-restarts=3 --rdzv-id=hpo-pilot-29400 --rdzv-backend=c10d "
        "--rdzv-endpoint=node1:29400"
    )
    assert options(started) - options(shlex.split(printed)) == {"--no-python"}
    assert options(shlex.split(printed)) - options(started) == {"--max-restarts 3"}
