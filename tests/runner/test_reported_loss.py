"""A payload that reports its loss to the server through iDDS's REST instead of writing a result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answering import answering


class Points:
    """Answers of the server in their order, the last one again and again, and the paths that were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[tuple[int, Any]] = [(200, [{"id": 2, "parameters": {}, "loss": 0.0}])]
        self.env = {"PanDA_TaskID": "17"}

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        status, content = self.answers[min(len(self.asked), len(self.answers)) - 1]
        return status, content.encode() if isinstance(content, str) else json.dumps(content).encode()


@pytest.fixture
def points():
    made = Points()
    with answering(made.answer) as url:
        made.env["HPO_PILOT_IDDS_URL"] = f"{url}/points/secret-1/idds"
        yield made


def test_the_reported_loss_is_the_value(bench, points):
    """The payload sees its own point alone, and the address is kept nowhere."""
    own = '"t${HPO_PILOT_TRIAL}f${HPO_PILOT_FOLD}/idds"'
    ended = bench.run(f'test "${{HPO_PILOT_IDDS_URL#*/points/*/}}" = {own}', env=points.env, metric="accuracy")
    assert (ended.code, ended.verdict["value"], ended.message) == (0, 0.0, "")
    trial, fold = ended.verdict["trial"], ended.verdict["fold"]
    assert points.asked == [f"/points/secret-1/t{trial}f{fold}/idds/hpo/17/null/null/null/1"]
    for path in ended.folder.iterdir():
        assert not path.is_file() or b"secret-1" not in path.read_bytes(), path


NONE = "no usable output.json: none was written"


@pytest.mark.parametrize(
    ("command", "answers", "value", "message", "asked"),
    [
        ("echo '{\"loss\": 3.5}' > output.json", [], 3.5, "", 0),
        ("exit 3", [], None, "exit code 3", 0),
        ("true", [(200, [])], None, NONE, 1),
        ("true", [(200, [{"id": 2, "parameters": {}, "loss": None}])], None, NONE, 1),
        ("true", [(403, {"msg": "this address is no running job's"})], None, NONE, 1),
        ("true", [(404, {"msg": "no points"})], None, NONE, 1),
        ("true", [(503, "later"), (200, "half an ans"), (200, [{"loss": 0.0}])], 0.0, "", 3),
    ],
)
def test_answers_of_the_server(bench, points, command, answers, value, message, asked):
    points.answers = answers or points.answers
    ended = bench.run(command, env=points.env)
    assert (ended.code, ended.verdict["value"], len(points.asked)) == (0, value, asked)
    assert message in ended.message


def test_without_an_answer_the_job_fails_and_not_the_trial(bench, monkeypatch):
    """Not a verdict: what the payload reported is at the server."""
    from hpo_pilot.runner import hpo_pilot_results

    monkeypatch.setattr(hpo_pilot_results, "PATIENCE", 1.0)
    with pytest.raises(SystemExit, match="cannot ask the server for the payload's loss"):
        hpo_pilot_results.reported_loss("http://127.0.0.1:9/points/x/idds", "17")
