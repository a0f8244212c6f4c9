"""Job scripts, word for word: `golden/` has them as they are submitted."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.allocations import PilotCommand
from hpo_pilot.hpc.batch_system import AllocationSpec, active_environment
from hpo_pilot.hpc.batch_systems import make_batch_system
from hpo_pilot.hpc.site_files import find_site
from hpo_pilot.hpc.site_profile import SiteProfile

GOLDEN = Path(__file__).parent / "golden"

#: A machine under Flux; we have no profile of one.
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
    "generic-pbs": {"nodes": 3, "minutes": 1500, "queue": "workq", "account": "proj", "proxy": "http://login1:3128"},
    # flux-batch(1), "SUBMISSION DIRECTIVES".
    "flux": {"nodes": 2, "minutes": 30, "account": "lc"},
}


def spec_for(name: str, tmp_path: Path) -> AllocationSpec:
    site = FLUX if name == "flux" else find_site(name)
    (tmp_path / "pilot.token").write_text("the-secret-itself")
    command = PilotCommand(
        "https://panda.example.org:25443",
        "GPU_QUEUE",
        tmp_path / "pilot.token",
        Path("/shared/hpo"),
        python="/venv/python",
    )
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
    spec = AllocationSpec(site, 1, 10, "name", tmp_path, show, environment=active_environment(submitting))
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


def test_a_site_without_a_batch_system() -> None:
    with pytest.raises(InputError, match="hpo-pilot pilot"):
        make_batch_system("none")
