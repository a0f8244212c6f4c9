"""`payload.inputs` and `payload.file_names`: what is refused before anything is submitted."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.search.payload import absolute_inputs
from hpo_pilot.steering.search_file import examine

from .conftest import GOOD


@pytest.fixture
def payload(folder):
    """Checks `GOOD` with further lines of the payload."""

    def check(lines, profile="local", more=""):
        text = GOOD.replace("  command: python train.py\n", f"  command: python train.py\n  {lines}\n") + more
        (folder / "search.yaml").write_text(text.replace("profile: local, queue: LOCAL", f"profile: {profile}"))
        return examine(folder / "search.yaml")

    return check


def test_inputs_of_every_kind_are_good(folder, payload):
    (folder / "data").mkdir()
    (folder / "data" / "a.h5").write_text("")
    found = payload("inputs: [data/a.h5, data, data/*.h5, 'https://h/b.csv', 'root://h//c.root', 'user.me:set']")
    assert (found.problems, found.notes) == ((), ())


@pytest.mark.parametrize(
    ("line", "place", "message", "hint"),
    [
        ("inputs: [gone.h5]", "inputs[0]", "there is no such file: ", "a relative path starts at this file"),
        ("inputs: ['data/*.root']", "inputs[0]", "no file matches ", "a relative path starts"),
        ("inputs: ['s3://b/x']", "inputs[0]", "s3:// cannot be fetched", "give a path, an http, https or root URL"),
        ("inputs: ['http://me:geheim@h/x']", "inputs[0]", "contains a user name or password", ""),
        ("inputs: ['http://h/a.csv', 'http://i/a.csv']", "inputs[1]", "has the name of inputs[0]: a.csv", "rename"),
        ("inputs: ['http://h/input.json']", "inputs[0]", "input.json is the payload's own file", "rename one"),
        ("inputs: ['http://h/payload.log']", "inputs[0]", "payload.log is a file of hpo-pilot's own", "rename one"),
        ("inputs: ['http://h/hpo_pilot_x']", "inputs[0]", "hpo_pilot_x has a name like those of", "rename one"),
        ("inputs: ['http://h/train.py']", "inputs[0]", "train.py is in digits too", "rename one"),
        ("file_names: {point: output.json}", "file_names.result", "output.json is the point file already", ""),
        ("file_names: {metadata: m.json, metrics: m.json}", "file_names.metrics", "m.json is the metadata file", ""),
        ("file_names: {result: progress.jsonl}", "file_names.result", "a file of hpo-pilot's own", ""),
        ("file_names: {progress: job.json}", "file_names.progress", "job.json is a file of hpo-pilot's own", ""),
        ("file_names: {result: userJobMetadata.json}", "file_names.result", "a file of hpo-pilot's own", ""),
        ("file_names: {point: ../x.json}", "file_names.point", "must be a plain file name", ""),
    ],
)
def test_names_that_cannot_be(payload, line, place, message, hint):
    (problem,) = payload(line).problems
    assert (problem.path, problem.line) == (f"payload.{place}", 19)
    assert message in problem.message and hint in problem.suggestion
    assert "geheim" not in str(problem)


def test_the_payload_may_call_its_metadata_as_panda_does(payload):
    assert payload("file_names: {metadata: userJobMetadata.json}").problems == ()


def test_a_missing_path_is_a_note_if_the_jobs_run_elsewhere(payload):
    found = payload("inputs: [/data/x.h5]", profile="grid")
    assert found.problems == ()
    assert [note.message for note in found.notes] == ["there is no such file: /data/x.h5 on this machine"]


def test_the_inputs_of_a_segment_are_checked(payload):
    (problem,) = payload("", more="segments: {low: {inputs: [gone.h5]}, high: {}}\n").problems
    assert problem.path == "segments.low.inputs[0]"


def test_workers_get_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    inputs = ["data/x", "/y", "~/z", "file:///w", "http://h/u", "user.me:v", "d/*.h5"]
    found = absolute_inputs(inputs, tmp_path)
    assert found == [f"{tmp_path}/data/x", "/y", "/home/me/z", "/w", "http://h/u", "user.me:v", f"{tmp_path}/d/*.h5"]
    assert absolute_inputs(["/y", "http://h/u"], None) == ["/y", "http://h/u"]
    for text in ("data/x", "~/z"):
        with pytest.raises(InputError, match="is a relative path"):
            absolute_inputs([text], None)
