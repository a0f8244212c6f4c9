"""The exact command lines for each profile and shape, beside the facility's example that each one follows.

Sources:
    [S] OLCF, Summit User Guide, "jsrun Examples" and "Common Use Cases".
    [F] OLCF, PyTorch on Frontier, "Batch Script": srun -N2 -n16 -c7 --gpus-per-task=1 --gpu-bind=closest.
    [P] NERSC, Running Jobs on Perlmutter: srun -N4 --ntasks-per-node=4 -c32 --gpus-per-node=4 --gpu-bind=none.
    [Q] NERSC, ibid., "Single-GPU tasks in parallel": srun --exact -n 1 --gpus-per-task 1 -c 1 --mem=...
    [H] Horovod 0.28.1, docs/mpi.rst: mpirun -np 16 -H server1:4,... -bind-to none -map-by slot -x NCCL_DEBUG -x PATH;
        docs/running.rst: horovodrun -np 16 -H server1:4,server2:4,server3:4,server4:4 python train.py.
    [T] PyTorch, docs/source/elastic/run.rst: torchrun --standalone --nnodes=1 --nproc-per-node=N; --rdzv-backend=c10d.
    [M] MPICH, "Using the Hydra Process Manager": mpiexec -hosts a,b -ppn 2 -n 4 -genvlist NAME.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hpo_pilot.config.site_file import load_site
from hpo_pilot.launchers import Launcher, Placement, make_launcher

SITES = Path(__file__).parents[2] / "deploy" / "sites"
NODES = tuple(f"n{number}" for number in range(1, 9))
ARGV = ("python", "train.py")

#: GPUs and cores of one node where the profile leaves them open.
OPEN_NODE = (4, 32)

SHAPES = {
    "1 node, 1 GPU": (1, 1, 1),
    "1 node, all GPUs": (1, None, 1),
    "2 nodes, all GPUs": (2, None, 1),
    "6 nodes, all GPUs": (6, None, 1),
    "CPU only, 2 ranks": (1, 2, 0),
}

_STEP = "--exact --kill-on-bad-exit=1 --export=HOME,OMP_NUM_THREADS,PATH"

GOLDEN = {
    "summit": {  # [S]: -n1 -a1 -c1 -g1, with the share of cores; a node's ranks in one set
        "1 node, 1 GPU": "jsrun -n1 -r1 -a1 -g1 -c7 -bpacked:7 --smpiargs=-gpu -E OMP_NUM_THREADS",
        "1 node, all GPUs": "jsrun -n1 -r1 -a6 -g6 -c42 -bpacked:7 --smpiargs=-gpu -E OMP_NUM_THREADS",
        "2 nodes, all GPUs": "jsrun -n2 -r1 -a6 -g6 -c42 -bpacked:7 --smpiargs=-gpu -E OMP_NUM_THREADS",
        "6 nodes, all GPUs": "jsrun -n6 -r1 -a6 -g6 -c42 -bpacked:7 --smpiargs=-gpu -E OMP_NUM_THREADS",
        "CPU only, 2 ranks": "jsrun -n1 -r1 -a2 -g0 -c2 -bpacked:1 --smpiargs=-gpu -E OMP_NUM_THREADS",
    },
    "frontier": {  # [F]
        "1 node, 1 GPU": f"srun -N1 -n1 --ntasks-per-node=1 -c7 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "1 node, all GPUs": f"srun -N1 -n8 --ntasks-per-node=8 -c7 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "2 nodes, all GPUs": f"srun -N2 -n16 --ntasks-per-node=8 -c7 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "6 nodes, all GPUs": f"srun -N6 -n48 --ntasks-per-node=8 -c7 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "CPU only, 2 ranks": f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    },
    "perlmutter": {  # [P]; -c counts hardware threads there
        "1 node, 1 GPU": f"srun -N1 -n1 --ntasks-per-node=1 -c32 --gpus-per-node=1 --gpu-bind=none {_STEP}",
        "1 node, all GPUs": f"srun -N1 -n4 --ntasks-per-node=4 -c32 --gpus-per-node=4 --gpu-bind=none {_STEP}",
        "2 nodes, all GPUs": f"srun -N2 -n8 --ntasks-per-node=4 -c32 --gpus-per-node=4 --gpu-bind=none {_STEP}",
        "6 nodes, all GPUs": f"srun -N6 -n24 --ntasks-per-node=4 -c32 --gpus-per-node=4 --gpu-bind=none {_STEP}",
        "CPU only, 2 ranks": f"srun -N1 -n2 --ntasks-per-node=2 -c2 --gres=none {_STEP}",
    },
    "generic-slurm": {  # as Frontier's
        "1 node, 1 GPU": f"srun -N1 -n1 --ntasks-per-node=1 -c8 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "1 node, all GPUs": f"srun -N1 -n4 --ntasks-per-node=4 -c8 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "2 nodes, all GPUs": f"srun -N2 -n8 --ntasks-per-node=4 -c8 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "6 nodes, all GPUs": f"srun -N6 -n24 --ntasks-per-node=4 -c8 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "CPU only, 2 ranks": f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    },
    "generic-lsf": {  # as Summit's
        "1 node, 1 GPU": "jsrun -n1 -r1 -a1 -g1 -c8 -bpacked:8 -E OMP_NUM_THREADS",
        "1 node, all GPUs": "jsrun -n1 -r1 -a4 -g4 -c32 -bpacked:8 -E OMP_NUM_THREADS",
        "2 nodes, all GPUs": "jsrun -n2 -r1 -a4 -g4 -c32 -bpacked:8 -E OMP_NUM_THREADS",
        "6 nodes, all GPUs": "jsrun -n6 -r1 -a4 -g4 -c32 -bpacked:8 -E OMP_NUM_THREADS",
        "CPU only, 2 ranks": "jsrun -n1 -r1 -a2 -g0 -c2 -bpacked:1 -E OMP_NUM_THREADS",
    },
    "generic-pbs": {  # [M]
        "1 node, 1 GPU": "mpirun -n 1 -hosts n1 -ppn 1 -bind-to none -genvlist OMP_NUM_THREADS,PATH",
        "1 node, all GPUs": "mpirun -n 4 -hosts n1 -ppn 4 -bind-to none -genvlist OMP_NUM_THREADS,PATH",
        "2 nodes, all GPUs": "mpirun -n 8 -hosts n1,n2 -ppn 4 -bind-to none -genvlist OMP_NUM_THREADS,PATH",
        "6 nodes, all GPUs": (
            "mpirun -n 24 -hosts n1,n2,n3,n4,n5,n6 -ppn 4 -bind-to none -genvlist OMP_NUM_THREADS,PATH"
        ),
        "CPU only, 2 ranks": (
            "mpirun -n 2 -hosts n1 -ppn 2 -bind-to none -genvlist CUDA_VISIBLE_DEVICES,OMP_NUM_THREADS,PATH"
        ),
    },
    "local": {  # [H]
        "1 node, 1 GPU": "horovodrun -np 1 -H n1:1",
        "1 node, all GPUs": "horovodrun -np 4 -H n1:4",
        "2 nodes, all GPUs": "horovodrun -np 8 -H n1:4,n2:4",
        "6 nodes, all GPUs": "horovodrun -np 24 -H n1:4,n2:4,n3:4,n4:4,n5:4,n6:4",
        "CPU only, 2 ranks": "horovodrun -np 2 -H n1:2",
    },
    # A PanDA site's own pilots start jobs there; ranks beyond one are refused, see below.
    "grid": {"1 node, 1 GPU": ""},
}


def placement(site: str, shape: str) -> Placement:
    node = load_site(SITES / f"{site}.yaml").node
    gpus, cores = (node.gpu_count or OPEN_NODE[0], node.cores or OPEN_NODE[1])
    nodes, ranks, gpus_per_rank = SHAPES[shape]
    return Placement(
        NODES[:nodes],
        ranks or gpus,
        gpus_per_rank,
        cores // gpus if gpus_per_rank else 1,
        node.gpu_kind if node.gpus else "nvidia",
    )


def launcher_of(site: str) -> Launcher:
    profile = load_site(SITES / f"{site}.yaml")
    return make_launcher(profile.launcher.model_dump(), profile.node.threads_per_core)


def test_every_profile_is_here() -> None:
    assert {path.stem for path in SITES.glob("*.yaml")} == set(GOLDEN)
    assert all(set(lines) == set(SHAPES) for site, lines in GOLDEN.items() if site != "grid")


@pytest.mark.parametrize(("site", "shape"), [(site, shape) for site, lines in GOLDEN.items() for shape in lines])
def test_command_lines(site: str, shape: str) -> None:
    launcher, where = launcher_of(site), placement(site, shape)
    assert shlex.join(launcher.command(ARGV, where)) == f"{GOLDEN[site][shape]} python train.py".strip()
    assert launcher.files(where) == {}


def test_one_resource_set_a_gpu() -> None:
    """[S], "Single MPI Task, single GPU per RS": jsrun -n12 -r6 -a1 -g1 -c1."""
    launcher = make_launcher({"name": "jsrun"})
    line = shlex.join(launcher.command(["./a.out"], Placement(("h41n04", "h41n03"), 6, 1, 1, "nvidia")))
    assert line == "jsrun -n12 -r6 -a1 -g1 -c1 -bpacked:1 -E OMP_NUM_THREADS ./a.out"


def test_some_nodes_under_lsf() -> None:
    launcher = launcher_of("summit")
    where = Placement(("n3", "n7"), 2, 1, 7, "nvidia", allocation=NODES)
    line = shlex.join(launcher.command(ARGV, where))
    assert line == "jsrun --erf_input=hpo_pilot_resources.erf --smpiargs=-gpu -E OMP_NUM_THREADS python train.py"
    assert launcher.files(where)["hpo_pilot_resources.erf"].splitlines() == [
        "cpu_index_using: logical",
        "overlapping_rs: allow",
        "oversubscribe_gpu: allow",
        "rank: 0: { host: 3; cpu: {0-6}; gpu: {0-1} }",
        "rank: 1: { host: 3; cpu: {7-13}; gpu: {0-1} }",
        "rank: 2: { host: 7; cpu: {0-6}; gpu: {0-1} }",
        "rank: 3: { host: 7; cpu: {7-13}; gpu: {0-1} }",
    ]


def test_some_gpus_and_cores_under_lsf() -> None:
    """Beside another job on the same node; SMT4: four hardware threads a core (olcf-tutorials/ERF-CPU-Indexing)."""
    launcher = make_launcher({"name": "jsrun"}, threads_per_core=4)
    where = Placement(("n1",), 2, 1, 2, "nvidia", gpus=("3", "5"), cores=(21, 22, 30, 31))
    assert launcher.files(where)["hpo_pilot_resources.erf"].splitlines() == [
        "cpu_index_using: logical",
        "rank: 0: { host: 1; cpu: {84-91}; gpu: {3} }",
        "rank: 1: { host: 1; cpu: {120-127}; gpu: {5} }",
    ]


def test_some_nodes_and_memory_under_slurm() -> None:
    """[Q]."""
    where = Placement(("n3",), 1, 1, 7, "amd", allocation=NODES, memory_mb=64000)
    assert shlex.join(launcher_of("frontier").command(ARGV, where)) == (
        "srun -N1 -n1 --ntasks-per-node=1 -c7 --gpus-per-task=1 --gpu-bind=closest --nodelist=n3 --exact --mem=64000M "
        "--kill-on-bad-exit=1 --export=HOME,OMP_NUM_THREADS,PATH python train.py"
    )


def test_open_mpi_as_horovod_has_it() -> None:
    """[H]."""
    options = ["-mca", "pml", "ob1", "-mca", "btl", "^openib"]
    where = Placement(
        tuple(f"server{number}" for number in range(1, 5)),
        4,
        1,
        gpu_kind="nvidia",
        environment={"NCCL_DEBUG": "INFO", "LD_LIBRARY_PATH": "/lib"},
    )
    assert shlex.join(make_launcher({"name": "mpirun", "options": options}).command(ARGV, where)) == (
        "mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 --bind-to none --map-by slot -mca pml ob1 "
        "-mca btl '^openib' -x LD_LIBRARY_PATH -x NCCL_DEBUG -x OMP_NUM_THREADS -x PATH python train.py"
    )
    assert shlex.join(make_launcher({"name": "horovodrun"}).command(ARGV, where)) == (
        "horovodrun -np 16 -H server1:4,server2:4,server3:4,server4:4 python train.py"
    )


def test_torchrun() -> None:
    """[T]."""
    launcher = make_launcher({"name": "torchrun"})
    assert shlex.join(launcher.command(ARGV, Placement(("n1",), 4, 1, 8, "nvidia"))) == (
        "torchrun --nproc-per-node=4 --nnodes=1 --standalone --no-python python train.py"
    )
    several = make_launcher({"name": "torchrun", "starter": "srun"})
    where = Placement(("n1", "n2"), 4, 1, 8, "nvidia", port=29400)
    assert shlex.join(several.command(ARGV, where)) == (
        "srun -N2 -n2 --ntasks-per-node=1 -c32 --gpus-per-node=4 --gpu-bind=none --exact --kill-on-bad-exit=1 "
        "--export=HOME,MASTER_ADDR,MASTER_PORT,OMP_NUM_THREADS,PATH torchrun --nproc-per-node=4 --nnodes=2 "
        "--rdzv-backend=c10d --rdzv-endpoint=n1:29400 --rdzv-id=hpo-pilot-29400 --no-python python train.py"
    )
    assert several.environment(where, {})["OMP_NUM_THREADS"] == "8"
