"""`payload.inputs` and `payload.file_names`: what is refused before anything is submitted."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.search.payload import absolute_inputs
from hpo_pilot.steering.search_file import examine

from .conftest import GOOD


def payload(folder, lines, **changes):
    text = GOOD.replace("  command: python train.py\n", "  command: python train.py\n" + lines)
    for old, new in changes.items():
        text = text.replace(old, new)
    (folder / "search.yaml").write_text(text)
    return examine(folder / "search.yaml")


def test_inputs_of_every_kind_are_good(folder):
    (folder / "data").mkdir()
    (folder / "data" / "a.h5").write_text("")
    inputs = "[data/a.h5, data, data/*.h5, 'https://h/b.csv', 'root://h//c.root', 'user.me:set']"
    found = payload(folder, f"  inputs: {inputs}\n")
    assert (found.problems, found.notes) == ((), ())


@pytest.mark.parametrize(
    ("inputs", "place", "message", "hint"),
    [
        ("[gone.h5]", "payload.inputs[0]", "there is no such file: ", "a relative path starts at this file"),
        ("['data/*.root']", "payload.inputs[0]", "no file matches ", "a relative path starts"),
        ("['s3://b/x']", "payload.inputs[0]", "s3:// cannot be fetched", "give a path, an http, https or root URL"),
        (
            "['http://me:geheim@h/x']",
            "payload.inputs[0]",
            "contains a user name or password",
            "without them",
        ),
        ("['http://h/a.csv', 'http://i/a.csv']", "payload.inputs[1]", "has the name of inputs[0]: a.csv", "rename"),
        ("['http://h/input.json']", "payload.inputs[0]", "input.json is the payload's own file", "rename one"),
        ("['http://h/payload.log']", "payload.inputs[0]", "payload.log is a file of hpo-pilot's own", "rename one"),
        ("['http://h/hpo_pilot_x']", "payload.inputs[0]", "hpo_pilot_x has a name like those of", "rename one"),
        ("['http://h/train.py']", "payload.inputs[0]", "train.py is in digits too", "rename one"),
    ],
)
def test_inputs_that_cannot_be(folder, inputs, place, message, hint):
    (problem,) = payload(folder, f"  inputs: {inputs}\n").problems
    assert problem.path == place and problem.line == 19
    assert message in problem.message and hint in problem.suggestion
    assert "geheim" not in str(problem)


def test_where_pilots_may_be_elsewhere_a_missing_path_is_a_note(folder):
    found = payload(folder, "  inputs: [/data/x.h5]\n", **{"profile: local, queue: LOCAL": "profile: grid"})
    assert found.problems == ()
    (note,) = found.notes
    assert note.message == "there is no such file: /data/x.h5 on this machine"


def test_a_segments_inputs_are_looked_at_too(folder):
    text = GOOD + "segments: {low: {inputs: [gone.h5]}, high: {}}\n"
    (folder / "search.yaml").write_text(text)
    (problem,) = examine(folder / "search.yaml").problems
    assert problem.path == "segments.low.inputs[0]"


@pytest.mark.parametrize(
    ("names", "place", "message"),
    [
        ("{point: output.json}", "payload.file_names.result", "output.json is the point file already"),
        ("{metadata: m.json, metrics: m.json}", "payload.file_names.metrics", "m.json is the metadata file already"),
        ("{result: progress.jsonl}", "payload.file_names.result", "a file of hpo-pilot's own"),
        ("{progress: output.json}", "payload.file_names.progress", "output.json is the result file already"),
        ("{progress: job.json}", "payload.file_names.progress", "job.json is a file of hpo-pilot's own"),
        ("{result: job.json}", "payload.file_names.result", "job.json is a file of hpo-pilot's own"),
        ("{result: userJobMetadata.json}", "payload.file_names.result", "a file of hpo-pilot's own"),
        ("{point: ../x.json}", "payload.file_names.point", "must be a plain file name"),
    ],
)
def test_file_names_that_cannot_be(folder, names, place, message):
    (problem,) = payload(folder, f"  file_names: {names}\n").problems
    assert problem.path == place and message in problem.message


def test_the_payload_may_call_its_metadata_as_panda_does(folder):
    assert payload(folder, "  file_names: {metadata: userJobMetadata.json}\n").problems == ()


def test_more_points_a_job_than_are_out_are_noted(folder):
    found = payload(folder, "", **{"minutes: 10": "minutes: 10, trials_per_job: 20"})
    assert found.problems == ()
    (note,) = found.notes
    assert note.path == "resources.trials_per_job" and "at most 8 trials" in note.message


def test_workers_are_told_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    inputs = ["data/x", "/y", "~/z", "file:///w", "http://h/u", "user.me:v", "d/*.h5"]
    found = absolute_inputs(inputs, tmp_path)
    assert found == [f"{tmp_path}/data/x", "/y", "/home/me/z", "/w", "http://h/u", "user.me:v", f"{tmp_path}/d/*.h5"]
    assert absolute_inputs(["/y", "http://h/u"], None) == ["/y", "http://h/u"]
    for text in ("data/x", "~/z"):
        with pytest.raises(InputError, match="is a relative path"):
            absolute_inputs([text], None)
