"""The runner reads a figure for each objective, and says which one is missing or no number."""

from __future__ import annotations

import json
import shlex

import pytest

WANTED = ["loss", "speed"]


def write(document):
    return f"echo {shlex.quote(json.dumps(document))} > output.json"


def test_all_figures_are_told(bench):
    ended = bench.run(write({"loss": 0.5, "metrics": {"speed": 7, "size": 3}}), objectives=WANTED)
    assert ended.verdict["status"] == 0
    assert (ended.verdict["value"], ended.verdict["values"]) == (0.5, [0.5, 7.0])
    assert ended.verdict["metrics"] == {"speed": 7.0, "size": 3.0}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"loss": 1}, "output.json has no key 'speed'; it has 'loss'"),
        ({"status": 0}, "output.json has no key 'loss' and no 'speed'; it has 'status'"),
        ({"loss": 1, "speed": "fast"}, "'speed' in output.json is no finite number but \"fast\""),
        (
            {"loss": None, "speed": True},
            "'loss' in output.json is no finite number but null; 'speed' in output.json is",
        ),
        (3, "output.json has no key 'speed'; it has 'loss'"),
    ],
)
def test_what_is_missing_is_named(bench, document, message):
    ended = bench.run(write(document), objectives=WANTED)
    assert ended.message.startswith(message)
    assert ended.verdict["status"] == 1
    assert ended.verdict["values"] == [None, None]
