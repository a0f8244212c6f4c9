from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpo_pilot.cli.main import app
from hpo_pilot.errors import InputError
from hpo_pilot.hpc.site_files import SiteFileError


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPO_PILOT_SITES", "")
    folder = tmp_path / "sites"
    folder.mkdir()
    (folder / "ours.yaml").write_text("name: ours\nnode: {cores: 2, gpus: {count: 2, kind: amd}}\n")
    return folder


def run(*words: str) -> str:
    done = CliRunner().invoke(app, [*words])
    if isinstance(done.exception, SiteFileError | InputError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_list(sites: Path) -> None:
    lines = run("--sites", str(sites), "sites").splitlines()
    assert lines[0].split() == ["site", "node", "batch", "launcher", "file"]
    rows = {line.split()[0]: line for line in lines[1:]}
    assert "4608 nodes: 42 cores, 512 GB, 6 x V100 16GB, ppc64le" in rows["summit"]
    assert "2 cores, 2 x amd" in rows["ours"] and str(sites / "ours.yaml") in rows["ours"]
    assert os.environ["HPO_PILOT_SITES"] == str(sites)  # what the command starts finds them too


def test_the_list_as_json(sites: Path) -> None:
    found = {profile["name"]: profile for profile in json.loads(run("--sites", str(sites), "sites", "--json"))}
    assert found["ours"]["node"]["gpus"]["kind"] == "amd"
    assert found["ours"]["file"] == str(sites / "ours.yaml")
    assert found["frontier"]["launcher"]["name"] == "srun"


def test_a_wrong_file_hides_nothing_in_the_list(sites: Path) -> None:
    (sites / "bad.yaml").write_text("name: bad\nnod: {}\n")
    said = run("--sites", str(sites), "sites")
    assert "its file is wrong" in said and "summit" in said


def test_one_is_shown(sites: Path) -> None:
    said = run("--sites", str(sites), "sites", "show", "ours")
    assert said == f"# {sites / 'ours.yaml'}\n{(sites / 'ours.yaml').read_text()}"
    assert json.loads(run("sites", "show", "summit", "--json"))["node"]["cores"] == 42
    with pytest.raises(InputError, match="did you mean summit"):
        run("sites", "show", "sumit")


def test_one_is_checked(sites: Path) -> None:
    assert "site 'ours' is valid: 2 cores, 2 x amd; none" in run("sites", "check", str(sites / "ours.yaml"))
    (sites / "ours.yaml").write_text("name: ours\nnode: {core: 2}\n")
    with pytest.raises(SiteFileError, match=r"ours\.yaml:2:8: node\.core: .* did you mean cores"):
        run("sites", "check", str(sites / "ours.yaml"))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        run("--sites", str(tmp_path / "no"), "sites")
