from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.site_files import load_site as load_profile
from hpo_pilot.pilot.settings import EndSignal, load_site
from tests.pilot.conftest import ROOT

SITES = ROOT / "deploy" / "sites"


@pytest.mark.parametrize("name", sorted(path.stem for path in SITES.glob("*.yaml")))
def test_a_profile_as_sites_show_prints_it(name, tmp_path):
    profile = load_profile(SITES / f"{name}.yaml")
    (tmp_path / "site.json").write_text(json.dumps(profile.model_dump(mode="json")))
    site = load_site(tmp_path / "site.json")
    assert (site.name, site.launcher.name, site.batch) == (name, profile.launcher.name, profile.batch.system)
    assert (site.cores, site.gpus) == (profile.node.cores or 0, profile.node.gpu_count)
    assert (site.gpu_kind, site.runtime) == (profile.node.gpu_kind, profile.containers.runtime)
    assert site.environment == profile.environment and site.job_steps == (profile.batch.job_steps or 0)


def test_what_follows_from_a_profile(tmp_path, monkeypatch):
    monkeypatch.setenv("CRAY_MPICH_DIR", "/opt/mpich")
    profile = load_profile(SITES / "frontier.yaml").model_dump(mode="json")
    profile["containers"]["mpi"] = ["$CRAY_MPICH_DIR"]
    (tmp_path / "site.json").write_text(json.dumps(profile))
    site = load_site(tmp_path / "site.json")
    assert site.warning == EndSignal(signal.SIGUSR1, 300.0) and site.close == 2
    assert site.inside(gpus=True).mpi == [Path("/opt/mpich")]
    assert [site.inside(gpus=gpus).gpu_kind for gpus in (True, False)] == ["amd", "none"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file.*hpo-pilot sites show"),
        ("name: frontier", "cannot be understood"),
        ("[]", "no site profile"),
        ({"name": "x"}, "no site profile"),
        ({"launcher": {"name": "prun"}}, "there is no launcher 'prun'"),
        ({"launcher": {}}, "'name'"),
        ({"launcher": {"name": "srun"}, "node": 5}, "node is not a mapping"),
        ({"launcher": {"name": "srun"}, "node": {"cores": "many"}}, "cannot be understood"),
        ({"launcher": {"name": "srun"}, "containers": {"runtime": "docker"}}, "no container runtime 'docker'"),
        ({"launcher": {"name": "srun"}, "batch": {"warning": {"signal": "USR7"}}}, "no signal 'USR7'"),
    ],
)
def test_a_wrong_file_is_refused(content, why, tmp_path):
    path = tmp_path / "site.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=why) as caught:
        load_site(path)
    assert str(path) in str(caught.value)
