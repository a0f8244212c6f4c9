"""`payload.result` and `payload.progress`: the training's own output instead of output.json and progress.jsonl."""

from __future__ import annotations

import pytest

from hpo_pilot.steering.registration import payload_document
from hpo_pilot.steering.search_file import load_search

from .conftest import GOOD

COMMAND = "  command: python train.py\n"

#: (value of the key, path below it, part of the message, part of the remedy)
WRONG = [
    ("result: metrics.json", "", "must be a mapping", "as in {file: metrics.json, key: val.loss}"),
    ("result: {}", "", "needs a file or stdout", "{file: metrics.json, key: val.loss}"),
    ("result: {key: loss}", "", "needs a file or stdout", "as in"),
    ("result: {fiel: m.json, key: loss}", ".fiel", "is not a key", "did you mean file?"),
    ("result: {file: m.json, key: loss, step: epoch}", ".step", "is not a key", "there is"),
    ("result: {file: m.json, stdout: 'a=(.)'}", "", "one of the two", "as in"),
    ("result: {file: m.json}", ".file", "needs a key (JSON) or a column (CSV)", "as in"),
    ("result: {file: m.csv, column: a, key: b}", ".file", "needs a key (JSON) or a column (CSV)", "as in"),
    ("result: {file: /tmp/m.json, key: a}", ".file", "inside the job's folder", "no '/'"),
    ("result: {file: ../m.json, key: a}", ".file", "inside the job's folder", "no '..'"),
    ("result: {file: ./input.json, key: a}", ".file", "hpo-pilot's own", "another name"),
    ("result: {file: hpo_pilot_x.json, key: a}", ".file", "hpo-pilot's own", "another name"),
    ("result: {file: '', key: a}", ".file", "is empty", "leave the key out"),
    ("result: {file: 3, key: a}", ".file", "must be text", ""),
    ("result: {stdout: 'loss=(.*'}", ".stdout", "is not a regular expression", "special character"),
    ("result: {stdout: 'loss=.*'}", ".stdout", "needs one group, in parentheses", "as in loss="),
    ("result: {stdout: '(loss)=(.*)'}", ".stdout", "with the name value", "as in"),
    ("result: {stdout: 'loss=(.*)', key: loss}", ".key", "is for a file", "remove it"),
    ("result: {stdout: 'loss=(.*)'}\n  file_names: {result: r.json}", "", "in file_names.result already", "remove one"),
    ("progress: {file: m.csv, column: loss}", ".file", "needs step and column", "step: epoch"),
    ("progress: {file: m.csv, step: epoch, key: loss}", ".key", "is not a key", "there is"),
    ("progress: {stdout: 'loss=(.*)'}", ".stdout", "with the names step and value", "(?P<step>"),
    ("progress: {stdout: '(?P<step>.) (?P<loss>.)', step: e}", ".step", "is for a file", "remove it"),
    ("progress: {file: progress.jsonl, step: a, column: b}", ".file", "hpo-pilot's own", "another name"),
]


@pytest.mark.parametrize(("given", "path", "message", "remedy"), WRONG)
def test_wrong_uses(problems, given, path, message, remedy):
    place = f"payload.{given.partition(':')[0]}{path}"
    (found,) = [one for one in problems(COMMAND, f"{COMMAND}  {given}\n") if (one.path, one.line) == (place, 19)]
    assert message in found.message and remedy in found.suggestion


def test_a_function_has_no_output_to_read(problems):
    (found,) = problems(COMMAND, "  function: train:objective\n  result: {stdout: 'loss=(.*)'}\n")
    assert found.path == "payload.result" and "for a command" in found.message


def test_several_objectives_need_output_json(problems):
    text = GOOD.replace("{metric: loss, goal: minimize}", "[{metric: loss}, {metric: size}]").replace("confirm:", "#")
    (found,) = problems(text.replace(COMMAND, f"{COMMAND}  result: {{stdout: 'loss=(.*)'}}\n"))
    assert found.path == "payload.result" and "output.json" in found.suggestion


def test_the_runner_is_told(folder):
    more = "  result: {file: m.json, key: val.loss}\n  progress: {stdout: '(?P<step>.):(?P<value>.)'}\n"
    (folder / "search.yaml").write_text(GOOD.replace(COMMAND, COMMAND + more))
    document = payload_document(load_search(folder / "search.yaml"), folder)
    assert document["result"] == {"file": "m.json", "key": "val.loss"}
    assert document["progress"] == {"stdout": "(?P<step>.):(?P<value>.)"}
