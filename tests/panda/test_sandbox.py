"""The sandbox: the same files give the same archive; what may not travel is refused."""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path

import pytest

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.panda.sandbox import build_sandbox, unpack_payload
from tests.archives import archive, member


@pytest.fixture
def payload(tmp_path):
    folder = tmp_path / "payload"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)")
    (folder / "sub" / "data.csv").write_text("1,2")
    script = folder / "go.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"")
    return folder


def test_what_is_packed(payload, tmp_path):
    archive = build_sandbox(payload, {"command": "true"}, tmp_path / "out")
    with tarfile.open(archive) as packed:
        modes = {member.name: member.mode for member in packed}
    names = "train.py sub/data.csv hpo_pilot_payload.json hpo_pilot_runner.py hpo_pilot_results.py hpo_pilot_ranks.py"
    names += " hpo_pilot_python.py hpo_pilot_energy.py hpo_pilot_orphans.py"
    assert modes == {"go.sh": 0o755, **dict.fromkeys(names.split(), 0o644)}


def test_the_name_is_the_content(payload, tmp_path):
    first = build_sandbox(payload, {"command": "true"}, tmp_path / "a")
    os.utime(payload / "train.py", (time.time() - 1000, time.time() - 1000))
    second = build_sandbox(payload, {"command": "true"}, tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    (payload / "train.py").write_text("print(2)")
    assert build_sandbox(payload, {"command": "true"}, tmp_path / "c").name != first.name


def test_a_folder_that_cannot_be_made_is_no_mistake_of_the_user(payload, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TryAgainError, match="cannot write the sandbox"):
        build_sandbox(payload, {"command": "true"}, tmp_path / "file" / "sandboxes")


def test_a_link_that_leads_out_is_refused(payload, tmp_path):
    (tmp_path / "secret").write_text("s")
    (payload / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leads out of the folder"):
        build_sandbox(payload, {}, tmp_path / "out")


def test_a_folder_that_may_be_listed_but_not_entered_is_refused(payload, tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)  # root may enter everything
    with pytest.raises(InputError, match=r"cannot read .*: Permission denied"):
        build_sandbox(payload, {}, tmp_path / "out")


def test_the_runner_s_names_are_taken(payload, tmp_path):
    (payload / "hpo_pilot_runner.py").write_text("evil")
    with pytest.raises(InputError, match="rename it"):
        build_sandbox(payload, {}, tmp_path / "out")
    assert not list((tmp_path / "out").glob("sources.*"))


def test_a_payload_that_is_too_large_is_refused_before_the_rest_is_read(payload, tmp_path, monkeypatch):
    monkeypatch.setattr("hpo_pilot.panda.sandbox.SIZE_LIMIT", 50_000)
    (payload / "data.bin").write_bytes(os.urandom(200_000))
    (payload / "hpo_pilot_runner.py").write_text("refused too, once it is seen")
    with pytest.raises(InputError, match=r"packs to more than .* payload\.inputs"):
        build_sandbox(payload, {}, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_the_search_file_itself_is_left_out(payload, tmp_path):
    (payload / "search.yaml").write_text("budget: {trials: 4}")
    before = build_sandbox(payload, {}, tmp_path / "out", without=payload / "search.yaml")
    (payload / "search.yaml").write_text("budget: {trials: 9}")
    assert build_sandbox(payload, {}, tmp_path / "out", without=payload / "search.yaml") == before
    with tarfile.open(before) as packed:
        assert "search.yaml" not in packed.getnames()


def test_a_search_of_several_points_a_job_has_the_series_runner(payload, tmp_path):
    document = {"command": "true", "trials_per_job": 4, "checkpoint": ["ckpt"]}
    with tarfile.open(build_sandbox(payload, document, tmp_path / "out")) as packed:
        names = {member.name for member in packed}
        started = packed.extractfile("hpo_pilot_runner.py").read()
        point = packed.extractfile("hpo_pilot_point.py").read()
    ours = {f"hpo_pilot_{name}" for name in ("runner.py", "point.py", "checkpoints.py", "payload.json")}
    assert names >= ours | {"payload/go.sh", "payload/train.py", "payload/sub/data.csv"}
    assert not {name for name in names if "/" not in name and not name.startswith("hpo_pilot_")}
    assert b"Runs several hyper-parameter points" in started and b"Runs one hyper-parameter point" in point


def test_an_archive_of_many_members_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("hpo_pilot.transformation.sandbox._MEMBERS", 10)
    (tmp_path / "many.tar.gz").write_bytes(archive(*[member(f"f{number}") for number in range(11)]))
    with pytest.raises(InputError, match=r"more than 10 members .* HPO_PILOT_UNPACKED_MB"):
        unpack_payload(str(tmp_path / "many.tar.gz"), str(tmp_path / "files"), 10_000_000)
    assert list((tmp_path / "files").iterdir()) == []
