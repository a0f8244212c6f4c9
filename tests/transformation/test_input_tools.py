"""Inputs by path, and through stand-ins for xrdcp and rucio."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpo_pilot.transformation import stage_in
from hpo_pilot.transformation.stage_in import StageIn
from tests.programs import program

from .conftest import listed, refused


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder at the front of PATH; there is nothing but what a test puts there and the shell's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "env", "cat", "sleep", "mkdir", "echo"):
        found = next(path for place in ("/bin", "/usr/bin") if (path := Path(place, name)).exists())
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_xrdcp_brings_root_urls(tools, staging, work, tmp_path):
    program(tools / "xrdcp", f'echo "$@" >> {tmp_path}/called\necho content > "$4"\n')
    url = "root://eos.example.org//eos/user/x.root"
    for folder in (work(url), work(url)):
        staging.bring(str(folder))
        assert listed(folder) == ["x.root"] and (folder / "x.root").read_text() == "content\n"
    (line,) = (tmp_path / "called").read_text().splitlines()
    assert line.startswith(f"--nopbar --force {url} {tmp_path}/cache/") and line.endswith("/x.root")


def test_rucio_brings_all_files_of_a_dataset(tools, staging, work, tmp_path):
    program(
        tools / "rucio",
        f'echo "$@" >> {tmp_path}/called\nmkdir -p "$4/sub"; echo 2 > "$4/sub/b.root"; echo 1 > "$4/a.root"\n',
    )
    (tmp_path / "extra.txt").write_text("x")
    folder = work("user.me:user.me.data.v1", str(tmp_path / "extra.txt"))
    staging.bring(str(folder))
    assert listed(folder) == ["a.root", "b.root", "extra.txt"] and (folder / "b.root").read_text() == "2\n"
    (line,) = (tmp_path / "called").read_text().splitlines()
    assert line.startswith("download --no-subdir --dir ") and line.endswith(" user.me:user.me.data.v1")


def test_datasets_that_the_pilot_brought_are_not_brought_again(tools, staging, work, tmp_path):
    (tmp_path / "extra.txt").write_text("x")
    folder = work("user.me:user.me.data.v1", str(tmp_path / "extra.txt"))
    staging.bring(str(folder), ["a.root", "b.root"])
    assert listed(folder) == ["a.root", "b.root", "extra.txt"]


def test_a_tool_that_fails_says_why(tools, staging, work, tmp_path):
    program(tools / "xrdcp", 'echo "[ERROR] no such file" >&2\nexit 54\n')
    refused(staging, work("root://h//x.root"), r"xrdcp ended with 54: \[ERROR\] no such file")
    program(tools / "rucio", "exit 0\n")
    refused(staging, work("user.me:data"), "it has no files")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_tool_that_hangs_is_ended(tools, work, tmp_path, monkeypatch):
    monkeypatch.setattr(stage_in, "PATIENCE", 2.0)
    program(tools / "xrdcp", f"echo $$ > {tmp_path}/pid\nexec sleep 600\n")
    refused(StageIn(str(tmp_path / "cache")), work("root://h//x.root"), "the download took too long")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root://h//x.root", "this worker has no xrdcp: install xrootd-client there, or"),
        ("user.me:data", "this worker has no rucio: install rucio-clients there"),
        ("s3://bucket/x", "the input s3://bucket/x: s3:// cannot be fetched"),
        ("/nowhere/gone.h5", "it is not there on"),
        ("/nowhere/*.root", "no file matches it on"),
    ],
)
def test_an_input_that_cannot_be_brought_is_for_the_infrastructure(staging, work, text, message):
    refused(staging, work(text), message)


def test_a_job_without_inputs_or_document_is_left_alone(tmp_path, staging, work):
    (tmp_path / "bare").mkdir()
    assert staging.bring(str(tmp_path / "bare")) == [] and not list((tmp_path / "bare").iterdir())
    folder = work()
    assert staging.bring(str(folder)) == []
    assert [path.name for path in folder.iterdir()] == ["hpo_pilot_payload.json"]
    assert not (tmp_path / "cache").exists()


def test_paths_are_linked_and_listed_in_their_order(tmp_path, staging, work):
    data = tmp_path / "data"
    (data / "set").mkdir(parents=True)
    for name in ("b.h5", "a.h5", "set/x"):
        (data / name).write_text(name)
    folder = work(str(data / "set"), str(data / "*.h5"))
    elsewhere = staging.bring(str(folder))
    assert listed(folder) == ["set", "a.h5", "b.h5"]
    assert (folder / "set" / "x").read_text() == "set/x" and (folder / "a.h5").read_text() == "a.h5"
    assert elsewhere == [str(data / "set"), str(data / "a.h5"), str(data / "b.h5")]


def test_names_must_differ(tmp_path, staging, work):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.h5").write_text(name)
    refused(
        staging, work(str(tmp_path / "one" / "x.h5"), str(tmp_path / "two" / "x.h5")), "two inputs have the name x.h5"
    )
    folder = work(str(tmp_path / "one" / "x.h5"))
    (folder / "x.h5").write_text("the payload's own")
    refused(staging, folder, "the payload's files and an input have the name x.h5")
    assert (folder / "x.h5").read_text() == "the payload's own"
