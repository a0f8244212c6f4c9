"""The words that a training gets from a command with parameters."""

from __future__ import annotations

import json
import sys

import pytest

from hpo_pilot.runner.hpo_pilot_command import hydra
from hpo_pilot.search.command import placeholders
from tests.runner.conftest import encoded

POINT = {
    "lr": 1e-5,
    "n": 2,
    "text": 'it\'s $(x) "é" `y` %FOLD\n{n} \\',
    "empty": "",
    "on": True,
    "off": False,
    "l": [1, "a b"],
}
NAMES = [*POINT, "inactive"]
SHOW = f"{sys.executable} show.py "
FILES = {"show.py": "import json, sys; json.dump({'loss': 1, 'message': sys.argv[1:]}, open('output.json', 'w'))"}


def words(bench, command: str, **options) -> list[str]:
    ended = bench.run(
        SHOW + command,
        task=encoded([[7, 0, 11]], {"7": POINT}),
        number=1,
        files=FILES,
        placeholders=placeholders(SHOW + command, NAMES),
        **options,
    )
    where = ended.folder / "t7f0" if options.get("series") else ended.folder
    return json.loads((where / "output.json").read_text())["message"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("--lr {lr} n={n} {l}", ["--lr", "1e-05", "n=2", '[1, "a b"]']),
        ("{text} {empty} x{text}", [POINT["text"], "", "x" + POINT["text"]]),
        ("{--on:on} {--off:off} {-n:n} {--t=:text} {--i:inactive}", ["--on", "-n", "2", "--t=" + POINT["text"]]),
        ("{{n}} '{x}' \\{n} x${n} {n},{n}", ["{n}", "{x}", "{n}", "x", "2,2"]),
        ("%FOLD {on} {off}", ["0", "true", "false"]),
    ],
)
def test_each_parameter_is_one_word(bench, command, expected):
    assert words(bench, command) == expected


def test_a_variable_of_the_environment(bench):
    text = 'N={n} T={text} sh -c \'exec "$@" "$N" "$T"\' - ' + SHOW
    ended = bench.run(
        text, task=encoded([[7, 0, 11]], {"7": POINT}), number=1, files=FILES, placeholders=placeholders(text, NAMES)
    )
    assert json.loads((ended.folder / "output.json").read_text())["message"] == ["2", POINT["text"]]


def test_a_launcher_gets_the_same_words(bench, monkeypatch):
    monkeypatch.setitem(FILES, "hpo_pilot_launch.json", json.dumps({"before": ["env", "RANK=0"], "name": "x"}))
    assert words(bench, "{text} {--n:n}") == [POINT["text"], "--n", "2"]


def test_all_parameters_for_hydra(bench):
    assert words(bench, "{hydra}")[:2] == ["lr=1e-05", "n=2"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01, "0.01"),
        (True, "true"),
        (None, "null"),
        ("adam", "adam"),
        ("a-b/c.d", "a-b/c.d"),
        *(
            (text, f"'{text}'")
            for text in ("", "10", "true", "Null", "1e5", "a,b", "[1]", "a=b:c{d}", "x y", "é", "a\\b")
        ),
        ("it's", r"'it\'s'"),
        ("end\\", r"'end\\'"),
        ("q\\'x", r"'q\\\'x'"),
        ("${a}", r"'\${a}'"),
        ("\\${a}", r"'\\\${a}'"),
        (["a b", 1, {"k": None}], "['a b',1,{k:null}]"),
    ],
)
def test_the_grammar_of_hydra(value, text):
    """Each was read back with Hydra 1.3.2 as the same value."""
    assert hydra(value) == text
