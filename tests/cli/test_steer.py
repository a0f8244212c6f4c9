"""`hpo-pilot steer` as iDDS calls it: placeholders filled, files in the current folder, nothing kept in between.

Which points it gives: tests/migrate/test_steering.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from idds.common.utils import replace_parameters_with_values

from tests.cli.conftest import command, printed, refused

SPACE = {
    "lr": {"method": "loguniform", "dimension": {"low": 1e-5, "high": 1, "base": 10}},
    "x": {"method": "uniform", "dimension": {"low": -1, "high": 1}},
}
#: As in phpo's --steeringExec; the program's name is replaced by one that is surely there.
EXECUTION = "hpo-pilot steer --n=%NUM_POINTS --max=%MAX_POINTS --infile=%IN --outfile=%OUT"
FILES = ["--infile", "idds_input.json", "--outfile", "idds_output.json"]


def write(points: list[Any]) -> None:
    """The input file, as iDDS writes it."""
    Path("idds_input.json").write_text(json.dumps({"points": points, "opt_space": SPACE}))


def steered() -> list[Any]:
    return json.loads(Path("idds_output.json").read_text())


def test_as_idds_calls_it(folder: Path) -> None:
    """The script that iDDS makes of the execution string, in the folder that it shares with the container."""
    write([[{"lr": 0.1, "x": 0}, 0.0], [{"lr": 0.2, "x": 0}, None]])
    values = {"MAX_POINTS": 40, "NUM_POINTS": 4, "IN": "idds_input.json", "OUT": "idds_output.json"}
    script = replace_parameters_with_values(EXECUTION, values)
    script = script.replace("hpo-pilot", f"{sys.executable} -m hpo_pilot.cli", 1)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        ["bash", "-c", f"#!/bin/bash\n{script}"], capture_output=True, text=True, check=False, env=environment
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert [set(point) for point in steered()] == [set(SPACE)] * 4
    assert sorted(path.name for path in folder.iterdir()) == ["idds_input.json", "idds_output.json"]


def test_at_the_end_the_list_is_empty() -> None:
    write([[{"lr": 0.1, "x": i / 10}, 1.0] for i in range(5)])
    command("steer", "--n", "4", "--max", "5", "--optimizer", "random", *FILES)
    assert Path("idds_output.json").read_text() == "[]\n"


def test_a_request_without_a_limit() -> None:
    write([])
    command("steer", "--n", "3", "--max", "None", "--optimizer", "random", *FILES)
    assert len(steered()) == 3


def test_options() -> None:
    Path("space.json").write_text(json.dumps({"z": [0, 1]}))
    words = ["--n_point", "3", "--space", "space.json", "--optimizer", "evolutionary", "--set", "population=4"]
    assert [set(point) for point in json.loads(printed("steer", *words, "--mode", "max"))] == [{"z"}] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--optimizer", "nevergrad"], "unknown optimizer 'nevergrad'"),
        (["--optimizer", "evolutionary", "--set", "populatoin=4"], "did you mean population?"),
        (["--set", "population"], "expected name=value"),
        (["--space", "nowhere.json"], "cannot be read"),
        (["--goal", "upwards"], "Invalid value"),
    ],
)
def test_a_wrong_call_says_so_and_writes_nothing(folder: Path, options: list[str], words: str) -> None:
    write([])
    (folder / "idds_output.json").write_text('[{"x": 1}]')  # of the call before
    assert words in refused("steer", *FILES, "--n", "4", *options)
    left = {path.name for path in folder.iterdir()}
    # What an earlier call wrote must not be taken for this one's; a mistaken option is seen before any file is.
    assert left == {"idds_input.json"} or words == "Invalid value"


@pytest.mark.parametrize("text", ["", "{", '{"points": 5}', '{"points": [], "opt_space": {"x": 5}}'])
def test_a_wrong_file_says_so_and_writes_nothing(folder: Path, text: str) -> None:
    (folder / "idds_input.json").write_text(text)
    assert "idds_input.json:" in refused("steer", *FILES, "--n", "4")
    assert [path.name for path in folder.iterdir()] == ["idds_input.json"]


def test_input_and_output_must_differ() -> None:
    write([])
    assert "would be lost" in refused("steer", "--n", "1", "-i", "idds_input.json", "-o", "idds_input.json")
    assert Path("idds_input.json").exists()
