"""The exact command lines for each profile and shape.

`test_*_examples.py` hold the facilities' own examples against them.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hpo_pilot.hpc.launchers import Launcher, Placement, make_launcher
from hpo_pilot.hpc.site_files import load_site

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
_BOUND = "--cpu-bind=cores"

GOLDEN = {
    "summit": {
        "1 node, 1 GPU": "jsrun -n1 -r1 -a1 -g1 -c7 -bpacked:7 -dpacked -X 1 --smpiargs=-gpu -E OMP_NUM_THREADS",
        "1 node, all GPUs": "jsrun -n1 -r1 -a6 -g6 -c42 -bpacked:7 -dpacked -X 1 --smpiargs=-gpu -E OMP_NUM_THREADS",
        "2 nodes, all GPUs": "jsrun -n2 -r1 -a6 -g6 -c42 -bpacked:7 -dpacked -X 1 --smpiargs=-gpu -E OMP_NUM_THREADS",
        "6 nodes, all GPUs": "jsrun -n6 -r1 -a6 -g6 -c42 -bpacked:7 -dpacked -X 1 --smpiargs=-gpu -E OMP_NUM_THREADS",
        "CPU only, 2 ranks": "jsrun -n1 -r1 -a2 -g0 -c2 -bpacked:1 -dpacked -X 1 --smpiargs=-gpu -E OMP_NUM_THREADS",
    },
    "frontier": {
        "1 node, 1 GPU": f"srun -N1 -n1 --ntasks-per-node=1 -c7 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "1 node, all GPUs": f"srun -N1 -n8 --ntasks-per-node=8 -c7 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "2 nodes, all GPUs": f"srun -N2 -n16 --ntasks-per-node=8 -c7 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "6 nodes, all GPUs": f"srun -N6 -n48 --ntasks-per-node=8 -c7 --gpus-per-task=1 --gpu-bind=closest {_STEP}",
        "CPU only, 2 ranks": f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    },
    "perlmutter": {  # -c counts hardware threads there
        "1 node, 1 GPU": f"srun -N1 -n1 --ntasks-per-node=1 -c32 --gpus-per-node=1 --gpu-bind=none {_STEP} {_BOUND}",
        "1 node, all GPUs": f"srun -N1 -n4 --ntasks-per-node=4 -c32 --gpus-per-node=4 --gpu-bind=none {_STEP} {_BOUND}",
        "2 nodes, all GPUs": (
            f"srun -N2 -n8 --ntasks-per-node=4 -c32 --gpus-per-node=4 --gpu-bind=none {_STEP} {_BOUND}"
        ),
        "6 nodes, all GPUs": (
            f"srun -N6 -n24 --ntasks-per-node=4 -c32 --gpus-per-node=4 --gpu-bind=none {_STEP} {_BOUND}"
        ),
        "CPU only, 2 ranks": f"srun -N1 -n2 --ntasks-per-node=2 -c2 --gres=none {_STEP} {_BOUND}",
    },
    "generic-slurm": {
        "1 node, 1 GPU": f"srun -N1 -n1 --ntasks-per-node=1 -c8 --gpus-per-node=1 --gpu-bind=none {_STEP}",
        "1 node, all GPUs": f"srun -N1 -n4 --ntasks-per-node=4 -c8 --gpus-per-node=4 --gpu-bind=none {_STEP}",
        "2 nodes, all GPUs": f"srun -N2 -n8 --ntasks-per-node=4 -c8 --gpus-per-node=4 --gpu-bind=none {_STEP}",
        "6 nodes, all GPUs": f"srun -N6 -n24 --ntasks-per-node=4 -c8 --gpus-per-node=4 --gpu-bind=none {_STEP}",
        "CPU only, 2 ranks": f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    },
    "generic-lsf": {
        "1 node, 1 GPU": "jsrun -n1 -r1 -a1 -g1 -c8 -bpacked:8 -dpacked -X 1 -E OMP_NUM_THREADS",
        "1 node, all GPUs": "jsrun -n1 -r1 -a4 -g4 -c32 -bpacked:8 -dpacked -X 1 -E OMP_NUM_THREADS",
        "2 nodes, all GPUs": "jsrun -n2 -r1 -a4 -g4 -c32 -bpacked:8 -dpacked -X 1 -E OMP_NUM_THREADS",
        "6 nodes, all GPUs": "jsrun -n6 -r1 -a4 -g4 -c32 -bpacked:8 -dpacked -X 1 -E OMP_NUM_THREADS",
        "CPU only, 2 ranks": "jsrun -n1 -r1 -a2 -g0 -c2 -bpacked:1 -dpacked -X 1 -E OMP_NUM_THREADS",
    },
    "generic-pbs": {
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
    "local": {
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


def test_some_nodes_under_lsf() -> None:
    launcher = launcher_of("summit")
    where = Placement(("n3", "n7"), 2, 1, 7, "nvidia", allocation=NODES)
    assert shlex.join(launcher.command(ARGV, where)) == (
        "jsrun -n2 -r1 -a2 -g2 -c14 -bpacked:7 -dpacked --exclude_hosts=n1,n2,n4,n5,n6,n8 -X 1 --smpiargs=-gpu "
        "-E OMP_NUM_THREADS python train.py"
    )


def test_some_gpus_of_a_node_under_lsf() -> None:
    """Which ones is jsrun's choice: it knows those of other jobs."""
    where = Placement(("n1",), 2, 1, 7, "nvidia", gpus=("3", "5"))
    assert shlex.join(launcher_of("summit").command(ARGV, where)) == (
        "jsrun -n1 -r1 -a2 -g2 -c14 -bpacked:7 -dpacked -X 1 --smpiargs=-gpu -E OMP_NUM_THREADS python train.py"
    )


def test_some_nodes_and_memory_under_slurm() -> None:
    where = Placement(("n3",), 1, 1, 7, "amd", allocation=NODES, memory_mb=64000)
    assert shlex.join(launcher_of("frontier").command(ARGV, where)) == (
        "srun -N1 -n1 --ntasks-per-node=1 -c7 --gpus-per-task=1 --gpu-bind=closest --nodelist=n3 --exact --mem=64000M "
        "--kill-on-bad-exit=1 --export=HOME,OMP_NUM_THREADS,PATH python train.py"
    )


def test_torchrun() -> None:
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
