"""Overrides of Hydra as a search space, and the return value of a task function as the figure of merit."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hydra")
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from hpo_pilot.errors import InputError
from hpo_pilot.operations.hydra_sweep import space_of

PLUGIN = Path(__file__).parents[2] / "hydra_plugins" / "hpo_pilot_sweeper.py"

DOMAINS = {
    "interval(1e-4,0.1)": {"type": "real", "low": 1e-4, "high": 0.1},
    "interval(1,5)": {"type": "real", "low": 1.0, "high": 5.0},
    "int(interval(1,5))": {"type": "integer", "low": 1, "high": 5},
    "tag(log,interval(1e-4,0.1))": {"type": "real", "low": 1e-4, "high": 0.1, "scale": "log"},
    "tag(log,int(interval(1,512)))": {"type": "integer", "low": 1, "high": 512, "scale": "log"},
    "range(1,5)": {"type": "integer", "low": 1, "high": 4, "step": 1},
    "range(9,1,-3)": {"type": "integer", "low": 3, "high": 9, "step": 3},
    "shuffle(range(3))": {"type": "integer", "low": 0, "high": 2, "step": 1},
    "range(1,2)": {"type": "ordinal", "choices": [1]},
    "range(0,0.3,0.1)": {"type": "ordinal", "choices": [0.0, 0.1, 0.2]},
    "adam,sgd": {"type": "categorical", "choices": ["adam", "sgd"]},
    "'1',1,null,true,a b": {"type": "categorical", "choices": ["1", 1, None, True, "a b"]},
    "tag(ordered,choice(16,32))": {"type": "ordinal", "choices": [16, 32]},
}


def space(*overrides: str):
    return space_of(OverridesParser.create().parse_overrides(list(overrides)))


@pytest.mark.parametrize("override", DOMAINS)
def test_domains(override: str) -> None:
    assert space(f"+model.x={override}", "a@b=[1,2]", "~c") == ({"+model.x": DOMAINS[override]}, ["a@b=[1,2]", "~c"])


def test_the_last_override_of_a_key_counts() -> None:
    assert space("x=1,2", "y=1,2", "z=1", "x=3", "z=4,5")[1] == ["x=3"]


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("interval(1,1)", "smaller bound first"),
        ("tag(log,interval(0,1))", "remove the tag"),
        ("tag(ordered,interval(0,1))", "only the tag log"),
        ("tag(log,range(1,3))", "remove it"),
        ("tag(log,choice(1,2))", "only the tag ordered"),
        ("range(5,1)", "stop"),
        ("range(0,1,1e-9)", "interval"),
        ("[1],[2]", "config group"),
        ("{a:1},{a:2}", "config group"),
        ("${lr},2", "config group"),
        ("1,2,1", "remove one"),
        ("1", "such as"),
    ],
)
def test_overrides_that_cannot_be_searched(override: str, remedy: str) -> None:
    with pytest.raises(InputError, match=remedy) as error:
        space(f"x={override}", *(["y=[1],[2]"] if override != "1" else []))
    assert override == "1" or {line.split("=")[0] for line in str(error.value).splitlines()} == {"x", "y"}


@pytest.mark.parametrize(
    ("returned", "output"),
    [
        (np.float32(0.5), {"value": 0.5}),
        ((1, 2), {"value_1": 1.0, "value_2": 2.0}),
        ([3], {"value": 3.0}),
        ({"value": 1, "metrics": {"a": 2}}, {"value": 1, "metrics": {"a": 2}}),
        ({"value": np.float32(0.5)}, {"value": 0.5}),
        (OmegaConf.create({"value": 0.5, "metrics": {"a": 2}}), {"value": 0.5, "metrics": {"a": 2}}),
        ({"value": np.zeros(2)}, 1),
        (None, 1),
        (ValueError("no"), None),
    ],
)
def test_return_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returned: object, output: object) -> None:
    spec = importlib.util.spec_from_file_location("hpo_pilot_sweeper", PLUGIN)
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    monkeypatch.chdir(tmp_path)
    file = plugin.ResultFile()
    monkeypatch.chdir("/")
    ended = JobStatus.FAILED if isinstance(returned, Exception) else JobStatus.COMPLETED
    file.on_job_end(None, JobReturn(_return_value=returned, status=ended))
    found = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert [one["status"] if output == 1 else one for one in found] == ([] if output is None else [output])
