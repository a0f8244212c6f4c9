"""`hpo-pilot sites`: the profiles that are found, one of them, and a check of a file."""

from __future__ import annotations

import json
import os

import pytest

from hpo_pilot.cli.pilots import look_first_in
from tests.cli.conftest import command, printed, refused


@pytest.fixture
def ours(folder, monkeypatch):
    """A profile of the user's own in the folder `sites`."""
    monkeypatch.setenv("HPO_PILOT_SITES", "")
    (folder / "sites").mkdir()
    file = folder / "sites" / "ours.yaml"
    file.write_text("name: ours\nnode: {cores: 2, gpus: {count: 2, kind: amd}}\n")
    return file


def test_the_list(ours):
    lines = command("--sites", str(ours.parent), "sites").stdout.splitlines()
    assert lines[0].split() == ["site", "node", "batch", "launcher", "file"]
    rows = {line.split()[0]: line for line in lines[1:]}
    assert "4608 nodes: 42 cores, 512 GB, 6 x V100 16GB, ppc64le" in rows["summit"]
    assert "2 cores, 2 x amd" in rows["ours"] and str(ours) in rows["ours"]
    found = {
        profile["name"]: profile for profile in json.loads(printed("--sites", str(ours.parent), "sites", "--json"))
    }
    assert found["ours"]["node"]["gpus"]["kind"] == "amd" and found["ours"]["file"] == str(ours)
    assert found["frontier"]["launcher"]["name"] == "srun"


def test_what_a_command_starts_finds_the_folder_too(ours):
    look_first_in(ours.parent)
    assert os.environ["HPO_PILOT_SITES"] == str(ours.parent)


def test_a_wrong_file_hides_nothing_in_the_list(ours):
    (ours.parent / "bad.yaml").write_text("name: bad\nnod: {}\n")
    said = printed("--sites", str(ours.parent), "sites")
    assert "its file is wrong" in said and "summit" in said


def test_one_is_shown(ours):
    shown = command("--sites", str(ours.parent), "sites", "show", "ours").stdout
    assert shown == f"# {ours}\n{ours.read_text()}"
    assert json.loads(printed("sites", "show", "summit", "--json"))["node"]["cores"] == 42
    assert "did you mean summit" in refused("sites", "show", "sumit")


def test_one_is_checked(ours):
    assert "site 'ours' is valid: 2 cores, 2 x amd; none" in printed("sites", "check", str(ours))
    ours.write_text("name: ours\nnode: {core: 2}\n")
    wrong = refused("sites", "check", str(ours))
    assert "ours.yaml:2:8: node.core: " in wrong and "did you mean cores" in wrong


def test_a_folder_that_is_not_there():
    assert "there is no such folder" in refused("--sites", "no", "sites")
