"""Parameters in a payload's command: which braces are parameters, and what `validate` says of the others."""

from __future__ import annotations

import re

import pytest

from hpo_pilot.search import Search
from hpo_pilot.search.command import filled_command, placeholders
from hpo_pilot.steering.search_file import examine

from .conftest import GOOD

ALL = "--lr {learning_rate} {--layers=:layers} --width {width} --solver {solver} {--momentum:momentum}"


@pytest.fixture
def said(folder):
    """Returns the errors and the notes of a command."""

    def find(command: str) -> tuple[list[str], list[str]]:
        indented = "|-\n    python train.py " + command.replace("\n", "\n    ")
        (folder / "search.yaml").write_text(GOOD.replace("python train.py", indented))
        found = examine(folder / "search.yaml")
        assert all(p.path == "payload.command" and p.line == 18 for p in (*found.problems, *found.notes))
        return tuple([f"{p.message} — {p.suggestion}" for p in all_] for all_ in (found.problems, found.notes))

    return find


@pytest.mark.parametrize(
    "command",
    [
        *(ALL, "{hydra}", "--x {{learning_rate}}", "{hydra} # don't\n--y {hydra}"),
        *("${HOME} {a,b} {1..3} {}", "awk '{print}'", "awk '{print $1}' \"${x:-{y}}\"", "f() { echo; }; f"),
        "find . -exec echo {} \\; --format '{{.Name}}'",
    ],
)
def test_nothing_to_say(said, command):
    assert said(command) == ([], [])


#: (command, part of the message, part of the remedy)
WRONG = [
    ("{learning_rat}", "learning_rat is not a parameter", "mean {learning_rate}? {{learning_rat}} is the text"),
    ("{Layers}", "Layers is not a parameter", "{layers}"),
    ("{ layers }", "is not written as a parameter", "{layers}"),
    ("{layers:d}", "is not written as a parameter", "{layers}"),
    ("{layers!r}", "is not written as a parameter", "{--layers:layers}"),
    ("{layers:--layers}", "is not written as a parameter", "{--layers:layers}"),
    ("{--layers: layers}", "is not written as a parameter", "{--layers:layers}"),
    ("{--layers}", "names no parameter", "as in {--layers:"),
    ("{--layers:}", "names no parameter", "as in {--layers:"),
    ("{--layers:layer}", "layer is not a parameter", "layers"),
    ("{--depth:depth}", "depth is not a parameter", "did you mean"),
    ("{--all:hydra}", "has no flag", "{hydra}"),
    ("{momentum}", "not in every point", "{--momentum:momentum}"),
    ("--x '{layers}'", "is in quotes", "close the quotes"),
    ('--x "lr={layers}"', "is in quotes", "{{layers}}"),
    ("sh -c 'train {hydra}'", "is in quotes", "close the quotes"),
    ("{hyrda}", "hyrda is not a parameter", "{hydra}"),
]

DOUBTFUL = [
    ("{epochs}", "epochs is not a parameter", "{{epochs}} is the text"),
    ("'{layer}'", "layer is not a parameter", "{layers}"),
    ("${layers}", "is a variable of the shell", "{layers}"),
    ("--lr {learning_rate}", "layers, width, solver and momentum", "input.json"),
]


@pytest.mark.parametrize(("command", "message", "remedy"), WRONG)
def test_errors(said, command, message, remedy):
    (found, *_), _ = said(command)
    assert message in found and remedy in found.partition(" — ")[2]


@pytest.mark.parametrize(("command", "message", "remedy"), DOUBTFUL)
def test_notes(said, command, message, remedy):
    errors, (found, *_) = said(command)
    assert errors == [] and message in found and remedy in found.partition(" — ")[2]


def test_a_parameter_that_cannot_be_a_key_of_hydra(folder):
    (folder / "search.yaml").write_text(GOOD.replace("  width:", "  a b: {type: integer, low: 1, high: 2}\n  width:"))
    text = (folder / "search.yaml").read_text().replace("train.py", "train.py {hydra}").replace("start:", "#")
    (folder / "search.yaml").write_text(text)
    (found,) = examine(folder / "search.yaml").problems
    assert "a b cannot be a key of Hydra" in found.message


def test_a_command_without_parameters_has_no_pattern():
    assert placeholders("python train.py ${layers} {print} {a,b}", ["layers"]) is None
    pattern = placeholders("{layers} {a b}", ["layers", "a b"])
    assert [found[0] for found in re.finditer(pattern, "{layers} {a b} ${layers} {{x}} {x}")] == [
        *("{layers}", "{a b}", "{{x}}")
    ]


@pytest.mark.parametrize(
    ("command", "filled"),
    [
        ("train --lr {x} {--kind=:kind} {{x}} %FOLD/%FOLDS", "train --lr 0.5 --kind='a b;$(id)' {x} 1/3"),
        ("train {hydra}", "train x=0.5 'kind='\"'\"'a b;$(id)'\"'\"''"),
        ("train {--momentum:momentum}", "train "),
        ("python train.py ${x}", "python train.py ${x}"),
    ],
)
def test_the_filled_command_is_that_of_the_runner(command, filled):
    space = {
        "x": {"type": "real", "low": 0, "high": 1},
        "kind": {"type": "categorical", "choices": ["a b;$(id)", "c"]},
        "momentum": {"type": "real", "low": 0, "high": 1, "when": {"kind": "c"}},
    }
    search = Search.model_validate({"search": "s", "space": space, "folds": 3, "payload": {"command": command}})
    assert filled_command(search, {"x": 0.5, "kind": "a b;$(id)"}, fold=1) == filled
