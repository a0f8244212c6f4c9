"""Launchers: placements, environments, and messages of launchers that start nothing."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.launcher import Launcher, Placement, site_variables
from hpo_pilot.hpc.launchers import LAUNCHERS, make_launcher
from hpo_pilot.hpc.site_files import load_site


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


@pytest.mark.parametrize("name", [name for name in LAUNCHERS if name not in ("srun", "jsrun", "flux")])
def test_chosen_gpus_are_the_visible_ones(name: str) -> None:
    launcher = make_launcher({"name": name})
    chosen = Placement(("a",), 1, 2, gpu_kind="amd", gpus=("4", "6"))
    base = {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0", "PATH": "/bin"}
    env = launcher.environment(chosen, base)
    assert env["ROCR_VISIBLE_DEVICES"] == "4,6" and "HIP_VISIBLE_DEVICES" not in env  # it would count the two again
    # A payload without GPUs must not take those of its neighbours.
    assert launcher.environment(Placement(("a",), gpu_kind="nvidia"), {})["CUDA_VISIBLE_DEVICES"] == ""
    assert launcher.environment(Placement(("a",), gpu_kind="intel"), {})["ZE_AFFINITY_MASK"] == "9999"
    assert "CUDA_VISIBLE_DEVICES" not in launcher.environment(Placement(("a",), 1, 1, gpu_kind="nvidia"), {})


@pytest.mark.parametrize("name", ["srun", "jsrun", "flux"])
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


#: torch 2.13 on two nodes, whose first node ended while the second was busy.
_TORCHRUN_ENDS = """\
E1129 10:31:16.1 8417 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 1
W1129 10:31:18.6 8417 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1298] The node 'n2_8417_0' has failed \
to shutdown the rendezvous 'hpo-pilot-20001' due to an error of type RendezvousConnectionError.
"""
_NO_STORE = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection failed"


def test_ranks_that_were_terminated() -> None:
    said = "srun: error: n2: task 1: Terminated\nsrun: error: n1: task 0: "
    log_patterns = LAUNCHERS["srun"].log_patterns
    assert log_patterns.were_terminated(said + "Terminated\n")
    assert not log_patterns.were_terminated(said + "Exited with exit code 1\n")
    assert not log_patterns.were_terminated("0: Terminated\n")


@pytest.mark.parametrize(
    ("launcher", "said", "why", "is_away"),
    [
        ("srun", _SLURM_IS_AWAY, "srun: error: Unable to confirm allocation for job 1", True),
        ("srun", "srun: error: Unable to create step for job 1: Unable to contact slurm controller (x)", "srun:", True),
        ("srun", "srun: error: Unable to create step for job 1: More processors requested", "srun:", False),
        ("srun", "0: srun: error: Unable to contact slurm controller (connect failure)", "", False),  # a rank said it
        ("srun", "srun: error: n1: task 0: Exited with exit code 3", "", False),
        ("jsrun", _JSM_IS_AWAY, "Error: Remote JSM server is not responding", True),
        ("flux", "flux-run: ERROR: Unable to connect to Flux: broker socket /x was not found", "flux-run:", True),
        ("flux", "0.03s: job.exception f4 type=alloc severity=0 unsatisfiable request: need 3 nodes", "0.03s:", False),
        ("flux", "0: 0.03s: job.exception f4 type=alloc severity=0 unsatisfiable request", "", False),  # a rank said it
        ("pals", "launch failed on x3: Failed to parse implicit GPU selection", "launch failed on x3", False),
        ("mpirun", "There are not enough slots available in the system", "There are not enough slots", False),
        ("torchrun", f"ValueError: boom\n{_TORCHRUN_ENDS}", "", False),  # a rank failed, then the store went away
        ("torchrun", f"{_NO_STORE}\n{_TORCHRUN_ENDS}", _NO_STORE, False),
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


#: flux-core 0.88, whose second broker had been killed; ALCF's guides, "Known Issues".
_FLUX_LOST = """\
4.590s: flux-shell[0]:  WARN: exception: node failure on n2 (shell rank 1)
4.591s: flux-shell[0]: FATAL: task-exit: sleep: shell rank 1 on host n2 failed and exit-on-error is set
4.590s: job.exception f2QVMXQK type=exec severity=0 node failure on n2 (rank 1)
"""


@pytest.mark.parametrize(
    ("launcher", "said", "lost"),
    [
        ("flux", _FLUX_LOST, True),
        (
            "pals",
            "launch failed on n1: Couldn't forward RPC launch(ab7) to child n2.hsn.cm: Resource unavailable",
            False,
        ),
        ("pals", "ping failed on n1: No reply from n2.hostmgmt2307.cm after 87s", False),
        ("pals", "ping RPC timeout from n2.hostmgmt2212.cm after 120s", False),
        ("pals", "ping failed on n2: Application 047a3c9f not found", False),
    ],
)
def test_nodes_that_are_not_reached(launcher: str, said: str, lost: bool) -> None:
    log_patterns, nodes = make_launcher({"name": launcher}).log_patterns, ["n1.hsn.cm", "n2.hsn.cm"]
    assert log_patterns.broken_nodes(said, nodes) == {"n2.hsn.cm"}
    assert bool(log_patterns.lost_nodes(said, nodes)) is lost


# --- command lines ---
#
# The lines are written as in these documents; what ours have beside them is named below.
#
#     Frontier, Summit: OLCF's user guides (github.com/olcf/olcf-user-docs, systems/*_user_guide.rst)
#     NERSC: Running Jobs on Perlmutter's GPU nodes, as of 2021
#     CSCS: Slurm (github.com/eth-cscs/cscs-docs, docs/running/slurm.md)
#     Intel: MPI Library, Developer Guide; its mpirun is MPICH's Hydra
#     ALCF: user guides (github.com/argonne-lcf/user-guides, docs/{aurora,polaris}); HPE: github.com/Cray-HPE/craycli,
#         cray/modules/mpiexec/cli.py
#     Flux: flux-run(1), flux-shell-options(7); these lines ran with flux-core 0.88
#     Horovod: 0.28.1, docs/mpi.rst, docs/running.rst
#     UMT, nekRS, SCR: batch scripts for Sierra and Summit, github.com/LLNL/UMT, sierra-runs/216nodes4rank.sh,
#         github.com/Nek5000/nekRS, scripts/nrsqsub_summit, github.com/LLNL/scr, scripts/jobscripts/scr_jsrun_loop.sh
#     torchrun: PyTorch 2.13, torch/distributed/run.py, section "Usage"

SITES = Path(__file__).parents[2] / "deploy" / "sites"
NODES = tuple(f"n{number}" for number in range(1, 9))


def launcher_of(name: str, **settings: Any) -> Launcher:
    """The launcher of a site profile; a launcher with these settings if there is no such profile."""
    path = SITES / f"{name}.yaml"
    if not path.exists():
        return make_launcher({"name": name, **settings})
    profile = load_site(path)
    return make_launcher(profile.launcher.model_dump(), profile.node.threads_per_core)


#: Every job step. --exact: steps of other jobs fit beside it; --kill-on-bad-exit: a dead rank ends the others;
#: --export: names only, so no credential of the batch script passes. --ntasks-per-node says what -N and -n give.
_ENDS = "--exact --kill-on-bad-exit=1 --export=HOME"
_STEP = f"{_ENDS},OMP_NUM_THREADS,PATH"
#: Words of every line, in their order; GPUs and cores of one node where the profile leaves them open.
OPEN_NODE = (4, 32)
_HOSTS = "-hosts n1,n2"
_CLOSEST = "--gpus-per-task=1 --gpu-bind=closest"
_ALL = "--gpus-per-node=4 --gpu-bind=none"
_GENV = "-bind-to none -genvlist"
_PALS = "--cpu-bind none --envall"
_FLUX = "-o exit-on-error -o exit-timeout=none '--env-remove=*' --env=HOME --env=OMP_NUM_THREADS --env=PATH"

#: By profile: two nodes with all GPUs, or with four ranks each; two ranks without. `--gres=none`: else the step has all
#: GPUs of the job, and steps beside it would wait. `-X 1`: a dead rank ends the others. `-bind-to none`: two jobs on
#: a node would both be bound to its first cores.
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
    "local": ("torchrun --nproc-per-node=2 --nnodes=1 --standalone --no-python",),  # one machine
    "grid": (),  # a PanDA site's own pilots start jobs there; ranks beyond one are refused
    "lumi-g": (
        f"srun -N2 -n16 --ntasks-per-node=8 -c7 --gpus-per-node=8 --gpu-bind=none {_STEP}",
        f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    ),
    "alps": (
        f"srun -N2 -n8 --ntasks-per-node=4 -c72 {_CLOSEST} {_STEP}",
        f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    ),
    "jupiter": (
        f"srun -N2 -n8 --ntasks-per-node=4 -c72 {_ALL} {_STEP} --cpu-bind=sockets",
        f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP} --cpu-bind=sockets",
    ),
    "karolina": (
        f"srun -N2 -n16 --ntasks-per-node=8 -c16 --gpus-per-node=8 --gpu-bind=none {_STEP}",
        f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    ),
    "leonardo": (
        f"srun -N2 -n8 --ntasks-per-node=4 -c8 {_ALL} {_STEP}",
        f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    ),
    "marenostrum5": (
        f"srun -N2 -n8 --ntasks-per-node=4 -c20 {_ALL} {_STEP}",
        f"srun -N1 -n2 --ntasks-per-node=2 -c1 --gres=none {_STEP}",
    ),
    # A pool has one node for each job; ranks beyond one need a launcher.
    **dict.fromkeys(("cern-htcondor", "generic-htcondor"), ()),
    "polaris": (
        f"mpiexec -n 8 --ppn 4 --hosts n1,n2 {_PALS}",
        f"mpiexec -n 2 --ppn 2 --hosts n1 {_PALS}",
    ),
    "aurora": (
        f"mpiexec -n 24 --ppn 12 --hosts n1,n2 {_PALS}",
        f"mpiexec -n 2 --ppn 2 --hosts n1 {_PALS}",
    ),
    **dict.fromkeys(
        ("elcapitan", "tuolumne"),
        (f"flux run -N2 -n8 -c21 -g1 -o gpu-affinity=per-task {_FLUX}", f"flux run -N1 -n2 -c1 {_FLUX}"),
    ),
    "generic-flux": (
        f"flux run -N2 -n8 -c8 -g1 -o gpu-affinity=per-task {_FLUX}",
        f"flux run -N1 -n2 -c1 {_FLUX}",
    ),
}


def test_these_are_the_profiles_that_come_with_the_product() -> None:
    assert {path.stem for path in SITES.glob("*.yaml")} == GOLDEN.keys()


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
    assert [shlex.join(launcher.command(["x"], one)) for one in where[2 - len(lines) :]] == [
        f"{line} x" for line in lines
    ]


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
        (  # Summit, "Common Use Cases": a rank with the GPUs of a socket
            launcher_of("summit"),
            Placement(("n1",), 1, 3, 21, "nvidia"),
            "jsrun -n1 -r1 -a1 -g3 -c21 -bpacked:21 -dpacked -X 1 --smpiargs=-gpu -E OMP_NUM_THREADS x",
        ),
        (  # Summit, "Single MPI Task, single GPU per RS"; UMT: labels of ranks; SCR: nodes to leave out
            launcher_of("jsrun"),
            Placement(("n1", "n2"), 6, 1, 1, "nvidia", allocation=NODES[:4], name="step"),
            "jsrun -n12 -r6 -a1 -g1 -c1 -bpacked:1 -dpacked --exclude_hosts=n3,n4 -X 1 --stdio_mode prepended "
            "-E OMP_NUM_THREADS x",
        ),
        (  # a part of the allocation
            launcher_of("generic-flux", share_gpus=True),
            Placement(("n3", "n7"), 1, allocation=NODES, name="step"),
            "flux run -N2 -n2 -c1 --requires=host:n3,n7 -o exit-on-error -o exit-timeout=none --job-name=step "
            "--label-io '--env-remove=*' --env=HOME --env=OMP_NUM_THREADS --env=PATH x",
        ),
        (  # Horovod, mpi.rst; values of variables are in the environment, only names on the line
            launcher_of("mpirun", options=["-mca", "pml", "ob1", "-mca", "btl", "^openib"]),
            Placement(("n1", "n2"), 4, 1, 1, "nvidia", {"NCCL_DEBUG": "INFO"}, name="step"),
            "mpirun -np 8 -H n1:4,n2:4 --bind-to none --map-by slot --tag-output -mca pml ob1 -mca btl '^openib' "
            "-x NCCL_DEBUG -x OMP_NUM_THREADS -x PATH x",
        ),
        (
            launcher_of("generic-pbs"),
            Placement(("n1", "n2"), 2, name="step"),
            f"mpirun -n 4 {_HOSTS} -ppn 2 -bind-to none -prepend-rank -genvlist OMP_NUM_THREADS,PATH x",
        ),
        (
            launcher_of("torchrun"),
            Placement(("n1",), 4, 1, 1, "nvidia"),
            "torchrun --nproc-per-node=4 --nnodes=1 --standalone --no-python x",
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
def test_lines_of_single_launchers(launcher: Launcher, where: Placement, line: str) -> None:
    assert shlex.join(launcher.command(["x"], where)) == line
    assert launcher.environment(where, {})["OMP_NUM_THREADS"] == str(where.cores_per_rank)
