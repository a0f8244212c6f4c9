"""Allocations are submitted once, whatever happens meanwhile."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.hpc import allocations as allocations_module
from hpo_pilot.hpc.allocations import AllocationFile, AllocationManager, PilotCommand, check_shape
from hpo_pilot.hpc.batch_system import AllocationSpec, BatchJob, BatchState, CommandFailedError, active_environment
from hpo_pilot.hpc.batch_systems import make_batch_system
from hpo_pilot.hpc.keeper import PilotAccess
from hpo_pilot.hpc.site_files import find_site
from hpo_pilot.hpc.site_profile import SiteProfile
from tests.hpc.conftest import FakeBatch

Plan = Callable[..., AllocationSpec]


class Killed(BaseException):
    """What kill -9 is to the code: nothing after it runs, no error of ours is handled."""


def submit(manager: AllocationManager, spec: AllocationSpec) -> str | None:
    return manager.submit(spec, server="https://here", panda_queue="Q").job_id


def test_a_life(manager: AllocationManager, batch: FakeBatch, plan: Plan, now: list[float]) -> None:
    assert submit(manager, plan("one")) == "100"
    now[0] = 1100
    batch.turn("100", BatchState.RUNNING)
    (one,) = manager.refresh()
    assert (one.state, one.started, one.changed) == (BatchState.RUNNING, 1100, 1100)
    now[0] = 1200
    assert manager.refresh() == [one]
    batch.turn("100", BatchState.TIMED_OUT)
    assert manager.refresh()[0].changed == 1200
    batch.known.clear()
    assert manager.refresh()[0].state is BatchState.TIMED_OUT  # it has ended: nobody is asked


def test_files_are_for_their_owner(manager: AllocationManager, plan: Plan, tmp_path: Path) -> None:
    spec = plan("one")
    submit(manager, spec)
    for path in (spec.script_file, spec.folder / "site.json", tmp_path / "work" / "allocations.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_it_submits(
    when: str, manager: AllocationManager, batch: FakeBatch, plan: Plan, now: list[float]
) -> None:
    def die() -> None:
        raise Killed

    setattr(batch, when, die)
    with pytest.raises(Killed):
        submit(manager, plan("one"))
    (one,) = manager.refresh()
    if when == "before":
        assert one.state is None  # it may still come
        now[0] += 61
        (one,) = manager.refresh()
        assert one.state is BatchState.FAILED and "did not reach the batch system" in one.reason
    else:
        assert (one.job_id, one.state) == ("100", BatchState.WAITING)
    assert len(batch.submitted) == (when == "after")


def test_one_that_may_still_come_is_not_cancelled(manager: AllocationManager, batch: FakeBatch, plan: Plan) -> None:
    def die() -> None:
        raise Killed

    batch.before = die
    with pytest.raises(Killed):
        submit(manager, plan("one"))
    (one,) = manager.cancel(["one"])
    assert (one.job_id, batch.cancelled) == (None, [])


def test_the_lock_outlives_the_submitting_process(
    manager: AllocationManager, batch: FakeBatch, plan: Plan, tmp_path: Path
) -> None:
    """The batch system's command holds it too: nobody takes a job for lost that is just being submitted."""
    kept: list[int] = []
    begin = batch.submit

    def inherit(spec: AllocationSpec, *, lock: int | None = None) -> str:
        assert lock is not None
        kept.append(os.dup(lock))  # as a child has it
        return begin(spec, lock=lock)

    batch.submit = inherit  # type: ignore[method-assign]
    submit(manager, plan("one"))
    with (tmp_path / "work" / ".allocations.lock").open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(kept[0])
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_somebody_else_has_the_book(
    manager: AllocationManager, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocations_module, "_LOCK_SECONDS", 0.2)
    with AllocationFile(tmp_path / "work").open(), pytest.raises(TryAgainError, match="another command"):
        submit(manager, plan("one"))


def test_an_answer_that_is_lost(manager: AllocationManager, batch: FakeBatch, plan: Plan) -> None:
    def lost() -> None:
        raise CommandFailedError(["sbatch"], 1, "Socket timed out on send/recv operation")

    batch.after = lost
    assert submit(manager, plan("one")) == "100"


def test_a_refusal(manager: AllocationManager, batch: FakeBatch, plan: Plan) -> None:
    def refuse() -> None:
        raise CommandFailedError(["sbatch"], 1, "error: invalid account\n")

    batch.before = refuse
    with pytest.raises(InputError, match="error: invalid account"):
        submit(manager, plan("one"))
    assert manager.refresh()[0].state is BatchState.FAILED


def test_cancel(manager: AllocationManager, batch: FakeBatch, plan: Plan) -> None:
    for name in ("one", "two", "three"):
        submit(manager, plan(name))
    batch.turn("102", BatchState.ENDED)
    assert [one.name for one in manager.cancel(["one", "101", "three"])] == ["one", "two"]
    assert batch.cancelled == ["100", "101"]
    with pytest.raises(InputError, match="no allocation 'four'"):
        manager.cancel(["four"])


def test_a_job_that_the_batch_system_forgot(
    manager: AllocationManager, batch: FakeBatch, plan: Plan, now: list[float]
) -> None:
    submit(manager, plan("one"))
    submit(manager, plan("two"))
    ended = BatchJob("101", "two", BatchState.TIMED_OUT, (), "TimeLimit")
    batch.earlier = lambda ids: {"101": ended} if "101" in ids else {}  # type: ignore[method-assign, assignment]
    batch.known.clear()
    assert [one.state for one in manager.refresh()] == [BatchState.WAITING, BatchState.TIMED_OUT]
    now[0] += 61
    assert [one.state for one in manager.refresh()] == [BatchState.ENDED, BatchState.TIMED_OUT]


def test_a_batch_system_that_shows_nothing_for_a_moment(
    manager: AllocationManager, batch: FakeBatch, plan: Plan, now: list[float]
) -> None:
    """A controller that has just started: its jobs are not over, and none is submitted twice."""
    submit(manager, plan("one"))
    batch.turn("100", BatchState.RUNNING)
    manager.refresh()
    known = dict(batch.known)
    batch.known.clear()
    for _ in range(2):
        (one,) = manager.refresh()
        assert one.state is BatchState.RUNNING and one.reason == "the batch system does not show it now"
        now[0] += 29
    batch.known.update(known)
    (one,) = manager.refresh()
    assert one.state is BatchState.RUNNING and not one.reason and one.missing is None
    batch.known.clear()
    now[0] += 5000  # its walltime was over long ago: nobody has looked meanwhile
    assert manager.refresh()[0].state is BatchState.ENDED


@pytest.mark.parametrize(
    ("asked", "batch_section", "said"),
    [
        ({}, {"account_required": True}, "--account"),
        ({"nodes": 9}, {"queue": "q", "queues": {"q": {"walltime": [{"nodes": 8, "hours": 2.0}]}}}, "at most 8"),
        (
            {"nodes": 2, "minutes": 121},
            {"queue": "q", "queues": {"q": {"walltime": [{"nodes": 8, "hours": 2.0}, {"nodes": 16, "hours": 4.0}]}}},
            "give --walltime 2:00 at most, or --nodes 9 or more",
        ),
    ],
)
def test_the_sites_rules(
    asked: dict[str, int],
    batch_section: dict[str, object],
    said: str,
    manager: AllocationManager,
    plan: Plan,
    batch: FakeBatch,
) -> None:
    with pytest.raises(InputError, match=said):
        submit(manager, plan("one", **asked, **batch_section))
    assert not batch.submitted and not manager.refresh()


def test_the_queue_is_full(manager: AllocationManager, batch: FakeBatch, plan: Plan) -> None:
    """Jobs that others of the user's programs submitted count, those of other queues and those that are over do not."""
    section = {"queue": "q", "queues": {"q": {"limits": {"queued": 2}}}}
    batch.known["1"] = BatchJob("1", "other", BatchState.RUNNING, ("q", "normal"))
    batch.known["2"] = BatchJob("2", "other", BatchState.RUNNING, ("elsewhere",))
    batch.known["3"] = BatchJob("3", "other", BatchState.ENDED, ("q",))
    submit(manager, plan("one", **section))
    with pytest.raises(TryAgainError, match="accepts 2 jobs of a user in q"):
        submit(manager, plan("two", **section))


def test_a_book_that_makes_no_sense(manager: AllocationManager, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "allocations.json").write_text('[{"name": "x"}]')
    with pytest.raises(InputError, match=r"allocations\.json cannot be read"):
        manager.refresh()


# --- job scripts, word for word: `golden/` has them as they are submitted ---


GOLDEN = Path(__file__).parent / "golden"

#: A machine under Flux with features of nodes and variables.
FLUX = SiteProfile.model_validate(
    {
        "name": "flux",
        "batch": {"system": "flux", "queue": "pbatch", "account_required": True, "constraint": "icelake"},
        "launcher": {"name": "mpirun"},
        "environment": {"NOTE": "it's a test"},
    }
)

#: Sites, with what is asked for there.
ASKED: dict[str, dict[str, Any]] = {
    # Summit User Guide, "Batch Scripts": -P, -W, -nnodes, -alloc_flags, -J, -o; "-wa" and "-wt" are bsub's.
    "summit": {"nodes": 92, "minutes": 720, "account": "ABC123"},
    # Frontier User Guide, "Batch Scripts": -A, -J, -o, -t, -p, -N; -C nvme; --signal is sbatch's.
    "frontier": {"nodes": 184, "minutes": 90, "account": "ABC123", "queue": "batch"},
    # NERSC, "Running Jobs on Perlmutter": -A <project>_g, -C gpu, -q regular, -t, -N, --gpus-per-node.
    "perlmutter": {"nodes": 4, "minutes": 65, "account": "m1234"},
    # PBS Professional User's Guide, "Submitting a PBS Job": -l select, place, walltime.
    "generic-pbs": {
        "nodes": 3,
        "minutes": 1500,
        "queue": "workq",
        "account": "proj",
        "proxy": "http://login1:3128",
        "node_cores": 32,
        "node_gpus": 4,
    },
    # LUMI User Guide, "LUMI-G example batch scripts": --partition, --nodes, --gpus-per-node, --time, --account.
    "lumi-g": {"nodes": 2, "minutes": 2160, "account": "project_465000000"},
    # CSCS, "Slurm", "Running more than one job step per node": --exclusive, --mem=450G; the last --mem counts.
    "alps": {"nodes": 2, "minutes": 60, "account": "g123"},
    # ALCF, "Running Jobs using PBS": -A, -l walltime and -l filesystems are mandatory; -l select=N:system=NAME.
    "polaris": {"nodes": 4, "minutes": 600, "account": "catalyst"},
    "aurora": {"nodes": 256, "minutes": 720, "queue": "prod", "account": "catalyst"},
    # flux-batch(1), "SUBMISSION DIRECTIVES".
    "tuolumne": {"nodes": 1, "minutes": 60, "account": "lc"},
    # HTCondor Manual, condor_submit(1); +MaxRuntime: CERN, "Exercise 6b: Runtime And Resource Limits".
    "cern-htcondor": {"nodes": 1, "minutes": 480, "account": "group_u_BE.ABP.NORMAL", "node_gpus": 1},
    "flux": {"nodes": 2, "minutes": 30, "account": "lc"},
}


def spec_for(name: str, tmp_path: Path) -> AllocationSpec:
    site = FLUX if name == "flux" else find_site(name)
    (tmp_path / "pilot.token").write_text("the-secret-itself")
    token = tmp_path / "pilot.token"
    access = PilotAccess("https://panda.example.org:25443", "GPU_QUEUE", token, None, "", site.name)
    command = PilotCommand(access, Path("/shared/hpo"), python="/venv/python")
    return AllocationSpec(
        site=site,
        name="hpo-0123456789",
        folder=command.folder("hpo-0123456789"),
        command=command.words("hpo-0123456789"),
        **ASKED[name],
    )


@pytest.mark.parametrize("name", ASKED)
def test_the_script(name: str, tmp_path: Path) -> None:
    spec = spec_for(name, tmp_path)
    script = make_batch_system(spec.site.batch.system).script(spec)
    assert script.replace(str(tmp_path), "/tokens") == (GOLDEN / f"{name}.sh").read_text()
    assert "the-secret-itself" not in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_words_stay_words(tmp_path: Path) -> None:
    """What a profile or a user writes is no shell's text, but for the profile's setup lines."""
    site = SiteProfile.model_validate(
        {
            "name": "here",
            "batch": {"system": "slurm"},
            "environment": {"A": "$(touch injected); 'x'"},
            "setup": ["B=two; export B"],
        }
    )
    spec = AllocationSpec(site, 1, 10, "name", tmp_path, ("python3", "-c", _SHOW, "a b", "$HOME;x"))
    script = make_batch_system("slurm").script(spec)
    said = subprocess.run(["bash", "-s"], input=script, text=True, capture_output=True, check=True, cwd=tmp_path).stdout
    assert said.splitlines() == ["$(touch injected); 'x'", "two", "a b", "$HOME;x"]
    assert not (tmp_path / "injected").exists()


_SHOW = "import os, sys; print(os.environ['A'], os.environ['B'], *sys.argv[1:], sep='\\n')"


def test_the_environment_active_where_it_is_submitted_is_passed_on(tmp_path: Path) -> None:
    """Not every batch system does it. What the site sets counts more."""
    site = SiteProfile.model_validate(
        {"name": "here", "batch": {"system": "pbs"}, "setup": ["export CONDA_PREFIX=/of/the/site"]}
    )
    submitting = {"PATH": "/a b/bin:/usr/bin", "CONDA_PREFIX": "/a b", "PYTHONPATH": "$(touch x)", "MY_TOKEN": "geheim"}
    show = ("/usr/bin/env",)
    active = active_environment(submitting)
    spec = AllocationSpec(site, 1, 10, "name", tmp_path, show, environment=active, node_cores=1)
    script = make_batch_system("pbs").script(spec)
    for path, seen in (("/bin:/usr/bin", "/a b/bin:/usr/bin:/bin:/usr/bin"), (submitting["PATH"],) * 2):
        env = {"PATH": path}
        done = subprocess.run(["/bin/bash", "-s"], input=script, text=True, capture_output=True, check=True, env=env)
        found = dict(line.split("=", 1) for line in done.stdout.splitlines())
        assert found["PATH"] == seen
        assert (found["CONDA_PREFIX"], found["PYTHONPATH"]) == ("/of/the/site", "$(touch x)")
        assert "geheim" not in script


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"queue": "batch\n#SBATCH -A other"}, "--queue"),
        ({"account": "a b"}, "--account"),
        ({"name": "a-name-that-is-too-long"}, "cannot name a batch job"),
        ({"folder": Path("/a/%j")}, "--folder"),
        ({"folder": Path("relative")}, "--folder"),
        ({"proxy": "http://me:secret@proxy:1"}, "--proxy"),
        ({"proxy": "http://proxy:1; rm -rf /"}, "--proxy"),
        ({"nodes": 0}, "--nodes"),
        ({"minutes": 0}, "--walltime"),
    ],
)
def test_what_no_script_is_made_of(changed: dict[str, Any], said: str) -> None:
    asked = {"nodes": 1, "minutes": 1, "name": "name", "folder": Path("/a"), "command": ("true",), **changed}
    with pytest.raises(InputError, match=said):
        AllocationSpec(site=FLUX, **asked)


def test_an_account_that_has_its_suffix() -> None:
    site = find_site("perlmutter")
    spec = AllocationSpec(site, 1, 1, "name", Path("/a"), ("true",), account="m1234_g")
    assert spec.account_name == "m1234_g"


def test_lsf_without_jsrun_counts_slots() -> None:
    site = {"name": "here", "batch": {"system": "lsf"}, "node": {"cores": 32}, "launcher": {"name": "mpirun"}}
    spec = AllocationSpec(SiteProfile.model_validate(site), 3, 60, "name", Path("/a"), ("true",))
    lines = make_batch_system("lsf").script(spec).splitlines()
    assert "#BSUB -n 96" in lines and "#BSUB -R 'span[ptile=32]'" in lines and "#BSUB -x" in lines
    with pytest.raises(InputError, match=r"node\.cores"):
        make_batch_system("lsf").script(
            AllocationSpec(SiteProfile.model_validate({**site, "node": {}}), 3, 60, "name", Path("/a"), ("true",))
        )


def test_pbs_is_asked_for_the_cores_and_gpus_of_its_nodes() -> None:
    """By default a chunk of PBS has one core and no GPU."""
    asked = (1, 60, "name", Path("/a"), ("true",))
    with pytest.raises(InputError, match=r"give --node-cores and --node-gpus, or set node\.cores and node\.gpus"):
        make_batch_system("pbs").script(AllocationSpec(find_site("generic-pbs"), *asked))
    node = {"cores": 64, "threads_per_core": 2, "gpus": {"count": 4, "kind": "nvidia"}}
    site = SiteProfile.model_validate({"name": "here", "batch": {"system": "pbs"}, "node": node})
    for more, line in (
        ({}, "#PBS -l select=1:ncpus=128:ngpus=4"),
        ({"node_cores": 8, "node_gpus": 0}, "#PBS -l select=1:ncpus=16"),
    ):
        assert line in make_batch_system("pbs").script(AllocationSpec(site, *asked, **more)).splitlines()


@pytest.mark.parametrize(
    ("site", "seconds", "minutes", "is_allowed"),
    [("slurm", 300, 5, False), ("slurm", 300, 6, True), ("lsf", 90, 1, False), ("pbs", 300, 5, True)],
)
def test_a_walltime_that_the_warning_fills(site: str, seconds: int, minutes: int, is_allowed: bool) -> None:
    """After the warning no trial starts; PBS sends none."""
    batch = {"system": site, "warning": {"seconds": seconds}}
    profile = SiteProfile.model_validate({"name": "here", "batch": batch})
    spec = AllocationSpec(profile, 1, minutes, "name", Path("/a"), ("true",))
    if is_allowed:
        check_shape(spec)
    else:
        with pytest.raises(InputError, match=f"--walltime 0:0{minutes}: here warns pilots {seconds} s before the end"):
            check_shape(spec)


def test_an_allocation_of_htcondor_has_one_node_and_no_queue() -> None:
    site, command = find_site("cern-htcondor"), ("true",)
    with pytest.raises(InputError, match="--nodes 2: a job of htcondor has one node"):
        check_shape(AllocationSpec(site, 2, 60, "name", Path("/a"), command))
    with pytest.raises(InputError, match="--queue workday: HTCondor has no queues"):
        make_batch_system("htcondor").script(AllocationSpec(site, 1, 60, "name", Path("/a"), command, queue="workday"))


def test_a_site_without_a_batch_system() -> None:
    with pytest.raises(InputError, match="hpo-pilot pilot"):
        make_batch_system("none")
