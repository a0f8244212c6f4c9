"""jsrun's command lines in documents, and the words in which ours differ from them.

Each test names the document, its section and the line's shape.

    [S] OLCF, Summit User Guide (systems/summit_user_guide.rst of github.com/olcf/olcf-user-docs).
    [D] OLCF, IBM WML-CE (ibid., software/analytics/ibm-wml-ce.rst).
    [Q] OLCF, jsrun Quick Start Guide (github.com/olcf-tutorials/jsrun_quick_start_guide).
    [C] OLCF, Containers on Summit (olcf-user-docs, software/containers_on_summit.rst).
"""

from __future__ import annotations

from hpo_pilot.hpc.launchers import Placement, make_launcher
from tests.command_lines import compare, nodes

#: Every job step: -X 1 ends the others of a dead rank; by -E ranks get what they are to know.
JSRUN_OURS = "-X 1 -E OMP_NUM_THREADS"


# Summit: jsrun.


def test_summit_a_resource_set_is_a_node() -> None:
    """[D] "Running Distributed Deep Learning Jobs": one node, six ranks with a GPU and seven cores each.

    -n and -d say what is jsrun's own choice there, for one set a node.
    """
    compare(
        "summit",
        Placement(nodes(1), 6, 1, 7, "nvidia"),
        "jsrun -r1 -g6 -a6 -c42 -bpacked:7 ./script",
        "./script",
        ours=f"-n1 -dpacked --smpiargs=-gpu {JSRUN_OURS}",
    )


def test_summit_horovod_on_two_nodes() -> None:
    """[D] "Basic Distributed Deep Learning BSUB Script": two nodes, twelve ranks, Horovod's own benchmark."""
    program = "python $CONDA_PREFIX/horovod/examples/tensorflow2_synthetic_benchmark.py"
    compare(
        "summit",
        Placement(nodes(2), 6, 1, 7, "nvidia"),
        f"jsrun -bpacked:7 -g6 -a6 -c42 -r1 {program}",
        program,
        ours=f"-n2 -dpacked --smpiargs=-gpu {JSRUN_OURS}",
    )


def test_summit_one_rank_with_the_gpus_of_a_socket() -> None:
    """[S] "Common Use Cases": one rank with three GPUs and 21 cores."""
    compare(
        "summit",
        Placement(nodes(1), 1, 3, 21, "nvidia"),
        "jsrun -n1 -a1 -c21 -g3 -bpacked:21 ./a.out",
        "./a.out",
        ours=f"-r1 -dpacked --smpiargs=-gpu {JSRUN_OURS}",
    )


def test_summit_a_rank_a_core() -> None:
    """[S] "Common Use Cases": one node, 42 ranks on its 42 cores, no GPU. -bpacked:1 is jsrun's default."""
    compare(
        "summit",
        Placement(nodes(1), 42, 0, 1, "nvidia"),
        "jsrun -n1 -a42 -c42 -g0 ./a.out",
        "./a.out",
        ours=f"-r1 -bpacked:1 -dpacked --smpiargs=-gpu {JSRUN_OURS}",
    )


def test_summit_cuda_aware_mpi() -> None:
    """[S] "CUDA-Aware MPI" and "Common Use Cases": one rank, one GPU, buffers on the GPU handed to MPI."""
    compare(
        "summit",
        Placement(nodes(1), 1, 1, 1, "nvidia"),
        'jsrun -n1 -a1 -c1 -g1 --smpiargs="-gpu" ./a.out',
        "./a.out",
        ours=f"-r1 -bpacked:1 -dpacked {JSRUN_OURS}",
    )


# Another LSF site with jsrun: with ranks that see their own GPU, as [S] and [Q] mostly have it, and as the profile is.


def test_jsrun_a_resource_set_is_a_gpu() -> None:
    """[S] "Single MPI Task, single GPU per RS": two nodes, twelve ranks of one core and one GPU."""
    compare(
        make_launcher({"name": "jsrun"}),
        Placement(("h41n04", "h41n03"), 6, 1, 1, "nvidia"),
        "jsrun -n12 -r6 -a1 -g1 -c1 ./a.out",
        "./a.out",
        ours=f"-bpacked:1 -dpacked {JSRUN_OURS}",
    )


def test_jsrun_resource_sets_of_a_node() -> None:
    """[Q] Example 1: one node, six ranks with seven cores and a GPU each. -bpacked: Example 2."""
    compare(
        make_launcher({"name": "jsrun"}),
        Placement(nodes(1), 6, 1, 7, "nvidia"),
        "jsrun -n6 -c7 -g1 -a1 ./hello_jsrun",
        "./hello_jsrun",
        ours=f"-r6 -bpacked:7 -dpacked {JSRUN_OURS}",
    )


def test_jsrun_threads() -> None:
    """[S] "Example: Single Task, Single GPU, Multiple Threads per RS": two nodes, twelve ranks of four cores.

    OMP_NUM_THREADS=4 stands before the document's line, in ours it is a variable of the ranks; -r6 keeps the shape.
    """
    launcher = make_launcher({"name": "jsrun"})
    where = Placement(nodes(2), 6, 1, 4, "nvidia")
    compare(
        launcher,
        where,
        "jsrun -n12 -a1 -c4 -g1 -b packed:4 -d packed ./a.out",
        "./a.out",
        ours=f"-r6 {JSRUN_OURS}",
    )
    assert launcher.environment(where, {})["OMP_NUM_THREADS"] == "4"


def test_generic_lsf_ranks_that_share_a_set() -> None:
    """[Q] Example 3: ranks in sets of 21 cores and three GPUs, three to a set; here one such set on each of two nodes.

    The document binds each rank to one core of its seven (-bpacked:1); ours to all seven, for threads that load data.
    """
    compare(
        "generic-lsf",
        Placement(nodes(2), 3, 1, 7, "nvidia"),
        "jsrun -n2 -c21 -g3 -a3 -bpacked:1 -dpacked ./hello_jsrun",
        "./hello_jsrun",
        ours=f"-r1 -bpacked:7 {JSRUN_OURS}",
        theirs="-bpacked:1",
    )


def test_generic_lsf_one_gpu() -> None:
    """[S] "Common Use Cases": one rank, one core, one GPU."""
    compare(
        "generic-lsf",
        Placement(nodes(1), 1, 1, 1, "nvidia"),
        "jsrun -n1 -a1 -c1 -g1 ./a.out",
        "./a.out",
        ours=f"-r1 -bpacked:1 -dpacked {JSRUN_OURS}",
    )


def test_generic_lsf_a_rank_a_core() -> None:
    """[S] "Common Use Cases": one node, 42 ranks, no GPU."""
    compare(
        "generic-lsf",
        Placement(nodes(1), 42, 0, 1, "nvidia"),
        "jsrun -n1 -a42 -c42 -g0 ./a.out",
        "./a.out",
        ours=f"-r1 -bpacked:1 -dpacked {JSRUN_OURS}",
    )


def test_generic_lsf_container() -> None:
    """[C] "Running an MPI program with the OLCF MPI base image": two nodes, eight ranks, each in a container.

    The document has eight sets of one rank (jsrun's default), ours a set on each node with its four.
    """
    program = "apptainer exec --bind $MPI_ROOT:$MPI_ROOT mpiexampleimage.sif /app/mpiexample"
    compare(
        "generic-lsf",
        Placement(nodes(2), 4, 0, 1, "nvidia"),
        f"jsrun -n 8 -r4 {program}",
        program,
        ours=f"-n2 -r1 -a4 -g0 -c4 -bpacked:1 -dpacked {JSRUN_OURS}",
        theirs="-n8 -r4",
    )
