"""srun's command lines in documents, and the words in which ours differ from them.

Each test names the document, its section and the line's shape.

    [F] OLCF, Frontier User Guide (systems/frontier_user_guide.rst of github.com/olcf/olcf-user-docs).
    [P] OLCF, PyTorch on Frontier (ibid., software/analytics/pytorch_frontier.rst).
    [C] OLCF, Containers on Frontier (ibid., software/containers_on_frontier.rst), and its examples
        (github.com/olcf/olcf_containers_examples).
    [N] NERSC, Running Jobs on Perlmutter's GPU nodes, as of 2021.
    [E] NERSC, pytorch-examples (github.com/NERSC/pytorch-examples, scripts/train_perlmutter.sh).
    [A] CSCS, Slurm (github.com/eth-cscs/cscs-docs, docs/running/slurm.md).
"""

from __future__ import annotations

from hpo_pilot.hpc.launchers import Placement, make_launcher
from tests.command_lines import compare, nodes

#: Every job step. --exact: steps of other jobs fit beside it; --kill-on-bad-exit: a dead rank ends the others;
#: --export: names only, so no credential of the batch script passes. --ntasks-per-node says what -N and -n give.
SRUN_OURS = "--exact --kill-on-bad-exit=1 --export=HOME,OMP_NUM_THREADS,PATH"


# Frontier: srun with a GPU for each task.


def test_frontier_one_gpu() -> None:
    """[F] "Mapping 1 GPU per task", Example 2: one node, one task."""
    compare(
        "frontier",
        Placement(nodes(1), 1, 1, 7, "amd"),
        "srun -N1 -n1 -c7 --gpus-per-task=1 --gpu-bind=closest ./hello_jobstep",
        "./hello_jobstep",
        ours=f"--ntasks-per-node=1 {SRUN_OURS}",
    )


def test_frontier_a_node() -> None:
    """[F] "Mapping 1 GPU per task", Example 1: one node, eight tasks."""
    compare(
        "frontier",
        Placement(nodes(1), 8, 1, 7, "amd"),
        "srun -N1 -n8 -c7 --gpus-per-task=1 --gpu-bind=closest ./hello_jobstep",
        "./hello_jobstep",
        ours=f"--ntasks-per-node=8 {SRUN_OURS}",
    )


def test_frontier_two_nodes() -> None:
    """[F] "Mapping 1 GPU per task", Example 3: two nodes, sixteen tasks."""
    compare(
        "frontier",
        Placement(nodes(2), 8, 1, 7, "amd"),
        "srun -N2 -n16 -c7 --gpus-per-task=1 --gpu-bind=closest ./hello_jobstep",
        "./hello_jobstep",
        ours=f"--ntasks-per-node=8 {SRUN_OURS}",
    )


def test_frontier_pytorch() -> None:
    """[P] "Batch Script": two nodes, sixteen ranks of PyTorch, and the variables by which they meet."""
    program = "python3 -W ignore -u ./multinode_olcf.py 2000 10"
    compare(
        "frontier",
        Placement(nodes(2), 8, 1, 7, "amd", port=3442),
        f"srun -N2 -n16 -c7 --gpus-per-task=1 --gpu-bind=closest {program}",
        program,
        ours="--ntasks-per-node=8 --exact --kill-on-bad-exit=1 "
        "--export=HOME,MASTER_ADDR,MASTER_PORT,OMP_NUM_THREADS,PATH",
    )


def test_frontier_one_of_several_steps() -> None:
    """[F] "Multiple Independent Job Steps", Example 9: one GPU and one core of a node that other steps share.

    The document's -u takes srun's buffer away; ours is left to the payload (`python -u`).
    """
    compare(
        "frontier",
        Placement(nodes(1), 1, 1, 1, "amd"),
        "srun -u --gpus-per-task=1 --gpu-bind=closest -N1 -n1 -c1 ./hello_jobstep",
        "./hello_jobstep",
        ours=f"--ntasks-per-node=1 {SRUN_OURS}",
        theirs="-u",
    )


def test_frontier_without_gpus() -> None:
    """[F] "Multithreading": one node, two tasks of two cores, no GPU asked for.

    --gres=none: the step would inherit all GPUs of the job, and those beside it would wait.
    """
    compare(
        "frontier",
        Placement(nodes(1), 2, 0, 2, "amd"),
        "srun -N1 -n2 -c2 ./hello_mpi_omp",
        "./hello_mpi_omp",
        ours=f"--ntasks-per-node=2 --gres=none {SRUN_OURS}",
    )


def test_frontier_container() -> None:
    """[C] frontier/sample_apps/pytorch/submit.sbatch: four nodes, 32 ranks, each in a container. -n follows there."""
    program = "apptainer exec --workdir /work --rocm pytorch.sif ./pyrun.sh"
    compare(
        "frontier",
        Placement(nodes(4), 8, 1, 7, "amd"),
        f"srun -N4 --tasks-per-node=8 -c7 --gpus-per-task=1 --gpu-bind=closest {program}",
        program,
        ours=f"-n32 {SRUN_OURS}",
    )


def test_frontier_container_with_mpi() -> None:
    """[C] frontier/containers_on_frontier_docs/gpu_aware_mpi_example/submit642.sbatch: two nodes, a rank on each.

    The document leaves cores and binding to srun's default, one core; ours names them.
    """
    program = "apptainer --silent exec --workdir /work --rocm opensusempich412rocm642.sif /ping_pong_gpu_aware.exe"
    compare(
        "frontier",
        Placement(nodes(2), 1, 1, 1, "amd"),
        f"srun -N2 --tasks-per-node 1 --gpus-per-task=1 {program}",
        program,
        ours=f"-n2 -c1 --gpu-bind=closest {SRUN_OURS}",
    )


# Perlmutter: srun with all GPUs of the job visible to its tasks. [N] counts GPUs by --gpus-per-task, which bound no
# task to them then ("More GPU affinity examples", note); newer Slurm binds by it. Ours counts them by node.

_COUNT = "--gpu-bind=none"


def test_perlmutter_a_node() -> None:
    """[N] "1 node, 4 tasks, 4 GPUs, all GPUs visible to all tasks"."""
    compare(
        "perlmutter",
        Placement(nodes(1), 4, 1, 16, "nvidia"),
        "srun -n 4 --ntasks-per-node=4 -c 32 --gpus-per-task=1 --cpu-bind=cores ./gpus_for_tasks",
        "./gpus_for_tasks",
        ours=f"-N1 --gpus-per-node=4 {_COUNT} {SRUN_OURS}",
        theirs="--gpus-per-task=1",
    )


def test_perlmutter_four_nodes() -> None:
    """[N] "4 nodes, 16 tasks, 16 GPUs, all GPUs visible to all tasks"."""
    compare(
        "perlmutter",
        Placement(nodes(4), 4, 1, 16, "nvidia"),
        "srun -n 16 --ntasks-per-node=4 -c 32 --gpus-per-task=1 --cpu-bind=cores ./gpus_for_tasks",
        "./gpus_for_tasks",
        ours=f"-N4 --gpus-per-node=4 {_COUNT} {SRUN_OURS}",
        theirs="--gpus-per-task=1",
    )


def test_perlmutter_one_task() -> None:
    """[N] "1 node, 1 task, 1 GPU": all 128 hardware threads of a node for it."""
    compare(
        "perlmutter",
        Placement(nodes(1), 1, 1, 64, "nvidia"),
        "srun -n 1 --ntasks-per-node=1 -c 128 --gpus-per-task=1 --cpu-bind=cores ./gpus_for_tasks",
        "./gpus_for_tasks",
        ours=f"-N1 --gpus-per-node=1 {_COUNT} {SRUN_OURS}",
        theirs="--gpus-per-task=1",
    )


def test_perlmutter_two_gpus_of_a_node() -> None:
    """[N] "GPU affinity": one node, two tasks that both see the job's two GPUs. -C gpu is the allocation's."""
    compare(
        "perlmutter",
        Placement(nodes(1), 2, 1, 32, "nvidia"),
        "srun -C gpu -N 1 -n 2 -c 64 --cpu-bind=cores --gpus-per-task=1 ./gpus_for_tasks",
        "./gpus_for_tasks",
        ours=f"--ntasks-per-node=2 --gpus-per-node=2 {_COUNT} {SRUN_OURS}",
        theirs="-C gpu --gpus-per-task=1",
    )


def test_perlmutter_pytorch() -> None:
    """[E], on two nodes: ranks that take the GPU of their number (--rank-gpu). -l and -u are for a reader's eye."""
    program = "python train.py -d nccl --rank-gpu"
    compare(
        "perlmutter",
        Placement(nodes(2), 4, 1, 16, "nvidia"),
        f"srun --ntasks-per-node=4 --cpus-per-task=32 --gpus-per-node=4 -l -u {program}",
        program,
        ours=f"-N2 -n8 --cpu-bind=cores {_COUNT} {SRUN_OURS}",
        theirs="-l -u",
    )


# Another site with Slurm, after CSCS's documents.


def test_generic_slurm_without_gpus() -> None:
    """[A] "Testing CPU affinity": two nodes, eight tasks of 72 cores each."""
    compare(
        "generic-slurm",
        Placement(nodes(2), 4, 0, 72),
        "srun -n8 -N2 -c72 ./affinity.mpi",
        "./affinity.mpi",
        ours=f"--ntasks-per-node=4 {SRUN_OURS}",
    )


def test_generic_slurm_all_gpus_for_each_task() -> None:
    """[A] "Testing GPU affinity", first line: one node, four tasks that see all GPUs of the job.

    Of cores and GPUs it says nothing, for the job's step has all there are.
    """
    compare(
        "generic-slurm",
        Placement(nodes(1), 4, 1, 1, "nvidia"),
        "srun -n4 -N1 ./affinity.cuda",
        "./affinity.cuda",
        ours=f"--ntasks-per-node=4 -c1 --gpus-per-node=4 --gpu-bind=none {SRUN_OURS}",
    )


def test_srun_a_gpu_a_task() -> None:
    """[A] "Testing GPU affinity", second line: one node, four tasks that see one GPU each."""
    compare(
        make_launcher({"name": "srun"}),
        Placement(nodes(1), 4, 1, 1, "nvidia"),
        "srun -n4 -N1 --gpus-per-task=1 ./affinity.cuda",
        "./affinity.cuda",
        ours=f"--ntasks-per-node=4 -c1 --gpu-bind=closest {SRUN_OURS}",
    )


def test_generic_slurm_steps_side_by_side() -> None:
    """[A] "Running more than one job step per node": two nodes, two tasks on each, a GPU, five cores and memory for it.

    srun's own --exclusive is the older name of --exact, and --cpus-per-gpu=5 is -c5 where a task has one GPU.
    """
    compare(
        "generic-slurm",
        Placement(nodes(2), 2, 1, 5, "nvidia", memory_mb=51200),
        "srun -N2 --ntasks-per-node=2 --exclusive --gpus-per-task=1 --cpus-per-gpu=5 --mem=50G ./a.out",
        "./a.out",
        ours=f"-n4 -c5 --mem=51200M --gpus-per-node=2 --gpu-bind=none {SRUN_OURS}",
        theirs="--exclusive --gpus-per-task=1 --cpus-per-gpu=5 --mem=50G",
    )
