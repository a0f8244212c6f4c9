from __future__ import annotations

import random
import shlex
import sys
from typing import Any
from unittest.mock import patch

import pytest

from hpo_pilot.transformation.job import (
    ExitCode,
    TransformationFailure,
    parse_arguments,
    parse_arguments_text,
    split_words,
)


def test_what_prun_itself_writes(tmp_path, monkeypatch):
    """The parameters of panda-client's own task, as a job gets them."""
    monkeypatch.setenv("PANDA_AUTH", "oidc")
    monkeypatch.setenv("PANDA_AUTH_VO", "wlcg")
    monkeypatch.setenv("PANDA_URL_SSL", "http://127.0.0.1:1/server/panda")
    monkeypatch.setenv("PANDA_URL", "http://127.0.0.1:1/server/panda")
    monkeypatch.setenv("PANDA_BEHIND_REAL_LB", "1")
    monkeypatch.setenv("PANDA_CONFIG_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    from pandaclient import PrunScript

    options = ["--exec", "sh run.sh 'a b' > out.txt", "--outDS", "user.me.x", "--outputs", "out.txt,*.log", "--noBuild"]
    options += ["--nJobs", "2", "--vo", "wlcg", "--site", "LOCAL", "--noEmail", "--prodSourceLabel", "user"]
    with patch.object(sys, "argv", ["prun"]):
        found = PrunScript.main(True, [*options, "--containerImage", "docker://x/y:1"], True)
    task: dict[str, Any] = next(value for value in ([found] if isinstance(found, dict) else found) if value)
    line = "".join(
        entry["value"] + ("" if entry.get("padding") is False else " ")
        for entry in task["jobParameters"]
        if entry["type"] == "constant" and not (entry.get("hidden") and entry["value"] == "__delimiter__")
    )
    line = line.replace("${SURL}", "http://127.0.0.1:1").replace("$JEDITASKID", "7").replace("${SN/P}", "000001")
    arguments = parse_arguments_text(line)
    assert arguments.command == "sh run.sh 'a b' > out.txt"
    assert sorted(arguments.outputs) == ["*.log", "out.txt"]
    assert arguments.outputs["out.txt"].endswith(".7._000001.out.txt")
    assert not arguments.warnings


def test_unknown_options_are_passed_over_with_a_warning():
    arguments = parse_arguments(
        ["--new", "thing", "-p", "ls", "--newer=3", "--newest", "-r", "d", "--useAthenaPackages"]
    )
    assert arguments.command == "ls" and arguments.run_dir == "d"
    assert [warning.split()[0] for warning in arguments.warnings] == ["--new", "--newest", "--useAthenaPackages"]


def test_forms_of_options():
    assert parse_arguments(["-pls", "--sourceURL=http://x/"]).source_url == "http://x"
    assert parse_arguments(["-p", "-l"]).command == "-l"
    assert parse_arguments(["-p", "%20-n%201", "-j", "go.sh"]).command == "go.sh  -n 1"
    assert parse_arguments(["-p", "x", "-i", "['a', 'b']"]).inputs == ("a", "b")
    assert parse_arguments(["-p", "x", "-i", "a,b"]).inputs == ("a", "b")
    assert parse_arguments(["-p", "x", "--inMap", "{'IN': ['a'], 'IN2': ['b', 'c']}"]).input_map["IN2"] == ("b", "c")
    assert parse_arguments(["-p", "x", "--containerImage", "i.sif"]).image == "i.sif"
    assert (
        parse_arguments(["--postprocess"]).step == "postprocess"
        and parse_arguments(["--preprocess", "-p", "x"]).step == "preprocess"
    )


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["-a", "x"],
        ["-p", ""],
        ["-p", "ls", "-o", "[1]"],
        ["-p", "ls", "-o", "__import__(1)"],
        ["-p", "ls", "-o", "{'a': '../b'}"],
        ["-p", "ls", "-o", "{'a': '/b'}"],
        ["-p", "ls", "-a", "../x"],
        ["-p", "ls", "-a", ".."],
        ["-p", "ls", "-r", "/tmp"],
        ["-p", "ls", "-r", "a/../../b"],
        ["-p", "ls", "-o", "(" * 5000],
    ],
    ids=str,
)
def test_invalid_parameters_are_refused(words):
    with pytest.raises(TransformationFailure, match="parameters are invalid") as caught:
        parse_arguments(words)
    assert caught.value.code is ExitCode.BAD_ARGUMENTS


def test_an_open_quote_is_refused():
    with pytest.raises(TransformationFailure, match="parameters are invalid"):
        parse_arguments_text('-p "ls')


def test_words_are_split_as_by_the_shell():
    chance = random.Random(5)
    for _ in range(5000):
        text = "".join(chance.choice("ab \"'\\\t#=-\n%é\xa0") for _ in range(chance.randint(0, 14)))
        assert _result(split_words, text) == _result(shlex.split, text), text


def _result(split: Any, text: str) -> Any:
    try:
        return split(text)
    except ValueError as error:
        return str(error)
