"""Launchers: placements, environments, and messages of launchers that start nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.launchers import LAUNCHERS, Launcher, Placement, make_launcher, site_variables
from hpo_pilot.hpc.site_files import load_site


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nodes": ()}, "needs one node"),
        ({"nodes": ("a", "a")}, "each once"),
        ({"ranks_per_node": 0}, "one rank or more"),
        ({"cores_per_rank": 0}, "one core or more"),
        ({"gpus_per_rank": 1}, "its nodes have none"),
        ({"gpus_per_rank": 1, "gpu_kind": "nvidia", "gpus": ("0", "1")}, "1 GPUs per node, and got 2"),
        ({"allocation": ("b", "c")}, "a is not a node of the allocation"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Placement(**{"nodes": ("a",), **given})


def test_launchers_refuse_what_they_cannot_place() -> None:
    two = Placement(("a",), 2)
    with pytest.raises(InputError, match="starts one process, not 2"):
        make_launcher({"name": "plain"}).command(["x"], two)
    apart = Placement(("a", "b"))
    with pytest.raises(InputError, match=r"launcher\.starter"):
        make_launcher({"name": "torchrun"}).command(["x"], Placement(("a", "b"), port=1))
    with pytest.raises(InputError, match="needs a port"):
        make_launcher({"name": "torchrun", "starter": "srun"}).command(["x"], apart)
    with pytest.raises(InputError, match="no launcher 'prun'; there is plain, mpirun"):
        make_launcher({"name": "prun"})


@pytest.mark.parametrize("name", [name for name in LAUNCHERS if name not in ("srun", "jsrun")])
def test_chosen_gpus_are_the_visible_ones(name: str) -> None:
    launcher = make_launcher({"name": name})
    chosen = Placement(("a",), 1, 2, gpu_kind="amd", gpus=("4", "6"))
    assert launcher.environment(chosen, {"ROCR_VISIBLE_DEVICES": "0"})["ROCR_VISIBLE_DEVICES"] == "4,6"
    # A payload without GPUs must not take those of its neighbours.
    assert launcher.environment(Placement(("a",), gpu_kind="nvidia"), {})["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in launcher.environment(Placement(("a",), 1, 1, gpu_kind="nvidia"), {})


@pytest.mark.parametrize("name", ["srun", "jsrun"])
def test_where_the_launcher_hands_out_gpus_nothing_stands_before(name: str) -> None:
    chosen = Placement(("a",), 1, 2, gpu_kind="nvidia", gpus=("4", "6"))
    assert "CUDA_VISIBLE_DEVICES" not in make_launcher({"name": name}).environment(
        chosen, {"CUDA_VISIBLE_DEVICES": "0"}
    )


def test_jsrun_is_started_without_tmpdir() -> None:
    """OLCF, Summit User Guide, "Known Issues": with TMPDIR in its environment jsrun finds no job step manager."""
    launcher = make_launcher({"name": "jsrun"})
    where = Placement(("a",), environment={"TMPDIR": "/tmp/me", "A": "1"})
    assert launcher.environment(where, {"TMPDIR": "/tmp"}) == {"A": "1", "OMP_NUM_THREADS": "1"}
    assert "TMPDIR" not in launcher.command(["x"], where)


@pytest.mark.parametrize("name", list(LAUNCHERS))
def test_secrets_reach_neither_the_environment_nor_the_command_line(name: str) -> None:
    launcher = make_launcher({"name": name})
    where = Placement(("a",), environment={"WANDB_TOKEN": "geheim", "A": "value"})
    env = launcher.environment(where, {"PATH": "/bin", "PGPASSWORD": "geheim"})
    assert env == {"PATH": "/bin", "A": "value", "OMP_NUM_THREADS": "1"}
    words = launcher.command(["x"], where)
    assert not any("geheim" in word or "TOKEN" in word or "value" in word for word in words)


def test_what_a_site_set_for_its_programs() -> None:
    base = {
        "LD_LIBRARY_PATH": "/opt/rocm/lib",
        "NCCL_SOCKET_IFNAME": "hsn0",
        "APPTAINERENV_LD_LIBRARY_PATH": "/opt/cray/pe/lib64",
        "APPTAINER_DOCKER_PASSWORD": "geheim",
        "CUDA_VISIBLE_DEVICES": "0",
        "HPO_PILOT_TOKEN": "geheim",
        "EDITOR": "vi",
    }
    assert site_variables(base) == {
        "LD_LIBRARY_PATH": "/opt/rocm/lib",
        "NCCL_SOCKET_IFNAME": "hsn0",
        "APPTAINERENV_LD_LIBRARY_PATH": "/opt/cray/pe/lib64",
    }


def test_what_a_login_shell_set_for_a_training() -> None:
    base = {
        "https_proxy": "http://proxy:3128",
        "NO_PROXY": "localhost",
        "PYTHONUSERBASE": "/project/me/python",
        "TORCH_HOME": "/scratch/me/torch",
        "TORCHINDUCTOR_CACHE_DIR": "/scratch/me/inductor",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "HF_HOME": "/scratch/me/hf",
        "XDG_CACHE_HOME": "/scratch/me/cache",
    }
    passed = site_variables({**base, "HF_TOKEN": "geheim", "LS_COLORS": "di=1"})
    assert passed == base
    srun = make_launcher({"name": "srun"}).command(["x"], Placement(("a",), environment=passed))
    (export,) = (word for word in srun if word.startswith("--export="))
    assert set(export.removeprefix("--export=").split(",")) == {*base, "HOME", "OMP_NUM_THREADS", "PATH"}


def test_a_users_own_thread_count_stands() -> None:
    env = make_launcher({"name": "plain"}).environment(
        Placement(("a",), cores_per_rank=7, environment={"OMP_NUM_THREADS": "2"}), {}
    )
    assert env["OMP_NUM_THREADS"] == "2"


#: Slurm 22.05, whose controller had been ended.
_SLURM_IS_AWAY = """\
srun: error: Unable to confirm allocation for job 1: Unable to contact slurm controller (connect failure)
srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 1
"""
#: OLCF, Summit User Guide, "Known Issues": a job step manager that is gone; the host is no node of the job's.
_JSM_IS_AWAY = """\
Error: Remote JSM server is not responding on host batch5
03-15-2019 15:29:45:920 90012 main: Error initializing RM connection. Exiting.
"""


@pytest.mark.parametrize(
    ("launcher", "said", "why", "is_away"),
    [
        ("srun", _SLURM_IS_AWAY, "srun: error: Unable to confirm allocation for job 1", True),
        ("srun", "srun: error: Unable to create step for job 1: Unable to contact slurm controller (x)", "srun:", True),
        ("srun", "srun: error: Unable to create step for job 1: More processors requested", "srun:", False),
        ("srun", "0: srun: error: Unable to contact slurm controller (connect failure)", "", False),  # a rank said it
        ("srun", "srun: error: n1: task 0: Exited with exit code 3", "", False),
        ("jsrun", _JSM_IS_AWAY, "Error: Remote JSM server is not responding", True),
        ("mpirun", "There are not enough slots available in the system", "There are not enough slots", False),
    ],
)
def test_whether_nothing_starts_anywhere(launcher: str, said: str, why: str, is_away: bool) -> None:
    log_patterns = make_launcher({"name": launcher}).log_patterns
    found = log_patterns.failure(said)
    assert found.startswith(why) and bool(found) == bool(why)
    assert log_patterns.is_away(said) is is_away and not log_patterns.broken_nodes(said, ["n1", "n2"])


def test_a_node_that_slurm_took_away_and_one_that_only_failed() -> None:
    """Slurm 22.05, after a node was powered off under a step, and on a node that is dead and not yet known to be."""
    log_patterns, nodes = make_launcher({"name": "srun"}).log_patterns, ["n2.example.org", "n3.example.org"]
    lost = "srun: error: Node failure on n2\nsrun: error: n3: task 1: Killed\nsrun: Force Terminated StepId=1.2\n"
    assert log_patterns.lost_nodes(lost, nodes) == log_patterns.broken_nodes(lost, nodes) == {"n2.example.org"}
    failed = "srun: error: Task launch for StepId=1.3 failed on node n2: Communication connection failure\n"
    assert log_patterns.broken_nodes(failed, nodes) == {"n2.example.org"} and not log_patterns.lost_nodes(failed, nodes)
    assert not log_patterns.lost_nodes("0: srun: error: Node failure on n2", nodes)  # a rank said it


# --- command lines ---
#
# Command lines of the launchers, beside those that facilities and programs print in their documents.
#
# Words are compared as sets of options with their values, however they are spelt (-n4, -n 4). Where a document has a
# batch script, the words of its `#SBATCH` lines that make the shape, and `SLURM_CPU_BIND`, stand on the line as options
# of srun, which takes them from there. Documents:
#
#     Frontier, Summit: OLCF's user guides (github.com/olcf/olcf-user-docs, systems/*_user_guide.rst)
#     PyTorch: OLCF, PyTorch on Frontier (ibid., software/analytics/pytorch_frontier.rst)
#     Containers: OLCF, Containers on Frontier, on Summit (ibid., software/)
#     WML-CE: OLCF, IBM WML-CE (ibid., software/analytics/ibm-wml-ce.rst)
#     NERSC: Running Jobs on Perlmutter's GPU nodes, as of 2021
#     CSCS: Slurm (github.com/eth-cscs/cscs-docs, docs/running/slurm.md)
#     Intel: MPI Library, Developer Guide; its mpirun is MPICH's Hydra
#     Horovod: 0.28.1, docs/mpi.rst, docs/running.rst
#     UMT, nekRS, SCR: batch scripts for Sierra and Summit, github.com/LLNL/UMT, sierra-runs/216nodes4rank.sh,
#         github.com/Nek5000/nekRS, scripts/nrsqsub_summit, github.com/LLNL/scr, scripts/jobscripts/scr_jsrun_loop.sh
#     torchrun: PyTorch 2.13, torch/distributed/run.py, section "Usage"

SITES = Path(__file__).parents[2] / "deploy" / "sites"
NODES = tuple(f"n{number}" for number in range(1, 9))

#: Options without a value.
_FLAGS = {"--exact", "--exclusive", "--no-python", "--standalone"}
_TWO_VALUES = {"-mca"}
_SYNONYMS = {
    "--cpus-per-task": "-c",
    "--tasks-per-node": "--ntasks-per-node",
    "--ppn": "-ppn",
    "--nrs": "-n",
    "--tasks_per_rs": "-a",
    "--cpu_per_rs": "-c",
    "--gpu_per_rs": "-g",
    "-bind-to": "--bind-to",
    "-map-by": "--map-by",
}


def options(words: Sequence[str]) -> set[str]:
    """Each option with its value as one text: "-n 4", "--bind-to none"."""
    found, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        assert word.startswith("-"), f"{word} is no option"
        name, _, value = word.partition("=")
        if attached := re.fullmatch(r"(-[abcdgnrNX])(\d+|packed.*)", word):
            name, value = attached[1], attached[2]
        name = _SYNONYMS.get(name, name)
        if name not in _FLAGS and not value:
            value = " ".join(rest.pop(0) for _ in range(1 + (name in _TWO_VALUES)))
        found.append(f"{name} {value}".strip())
    assert len(set(found)) == len(found), f"an option stands twice: {found}"
    return set(found)


def launcher_of(name: str, **settings: Any) -> Launcher:
    """The launcher of a site profile; a launcher with these settings if there is no such profile."""
    path = SITES / f"{name}.yaml"
    if not path.exists():
        return make_launcher({"name": name, **settings})
    profile = load_site(path)
    return make_launcher(profile.launcher.model_dump(), profile.node.threads_per_core)


class Example(NamedTuple):
    """A line of a document.

    Attributes:
        source: document and section.
        launcher: a site profile or a launcher.
        shape: nodes, ranks on each, GPUs and cores of each rank, kind of GPU.
        line: the document's line; its program is `a.out` with what follows.
        ours: what only our line has.
        theirs: what only the document's has.
    """

    source: str
    launcher: str
    shape: tuple[int, int, int, int, str]
    line: str
    ours: str = ""
    theirs: str = ""
    placement: dict[str, Any] = {}  # noqa: RUF012 - nothing changes it
    settings: dict[str, Any] = {}  # noqa: RUF012


#: Every job step. --exact: steps of other jobs fit beside it; --kill-on-bad-exit: a dead rank ends the others;
#: --export: names only, so no credential of the batch script passes. --ntasks-per-node says what -N and -n give.
_ENDS = "--exact --kill-on-bad-exit=1 --export=HOME"
_STEP = f"{_ENDS},OMP_NUM_THREADS,PATH"
#: -X 1 ends the others of a dead rank; by -E ranks get what they are to know.
_JSM = "-X 1 -E OMP_NUM_THREADS"
_SUMMIT = f"-dpacked --smpiargs=-gpu {_JSM}"
#: -bind-to none: two jobs on a node would both be bound to its first cores.
_HYDRA = "-bind-to none -genvlist OMP_NUM_THREADS,PATH"
_PER_TASK = "--gpus-per-task=1"
_HOSTS = "-hosts n1,n2"
_TCP = ["-mca", "pml", "ob1", "-mca", "btl", "^openib"]
#: Ours has values of variables in the environment, and names alone on the line.
_NCCL = {"environment": {"NCCL_DEBUG": "INFO", "LD_LIBRARY_PATH": "/lib"}}

EXAMPLES = [
    # srun with a GPU for each task.
    Example("Frontier, Mapping 1 GPU per task, Example 3", "frontier", (2, 8, 1, 7, "amd"),
            f"srun -N2 -n16 -c7 {_PER_TASK} --gpu-bind=closest a.out", f"--ntasks-per-node=8 {_STEP}"),
    Example("PyTorch, Batch Script", "frontier", (2, 8, 1, 7, "amd"),
            f"srun -N2 -n16 -c7 {_PER_TASK} --gpu-bind=closest a.out -W ignore 2000",
            f"--ntasks-per-node=8 {_ENDS},MASTER_ADDR,MASTER_PORT,OMP_NUM_THREADS,PATH", placement={"port": 3442}),
    # --gres=none: the step would inherit all GPUs of the job, and those beside it would wait.
    Example("Frontier, Multithreading", "frontier", (1, 2, 0, 2, "amd"),
            "srun -N1 -n2 -c2 a.out", f"--ntasks-per-node=2 --gres=none {_STEP}"),
    # srun with all GPUs of the job visible to its tasks. NERSC counted GPUs by --gpus-per-task, which bound no task to
    # them then ("More GPU affinity examples", note); newer Slurm binds by it. Ours counts them by node.
    Example("NERSC, 4 nodes, 16 tasks, 16 GPUs, all GPUs visible to all tasks", "perlmutter", (4, 4, 1, 16, "nvidia"),
            f"srun -n 16 --ntasks-per-node=4 -c 32 {_PER_TASK} --cpu-bind=cores a.out",
            f"-N4 --gpus-per-node=4 --gpu-bind=none {_STEP}", _PER_TASK),
    # Of cores and GPUs it says nothing, for the job's step has all there are.
    Example("CSCS, Testing GPU affinity, first line", "generic-slurm", (1, 4, 1, 1, "nvidia"),
            "srun -n4 -N1 a.out", f"--ntasks-per-node=4 -c1 --gpus-per-node=4 --gpu-bind=none {_STEP}"),
    Example("CSCS, Testing GPU affinity, second line", "srun", (1, 4, 1, 1, "nvidia"),
            f"srun -n4 -N1 {_PER_TASK} a.out", f"--ntasks-per-node=4 -c1 --gpu-bind=closest {_STEP}"),
    # srun's own --exclusive is the older name of --exact, and --cpus-per-gpu=5 is -c5 where a task has one GPU.
    Example("CSCS, Running more than one job step per node", "generic-slurm", (2, 2, 1, 5, "nvidia"),
            f"srun -N2 --ntasks-per-node=2 --exclusive {_PER_TASK} --cpus-per-gpu=5 --mem=50G a.out",
            f"-n4 -c5 --mem=51200M --gpus-per-node=2 --gpu-bind=none {_STEP}",
            f"--exclusive {_PER_TASK} --cpus-per-gpu=5 --mem=50G", {"memory_mb": 51200}),
    # jsrun. -n and -d say what is jsrun's own choice, for one resource set a node.
    Example("WML-CE, Basic Distributed Deep Learning BSUB Script", "summit", (2, 6, 1, 7, "nvidia"),
            "jsrun -bpacked:7 -g6 -a6 -c42 -r1 a.out", f"-n2 {_SUMMIT}"),
    Example("Summit, Common Use Cases, a rank with the GPUs of a socket", "summit", (1, 1, 3, 21, "nvidia"),
            "jsrun -n1 -a1 -c21 -g3 -bpacked:21 a.out", f"-r1 {_SUMMIT}"),
    Example("Summit, Single MPI Task, single GPU per RS", "jsrun", (2, 6, 1, 1, "nvidia"),
            "jsrun -n12 -r6 -a1 -g1 -c1 a.out", f"-bpacked:1 -dpacked {_JSM}"),
    # The document has eight sets of one rank (jsrun's default), ours a set on each node with its four.
    Example("Containers, Running an MPI program with the OLCF MPI base image", "generic-lsf", (2, 4, 0, 1, "nvidia"),
            "jsrun -n 8 -r4 a.out exec x.sif /app", f"-n2 -r1 -a4 -g0 -c4 -bpacked:1 -dpacked {_JSM}", "-n8 -r4"),
    # Ours has no --progress, and jsrun sets CUDA_VISIBLE_DEVICES by itself.
    Example("UMT, a rank that dies, and labels of ranks", "jsrun", (2, 4, 1, 5, "nvidia"),
            "jsrun -X 1 --stdio_mode prepended --progress t.progress -D CUDA_VISIBLE_DEVICES -E OMP_NUM_THREADS=10 "
            "--nrs 8 --tasks_per_rs 1 --cpu_per_rs 5 --gpu_per_rs 1 --bind=proportional-packed:5 -d plane:1 a.out",
            "-r4 -bpacked:5 -dpacked -E OMP_NUM_THREADS",
            "--progress t.progress -D CUDA_VISIBLE_DEVICES -E OMP_NUM_THREADS=10 --bind=proportional-packed:5 "
            "-d plane:1",
            {"name": "step"}),
    Example("nekRS, jsrun", "jsrun", (2, 6, 1, 2, "nvidia"),
            "jsrun --smpiargs=-gpu -X 1 -n12 -r6 -a1 -c2 -g1 -b rs -d packed a.out",
            "-bpacked:2 -E OMP_NUM_THREADS", "-b rs", settings={"options": ["--smpiargs=-gpu"]}),
    Example("SCR, jsrun without nodes that are down", "jsrun", (2, 1, 0, 1, "none"),
            "jsrun --exclude_hosts n3,n4 a.out", f"-n2 -r1 -a1 -g0 -c1 -bpacked:1 -dpacked {_JSM}",
            placement={"allocation": NODES[:4]}),
    # mpirun and horovodrun
    Example("Intel, Controlling Process Placement", "generic-pbs", (2, 2, 1, 1, "nvidia"),
            f"mpirun -n 4 -ppn 2 {_HOSTS} a.out", _HYDRA),
    Example("Horovod, running.rst", "local", (4, 4, 1, 1, "nvidia"), "horovodrun -np 16 -H n1:4,n2:4,n3:4,n4:4 a.out"),
    Example("Horovod, mpi.rst, second example", "mpirun", (2, 4, 1, 1, "nvidia"),
            "mpirun -np 8 -H n1:4,n2:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH "
            "-mca pml ob1 -mca btl ^openib a.out", "-x NCCL_DEBUG -x OMP_NUM_THREADS", "-x NCCL_DEBUG=INFO",
            _NCCL, {"options": _TCP}),
    # torchrun. --no-python: a job's command names its Python itself.
    Example("torchrun, Single-node multi-worker", "torchrun", (1, 4, 1, 1, "nvidia"),
            "torchrun --standalone --nnodes=1 --nproc-per-node=4 a.out --arg1", "--no-python"),
    # --standalone stands for the document's two words: c10d on a free port of this node, and a name of its own.
    Example("torchrun, Stacked single-node multi-worker", "torchrun", (1, 4, 1, 1, "nvidia"),
            "torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=4 a.out",
            "--standalone --no-python", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0"),
]  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.source)
def test_a_line_differs_from_the_documents_only_in_the_words_named(example: Example) -> None:
    nodes, *shape = example.shape
    launcher = launcher_of(example.launcher, **example.settings)
    where = Placement(NODES[:nodes], *shape, **example.placement)  # type: ignore[arg-type]
    printed = shlex.split(example.line)
    argv = printed[printed.index("a.out") :]
    mine = launcher.command(argv, where)
    assert mine[0] == printed[0] == launcher.name
    assert mine[-len(argv) :] == argv
    own, other = options(mine[1 : -len(argv)]), options(printed[1 : -len(argv)])
    assert (own - other, other - own) == (options(shlex.split(example.ours)), options(shlex.split(example.theirs)))
    assert launcher.environment(where, {})["OMP_NUM_THREADS"] == str(shape[2])


#: Words of every line, in their order; GPUs and cores of one node where the profile leaves them open.
OPEN_NODE = (4, 32)
_CLOSEST = "--gpus-per-task=1 --gpu-bind=closest"
_ALL = "--gpus-per-node=4 --gpu-bind=none"
_GENV = "-bind-to none -genvlist"

#: By profile: two nodes with all GPUs, or with four ranks each; two ranks without.
GOLDEN = {
    "summit": (
        "jsrun -n2 -r1 -a6 -g6 -c42 -bpacked:7 -dpacked -X 1 --smpiargs=-gpu -E OMP_NUM_THREADS",
        "jsrun -n1 -r1 -a2 -g0 -c2 -bpacked:1 -dpacked -X 1 --smpiargs=-gpu -E OMP_NUM_THREADS",
    ),
    "frontier": (
        f"srun -N2 -n16 --ntasks-per-node=8 -c7 {_CLOSEST} {_STEP}",
        f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    ),
    "perlmutter": (  # -c counts hardware threads there
        f"srun -N2 -n8 --ntasks-per-node=4 -c32 {_ALL} {_STEP} --cpu-bind=cores",
        f"srun -N1 -n2 --ntasks-per-node=2 -c2 --gres=none {_STEP} --cpu-bind=cores",
    ),
    "perlmutter-cpu": (
        f"srun -N2 -n8 --ntasks-per-node=4 -c64 {_STEP} --cpu-bind=cores",
        f"srun -N1 -n2 --ntasks-per-node=2 -c2 {_STEP} --cpu-bind=cores",
    ),
    "generic-slurm": (
        f"srun -N2 -n8 --ntasks-per-node=4 -c8 {_ALL} {_STEP}",
        f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    ),
    "generic-lsf": (
        "jsrun -n2 -r1 -a4 -g4 -c32 -bpacked:8 -dpacked -X 1 -E OMP_NUM_THREADS",
        "jsrun -n1 -r1 -a2 -g0 -c2 -bpacked:1 -dpacked -X 1 -E OMP_NUM_THREADS",
    ),
    "generic-pbs": (
        f"mpirun -n 8 {_HOSTS} -ppn 4 {_GENV} OMP_NUM_THREADS,PATH",
        f"mpirun -n 2 -hosts n1 -ppn 2 {_GENV} CUDA_VISIBLE_DEVICES,OMP_NUM_THREADS,PATH",
    ),
    "local": ("horovodrun -np 8 -H n1:4,n2:4", "horovodrun -np 2 -H n1:2"),
    "grid": (),  # a PanDA site's own pilots start jobs there; ranks beyond one are refused
}


@pytest.mark.parametrize("path", sorted(SITES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_lines_of_each_profile(path: Path) -> None:
    node = load_site(path).node
    gpus, cores = node.gpu_count or OPEN_NODE[0], node.cores or OPEN_NODE[1]
    kind = node.gpu_kind if node.gpus or node.cores else "nvidia"
    where = (
        Placement(NODES[:2], gpus, int(kind != "none"), cores // gpus, kind),
        Placement(NODES[:1], 2, gpu_kind=kind),
    )
    launcher, lines = launcher_of(path.stem), GOLDEN[path.stem]
    assert [shlex.join(launcher.command(["x"], one)) for one in where[: len(lines)]] == [f"{line} x" for line in lines]


@pytest.mark.parametrize(
    ("launcher", "where", "line"),
    [
        (
            launcher_of("summit"),
            Placement(("n3", "n7"), 2, 1, 7, "nvidia", allocation=NODES),
            "jsrun -n2 -r1 -a2 -g2 -c14 -bpacked:7 -dpacked --exclude_hosts=n1,n2,n4,n5,n6,n8 -X 1 --smpiargs=-gpu "
            "-E OMP_NUM_THREADS x",
        ),
        (  # Which GPUs is jsrun's choice: it knows those of other jobs.
            launcher_of("summit"),
            Placement(("n1",), 2, 1, 7, "nvidia", gpus=("3", "5")),
            "jsrun -n1 -r1 -a2 -g2 -c14 -bpacked:7 -dpacked -X 1 --smpiargs=-gpu -E OMP_NUM_THREADS x",
        ),
        (
            launcher_of("frontier"),
            Placement(("n3",), 1, 1, 7, "amd", allocation=NODES, memory_mb=64000, name="step"),
            f"srun -N1 -n1 --ntasks-per-node=1 -c7 {_CLOSEST} --nodelist=n3 --exact --mem=64000M --job-name=step "
            "--label --kill-on-bad-exit=1 --export=HOME,OMP_NUM_THREADS,PATH x",
        ),
        (
            launcher_of("torchrun", starter="srun"),
            Placement(("n1", "n2"), 4, 1, 8, "nvidia", port=29400),
            f"srun -N2 -n2 --ntasks-per-node=1 -c32 {_ALL} {_ENDS},MASTER_ADDR,MASTER_PORT,OMP_NUM_THREADS,PATH "
            "torchrun --nproc-per-node=4 --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n1:29400 "
            "--rdzv-id=hpo-pilot-29400 --no-python x",
        ),
    ],
)
def test_a_part_of_an_allocation_and_torchrun_on_several_nodes(launcher: Launcher, where: Placement, line: str) -> None:
    assert shlex.join(launcher.command(["x"], where)) == line
    assert launcher.environment(where, {})["OMP_NUM_THREADS"] == str(where.cores_per_rank)
