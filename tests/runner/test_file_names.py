"""Payloads that have other names for their files, and other habits."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hpo_pilot.runner import hpo_pilot_runner
from hpo_pilot.runner.hpo_pilot_results import own_metadata

NAMES = {
    "point": "hp.json",
    "result": "result.json",
    "inputs": "data.json",
    "metadata": "meta.json",
    "metrics": "m.tgz",
}

PHPO = """
import json
point = json.load(open("hp.json"))
assert json.load(open("data.json")) == ["a.h5", "b.h5"]
json.dump({"status": 0, "loss": point["x"], "message": ""}, open("result.json", "w"))
json.dump({"epochs": 3, "curve": [0.5, float("nan"), 1e999], "hpo_pilot": "not ours"}, open("meta.json", "w"))
open("m.tgz", "w").write("metrics")
"""


def metadata(ended):
    return json.loads((ended.folder / "userJobMetadata.json").read_text())


def test_a_payload_with_names_of_its_own(bench):
    ended = bench.run(
        f"{sys.executable} -I -S train.py",
        files={"train.py": PHPO, "hpo_pilot_inputs.json": '["a.h5", "b.h5"]', "result.json": '{"loss": 9}'},
        file_names=NAMES,
        inputs=["user.me:set"],
        outputs=["m.tgz"],
    )
    assert ended.verdict["value"] == 0.25 and ended.verdict["outputs"] == ["m.tgz"]
    assert metadata(ended) == {"epochs": 3, "curve": [0.5, None, None], "hpo_pilot": ended.verdict}
    assert not (ended.folder / "input.json").exists()


def test_messages_use_the_payloads_names(bench):
    assert bench.run("true", file_names=NAMES).message == "no usable result.json: none was written"


@pytest.mark.parametrize("metadata_name", ["meta.json", "userJobMetadata.json"])
def test_metadata_is_kept_of_trials_that_fail_too(bench, metadata_name):
    command = f"echo '{{\"layers\": 3}}' > {metadata_name}; exit 1"
    ended = bench.run(command, file_names={"metadata": metadata_name})
    assert ended.verdict["status"] == 1 and metadata(ended)["layers"] == 3


@pytest.mark.parametrize(
    ("write", "why"),
    [
        ("true", "meta.json is not kept: none was written"),
        ("echo '[1]' > meta.json", "no object of at most 0.25 MB"),
        ("echo '{' > meta.json", "meta.json is not kept: Expecting"),
        ("mkdir meta.json", "no plain file of at most 0.25 MB"),
        ("""printf '{"a": "%0300000d"}' 1 > meta.json""", "no plain file of at most 0.25 MB"),
        ("""python3 -c "print('{\\"a\\": \\"' + 'é' * 100000 + '\\"}')" > meta.json""", "no object of at most 0.25 MB"),
        ("head -c 200000 /dev/zero | tr '\\0' '[' > meta.json", "meta.json is not kept: "),
    ],
)
def test_metadata_that_cannot_be_kept_is_explained(tmp_path, monkeypatch, write, why):
    monkeypatch.chdir(tmp_path)
    subprocess.run(["/bin/sh", "-c", write], check=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    own, unkept = own_metadata("meta.json", hpo_pilot_runner.written, hpo_pilot_runner.number)
    assert own == {} and why in unkept


def test_metadata_that_cannot_be_kept_does_not_fail_the_trial(bench):
    ended = bench.run("""echo '{"status": 0, "loss": 1}' > output.json""", file_names={"metadata": "meta.json"})
    assert ended.verdict["value"] == 1 and ended.message == "meta.json is not kept: none was written"
    assert list(metadata(ended)) == ["hpo_pilot"]


def test_a_segments_name_is_in_command_and_environment(bench):
    ended = bench.run('echo %SEGMENT_NAME "$HPO_PILOT_SEGMENT" > said', segment="eta 1; rm -rf $HOME 'x'")
    assert (ended.folder / "said").read_text() == "eta 1; rm -rf $HOME 'x' eta 1; rm -rf $HOME 'x'\n"
    assert json.loads((ended.folder / "job.json").read_text())["segment"] == "eta 1; rm -rf $HOME 'x'"
    plain = bench.run("echo %SEGMENT_NAME > said; env > env")
    assert (plain.folder / "said").read_text() == "%SEGMENT_NAME\n" and "SEGMENT" not in (
        plain.folder / "env"
    ).read_text()


def test_without_staged_inputs_the_list_has_what_the_search_named(bench):
    ended = bench.run("cp input_ds.json said", inputs=["http://h/a.csv"])
    assert json.loads((ended.folder / "said").read_text()) == ["http://h/a.csv"]


def test_figures_of_several_objectives(bench):
    document = json.dumps({"loss": 0.5, "metrics": {"speed": 7, "size": 3}})
    verdict = bench.run(f"echo '{document}' > output.json", objectives=["loss", "speed"]).verdict
    assert (verdict["status"], verdict["value"], verdict["values"]) == (0, 0.5, [0.5, 7.0])
    assert verdict["metrics"] == {"speed": 7.0, "size": 3.0}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"loss": 1}, "output.json has no key 'speed'; it has 'loss'"),
        ({"status": 0}, "output.json has no key 'loss' and no 'speed'; it has 'status'"),
        (
            {"loss": None, "speed": True},
            "'loss' in output.json is no finite number but null; 'speed' in output.json is",
        ),
        (3, "output.json has no key 'speed'; it has 'loss'"),
    ],
)
def test_an_objective_that_is_missing_is_named(judged, document, message):
    values, _, why = judged(f"echo '{json.dumps(document)}' > output.json", "loss", "speed")
    assert why.startswith(message) and values == [None, None]
