"""Searches as files of other tools: they say the same, and hpogrid's own validator accepts what we write."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_pilot.config import parse_search
from hpo_pilot.config.foreign import ExportOptions, ImportOptions, export_search, import_search
from hpo_pilot.config.foreign.foreign_file import ForeignFile
from hpo_pilot.config.foreign.hpogrid_report import as_hpogrid_report
from hpo_pilot.config.foreign.hpogrid_space import METHODS
from hpo_pilot.config.foreign.spaces import read_space
from hpo_pilot.errors import InputError
from hpo_pilot.search import FoldResult, Search, Trial, TrialState

SEARCH = """\
search: tagger
objective: {metric: auc, goal: maximize}
space:
  lr: {type: real, low: 1e-5, high: 0.01, scale: log}
  dropout: {type: real, low: 0, high: 0.5}
  q: {type: real, low: 0.1, high: 0.5, step: 0.1}
  depth: {type: integer, low: 1, high: 4}
  width: {type: integer, low: 16, high: 512, scale: log}
  batch: {type: integer, low: 32, high: 128, step: 32}
  act: {type: categorical, choices: [relu, tanh]}
  net: {type: categorical, choices: [small, large]}
  w1: {type: real, low: 0, high: 1}
  w2: {type: real, low: 0, high: 2}
start: [{lr: 1e-3, dropout: 0, q: 0.1, depth: 2, width: 64, batch: 32, act: relu, net: small, w1: 0, w2: 0}]
known:
  - value: 0.0
    point: {lr: 1e-4, dropout: 0, q: 0.1, depth: 2, width: 64, batch: 32, act: relu, net: large, w1: 1, w2: 0}
optimizer: {name: evolutionary, population: 8}
budget: {trials: 30, parallel: 4, hours: 5}
payload:
  files: code
  command: python train.py
  container: docker://example.org/x:1
  inputs: ["mc23:jets"]
  checkpoint: [state.pt]
  outputs: [model.pt]
  file_names: {point: hp.json, metadata: meta.json}
  point: {fixed: {epochs: 5}, arrays: {w: [w1, w2]}, values: {net: {large: {layers: [8, 8]}}}}
seed: 3
"""


@pytest.fixture
def search() -> Search:
    return parse_search(SEARCH, "search.yaml")


def reread(tool: str, search: Search, folder: Path) -> Search:
    exported = export_search(tool, search, ExportOptions(stem="task", owner="me"))
    for name, text in {"task.json": exported.text, **exported.companions}.items():
        (folder / name).write_text(text)
    return import_search(tool, folder / "task.json", ImportOptions(folder)).search


def test_phpo_and_back(search: Search, tmp_path: Path) -> None:
    back = reread("phpo", search, tmp_path)
    assert back.name == search.name
    assert back.optimizer.name == "evolutionary"
    assert back.objective.goal == "maximize"
    assert back.payload.command == search.payload.command
    assert back.payload.file_names == search.payload.file_names
    assert back.payload.inputs == search.payload.inputs
    assert back.payload.checkpoint == search.payload.checkpoint
    assert back.budget.trials == 30
    point = dict(search.start[0])
    payload_point = search.payload.point.payload_point(search.space.canonical(point))
    # The payload gets what it got: lists, constants and nested choices included.
    again = back.payload.point.payload_point(back.space.canonical(back.payload.point.search_point(payload_point)))
    assert again == payload_point
    assert again["w"] == [0.0, 0.0]
    assert again["epochs"] == 5
    same = {name for name in search.space.names if name in back.space.names}
    assert {"lr", "dropout", "q", "depth", "width", "batch"} <= same
    for name in ("lr", "dropout", "depth", "width"):
        assert back.space_dimensions[name] == search.space_dimensions[name]


def test_hpogrid_and_back(search: Search, tmp_path: Path) -> None:
    back = reread("hpogrid", search, tmp_path)
    assert back.budget.trials == 30
    assert back.objective.goal == "maximize"
    assert back.optimizer.name == "evolutionary"
    assert back.payload.container == search.payload.container
    for name in ("lr", "dropout", "depth", "width", "w1"):
        assert back.space_dimensions[name] == search.space_dimensions[name]


def test_idds_and_back(search: Search, tmp_path: Path) -> None:
    back = reread("idds", search, tmp_path)
    assert back.optimizer.name == "evolutionary"
    (known,) = back.known
    assert known.value == 0.0
    shape, other = search.payload.point, back.payload.point
    assert other.payload_point(known.point) == shape.payload_point(search.space.canonical(search.known[0].point))
    (start,) = back.start
    assert other.payload_point(start)["w"] == [0.0, 0.0]
    assert back.budget.trials == 31  # the known one was counted by iDDS too


def test_results_go_into_a_request(search: Search) -> None:
    point = {**search.start[0], "depth": 3}
    exported = export_search("idds", search, ExportOptions(results=[(point, 0.75)]))
    points = json.loads(exported.text)["initial_points"]
    assert [loss for _, loss in points] == [0.0, 0.75, None]
    assert points[1][0]["depth"] == 3


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (
            "hpogrid",
            ["budget.hours", "start", "known", "payload.outputs", "payload.point.arrays.w", "optimizer.population"],
        ),
        ("phpo", ["budget.hours", "start", "known", "payload.outputs", "payload.files"]),
        ("idds", ["budget.hours", "payload:"]),
    ],
)
def test_what_another_tool_has_nothing_like_is_listed(search: Search, tool: str, expected: list[str]) -> None:
    warnings = export_search(tool, search, ExportOptions()).warnings
    for place in expected:
        assert any(warning.startswith(place) for warning in warnings), (place, warnings)


def test_conditions_and_constraints_are_not_dropped_silently() -> None:
    text = (
        "search: s\nspace: {a: {type: categorical, choices: [x, y]}, b: {type: real, low: 0, high: 1, when: {a: x}}}\n"
        "constraints: ['b < 1']\npayload: {command: run}\n"
    )
    for tool in ("hpogrid", "phpo", "idds"):
        warnings = "\n".join(export_search(tool, parse_search(text, "s.yaml"), ExportOptions()).warnings)
        assert "space.b.when" in warnings
        assert "constraints" in warnings


def test_segments_are_written_for_phpo(search: Search, tmp_path: Path) -> None:
    family = Search.model_validate({**search.to_dict(), "segments": {"arm": {"inputs": ["mc23:f1"]}, "leg": {}}})
    back = reread("phpo", family, tmp_path)
    assert back.segments is not None
    assert list(back.segments) == ["arm", "leg"]
    assert back.segments["arm"].inputs == ("mc23:f1",)


def test_there_is_no_other_tool(search: Search) -> None:
    with pytest.raises(InputError, match="no exporter"):
        export_search("optuna", search, ExportOptions())


def test_the_function_for_hpogrid_runs_the_command(tmp_path: Path) -> None:
    text = "search: s\nobjective: {metric: auc}\nspace: {x: [0, 1]}\npayload: {command: run}\n"
    search = parse_search(text.replace("[0, 1]", "{type: real, low: 0, high: 1}"), "s.yaml")
    payload = search.payload.model_copy(update={"command": "python3 train.py"})
    exported = export_search("hpogrid", search.model_copy(update={"payload": payload}), ExportOptions())
    (tmp_path / "train.py").write_text(
        "import json; p = json.load(open('input.json')); json.dump({'auc': p['x'] * 2}, open('output.json', 'w'))"
    )
    path = tmp_path / "hpo_pilot_payload.py"
    path.write_text(exported.companions["hpo_pilot_payload.py"])
    module: dict[str, Any] = {"__file__": str(path), "__name__": "payload"}
    exec(compile(path.read_text(), str(path), "exec"), module)  # noqa: S102  it is what hpogrid does with it
    reported: dict[str, float] = {}
    module["evaluate"]({"x": 0.25}, lambda **figures: reported.update(figures))
    assert reported == {"auc": 0.5}
    assert not (tmp_path / "output.json").exists()  # points side by side do not meet


# --- hpogrid's own code ---

numbers = st.one_of(
    st.integers(-50, 50), st.floats(-50, 50, allow_nan=False), st.sampled_from(["1e-5", None, True, []])
)
positive = st.one_of(st.integers(1, 50), st.floats(0.001, 50, allow_nan=False))
arguments = {
    **dict.fromkeys(("low", "high", "mu"), numbers),
    **dict.fromkeys(("q", "sigma", "base"), st.one_of(positive, numbers)),
    "categories": st.one_of(
        st.lists(
            st.one_of(st.integers(), st.text(max_size=5), st.booleans(), st.none(), st.lists(st.integers())), max_size=4
        ),
        st.just("a,b"),
    ),
    "grid_search": st.sampled_from([0, 1, "yes"]),
    "value": st.integers(),
}


@st.composite
def hpogrid_spaces(draw: st.DrawFn) -> dict[str, Any]:
    """Spaces of one parameter, right or wrong in some way."""
    method = draw(st.sampled_from([*(method for method in METHODS if method != "fixed"), "unifrom"]))
    needed, optional = METHODS.get(method, (("low",), ()))
    dimension = {key: draw(arguments[key]) for key in needed if draw(st.integers(0, 9))}
    dimension |= {key: draw(arguments[key]) for key in optional if draw(st.booleans())}
    entry: dict[str, Any] = {"method": method, "dimension": dimension}
    if not draw(st.integers(0, 19)):
        entry.pop(draw(st.sampled_from(list(entry))))
    return {"x": entry, "y": {"method": "uniform", "dimension": {"low": 0, "high": 1}}}


def hpogrid_accepts(space: dict[str, Any]) -> bool:
    from hpogrid.configuration import SearchSpaceConfiguration

    try:
        SearchSpaceConfiguration.validate(space)
    except (ValueError, RuntimeError):
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(hpogrid_spaces())
def test_we_accept_only_what_hpogrid_accepts(space: dict[str, Any]) -> None:
    file = ForeignFile.of(space, "space", Path())
    read_space(file, (), space)
    if not file.problems:
        assert hpogrid_accepts(space)
    elif hpogrid_accepts(space):
        # hpogrid looks at types; bounds the wrong way round and the like it finds in the job.
        words = "swap the two|above 0|0 or more|no multiple|is empty|low, high|logarithm|beyond|too small|not true"
        assert any(word in str(problem) for problem in file.problems for word in words.split("|")), file.problems


@st.composite
def valid_spaces(draw: st.DrawFn) -> dict[str, Any]:
    """Spaces of all methods, all right."""
    space: dict[str, Any] = {}
    for index, method in enumerate(draw(st.lists(st.sampled_from([m for m in METHODS if m != "fixed"]), min_size=1))):
        low = draw(st.integers(1, 20))
        dimension = {
            "low": low,
            "high": low + draw(st.integers(5, 50)),
            "q": draw(st.sampled_from([1, 2, 0.5])),
            "base": draw(st.sampled_from([2, 2.718281828, 10])),
            "mu": draw(st.integers(0, 3)),  # below that, all values of a log-normal parameter may be less than q
            "sigma": draw(st.sampled_from([0.5, 1, 1.5])),  # beyond, q may be too small beside the largest values
            "categories": draw(st.lists(st.integers(), min_size=2, unique=True)),
            "grid_search": 0,
        }
        needed, optional = METHODS[method]
        space[f"p{index}"] = {"method": method, "dimension": {key: dimension[key] for key in (*needed, *optional)}}
    return space


@settings(max_examples=150, deadline=None)
@given(valid_spaces())
def test_we_accept_what_hpogrid_accepts_and_it_accepts_what_we_make_of_it(space: dict[str, Any]) -> None:
    assert hpogrid_accepts(space)
    project = {
        "project_name": "p",
        "scripts_path": ".",
        "model_config": {"script": "t.py", "model": "M"},
        "hpo_config": {"num_trials": 5},
        "grid_config": {},
        "search_space": space,
    }
    file = ForeignFile.of(project, "p.json", Path())
    found = read_space(file, (), space)
    # Rounding to q may leave each parameter one value: hpogrid takes it, and there is nothing to search.
    assert {problem.message for problem in file.problems} <= {"has no parameter with more than one value"}
    if found.dimensions:
        search = Search.model_validate(
            {
                "search": "s",
                "space": found.dimensions,
                "payload": {"command": "run", "point": found.shape.model_dump()},
            }
        )
        _validate(json.loads(export_search("hpogrid", search, ExportOptions()).text))


def _validate(project: dict[str, Any]) -> None:
    from hpogrid.configuration import ProjectConfiguration

    ProjectConfiguration.validate(project)


def test_hpogrids_validator_accepts_a_whole_project_of_ours(search: Search) -> None:
    _validate(json.loads(export_search("hpogrid", search, ExportOptions()).text))


def trial(number: int, value: float | None, **more: Any) -> Trial:
    begun = datetime(2026, 5, 1, 12, 0, number, tzinfo=UTC)
    state = TrialState.FAILED if value is None else TrialState.FINISHED
    point = {"x": number / 10, **more}
    fold = FoldResult(0, value, seconds=2.5)
    ended = begun + timedelta(seconds=3)
    return Trial(number, 1, point, state, value, folds=(fold,), submitted=begun, started=begun, ended=ended)


def test_hpogrids_report_reads_our_results(tmp_path: Path) -> None:
    from hpogrid.components import HPOReport
    from hpogrid.components.validation import validate_job_metadata

    text = "search: s\nobjective: {metric: auc, goal: maximize}\nspace:\n  x: {type: real, low: 0, high: 1}\n"
    text += "  y: {type: integer, low: 0, high: 9}\npayload: {command: run, point: {fixed: {epochs: 5}}}\n"
    search = parse_search(text, "s.yaml")
    trials = [trial(1, 0.5, y=1), trial(2, None, y=2), trial(3, 0.75, y=3), trial(4, 0.25, y=4)]
    report = as_hpogrid_report(search, trials)
    document = json.loads(report)
    assert validate_job_metadata(document)
    assert document["best_config"] == {"x": 0.3, "y": 3, "epochs": 5}
    assert document["best_metric_score"] == 0.75
    assert list(document["result"]) == ["0", "1", "2"]
    assert document["result"]["1"]["time_s"] == 2.5
    assert document["start_datetime"] == "05/01/2026, 12:00:01"
    assert document["task_time_s"] == 6.0
    path = tmp_path / "report.json"
    path.write_text(report)
    table = HPOReport.from_json(str(path), verbose=False).to_dataframe()
    assert list(table["auc"]) == [0.75, 0.5, 0.25]  # its order: best first
    assert set(table.columns) == {"x", "y", "epochs", "auc"}


def test_a_report_without_results_has_every_key() -> None:
    from hpogrid.components.validation import validate_job_metadata

    search = parse_search("search: s\nspace: {x: {type: real, low: 0, high: 1}}\npayload: {command: run}\n", "s.yaml")
    document = json.loads(as_hpogrid_report(search, []))
    assert validate_job_metadata(document)
    assert len(document) == 11
    assert document["best_config"] is None
    assert document["hyperparameters"] == ["x"]
