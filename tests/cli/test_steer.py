"""`hpo-pilot steer` as iDDS calls it: placeholders filled, files in the current folder, nothing kept in between."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from idds.common.utils import replace_parameters_with_values
from typer.testing import CliRunner

from hpo_pilot.cli.main import app
from hpo_pilot.errors import InputError
from hpo_pilot.optimizers import optimizer_names

SPACE = {
    "lr": {"method": "loguniform", "dimension": {"low": 1e-5, "high": 1, "base": 10}},
    "x": {"method": "uniform", "dimension": {"low": -1, "high": 1}},
    "y": {"method": "uniform", "dimension": {"low": -1, "high": 1}},
}

#: As in phpo's --steeringExec; the program's name is replaced by one that is surely there.
EXECUTION = "hpo-pilot steer --n=%NUM_POINTS --max=%MAX_POINTS --infile=%IN --outfile=%OUT"


def loss_of(point: dict[str, Any]) -> float:
    return (math.log10(point["lr"]) + 3) ** 2 / 4 + (point["x"] - 0.3) ** 2 + (point["y"] + 0.4) ** 2


def written(folder: Path, points: list[Any], opt_space: Any = SPACE) -> None:
    """The input file, as iDDS writes it."""
    (folder / "idds_input.json").write_text(json.dumps({"points": points, "opt_space": opt_space}))


def called(folder: Path, *options: str, count: int = 4, limit: int = 40) -> subprocess.CompletedProcess[str]:
    """The script that iDDS makes of the execution string, run in the folder that it shares with the container."""
    values = {"MAX_POINTS": limit, "NUM_POINTS": count, "IN": "idds_input.json", "OUT": "idds_output.json"}
    command = replace_parameters_with_values(EXECUTION, values).replace(
        "hpo-pilot", f"{sys.executable} -m hpo_pilot.cli", 1
    )
    script = "\n".join(["#!/bin/bash", " ".join([command, *options])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False, timeout=60, env=environment
    )


def invoked(folder: Path, *options: str) -> Any:
    """The same in this process: quicker."""
    files = ["--infile", str(folder / "idds_input.json"), "--outfile", str(folder / "idds_output.json")]
    return CliRunner().invoke(app, ["steer", *files, *options])


def steer(folder: Path, *options: str) -> list[Any]:
    into = folder / "idds_output.json"
    result = invoked(folder, *options)
    assert result.exit_code == 0, result.output
    return json.loads(into.read_text())


def test_as_idds_calls_it(tmp_path: Path) -> None:
    written(tmp_path, [[{"lr": 0.1, "x": 0, "y": 0}, 0.0], [{"lr": 0.2, "x": 0, "y": 0}, None]])
    result = called(tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    points = json.loads((tmp_path / "idds_output.json").read_text())
    assert len(points) == 4
    assert all(set(point) == set(SPACE) for point in points)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["idds_input.json", "idds_output.json"]
    again = called(tmp_path)
    assert again.returncode == 0
    assert json.loads((tmp_path / "idds_output.json").read_text()) == points


def test_at_the_end_the_list_is_empty(tmp_path: Path) -> None:
    written(tmp_path, [[{"lr": 0.1, "x": i / 10, "y": 0}, 1.0] for i in range(5)])
    assert called(tmp_path, "--optimizer", "random", limit=5).returncode == 0
    assert (tmp_path / "idds_output.json").read_text() == "[]\n"


def test_a_request_without_a_limit(tmp_path: Path) -> None:
    written(tmp_path, [])
    assert len(steer(tmp_path, "--n", "3", "--max", "None", "--optimizer", "random")) == 3


def minimum(folder: Path, optimizer: str, seed: int) -> float:
    """The best of ten iterations of four points, by the command alone."""
    points: list[Any] = []
    for _ in range(10):
        written(folder, points)
        new = steer(folder, "--n", "4", "--max", "40", "--optimizer", optimizer, "--seed", str(seed))
        assert len(new) == 4
        points += [[point, loss_of(point)] for point in new]
    assert len({json.dumps(point) for point, _ in points}) == 40
    written(folder, points)
    assert steer(folder, "--n", "4", "--max", "40", "--optimizer", optimizer, "--seed", str(seed)) == []
    return min(loss for _, loss in points)


@pytest.mark.parametrize("optimizer", sorted(set(optimizer_names()) - {"random", "grid"}))
def test_ten_iterations(tmp_path: Path, optimizer: str) -> None:
    assert minimum(tmp_path, optimizer, 0) < 0.5


def test_the_grid_is_walked_to_its_end(tmp_path: Path) -> None:
    points: list[Any] = []
    written(tmp_path, points)
    while new := steer(tmp_path, "--n", "4", "--max", "27", "--optimizer", "grid"):
        points += [[point, loss_of(point)] for point in new]
        written(tmp_path, points)
    assert len(points) == 27


def test_segmented(tmp_path: Path) -> None:
    spaces = [{"model_id": 0, "search_space": SPACE}, {"model_id": 1, "search_space": {"z": [0, 1]}}]
    written(tmp_path, [[[0, {"lr": 0.1, "x": 0, "y": 0}], 0.0], [[1, {"z": 0.5}], None]], spaces)
    points = steer(tmp_path, "--n", "4", "--max", "20", "--optimizer", "random")
    assert [identity for identity, _ in points] == [0, 0, 1, 1]
    assert set(points[-1][1]) == {"z"}


def test_options(tmp_path: Path) -> None:
    (tmp_path / "space.json").write_text(json.dumps({"z": [0, 1]}))
    words = ["steer", "--n_point", "3", "--space", str(tmp_path / "space.json"), "--optimizer", "evolutionary"]
    result = CliRunner().invoke(app, [*words, "--set", "population=4", "--mode", "max"], catch_exceptions=False)
    assert [set(point) for point in json.loads(result.stdout)] == [{"z"}] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--optimizer", "nevergrad"], "unknown optimizer 'nevergrad'"),
        (["--optimizer", "evolutionary", "--set", "populatoin=4"], "did you mean population?"),
        (["--set", "population"], "must be NAME=VALUE"),
        (["--space", "nowhere.json"], "cannot be read"),
        (["--goal", "upwards"], "Invalid value"),
    ],
)
def test_a_wrong_call_says_so_and_writes_nothing(tmp_path: Path, options: list[str], words: str) -> None:
    written(tmp_path, [])
    (tmp_path / "idds_output.json").write_text('[{"x": 1}]')  # of the call before
    result = invoked(tmp_path, "--n", "4", *options)
    said = f"{result.exception} {result.output}"
    assert isinstance(result.exception, InputError) or result.exit_code == 2
    assert words in said
    left = {path.name for path in tmp_path.iterdir()}
    # What an earlier call wrote must not be taken for this one's; a mistaken option is seen before any file is.
    assert left == {"idds_input.json"} or words == "Invalid value"


@pytest.mark.parametrize("text", ["", "{", '{"points": 5}', '{"points": [], "opt_space": {"x": 5}}'])
def test_a_wrong_file_says_so_and_writes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "idds_input.json").write_text(text)
    result = invoked(tmp_path, "--n", "4")
    assert isinstance(result.exception, InputError)
    assert "idds_input.json:" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["idds_input.json"]


def test_input_and_output_must_differ(tmp_path: Path) -> None:
    written(tmp_path, [])
    path = str(tmp_path / "idds_input.json")
    result = CliRunner().invoke(app, ["steer", "--n", "1", "-i", path, "-o", path])
    assert isinstance(result.exception, InputError) and "would be lost" in str(result.exception)
    assert Path(path).exists()
