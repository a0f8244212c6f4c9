"""hpogrid's own code beside ours: the spaces that both accept, and our results in its report."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.spaces import HPOGRID_METHODS, read_space
from hpo_pilot.report.exports import as_hpogrid_report
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.steering.search_file import parse_search
from tests.made import made_fold, made_trial

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
    method = draw(st.sampled_from([*(method for method in HPOGRID_METHODS if method != "fixed"), "unifrom"]))
    needed, optional = HPOGRID_METHODS.get(method, (("low",), ()))
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


@settings(max_examples=300)
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
    for index, method in enumerate(
        draw(st.lists(st.sampled_from([m for m in HPOGRID_METHODS if m != "fixed"]), min_size=1))
    ):
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
        needed, optional = HPOGRID_METHODS[method]
        space[f"p{index}"] = {"method": method, "dimension": {key: dimension[key] for key in (*needed, *optional)}}
    return space


@settings(max_examples=150)
@given(valid_spaces())
def test_we_accept_what_hpogrid_accepts(space: dict[str, Any]) -> None:
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
    read_space(file, (), space)
    # Rounding to q may leave each parameter one value: hpogrid takes it, and there is nothing to search.
    assert {problem.message for problem in file.problems} <= {"has no parameter with more than one value"}


def trial(number: int, value: float | None, **more: Any) -> Trial:
    begun = datetime(2026, 5, 1, 12, 0, number, tzinfo=UTC)
    state = TrialState.FAILED if value is None else TrialState.FINISHED
    times = {"submitted": begun, "started": begun, "ended": begun + timedelta(seconds=3)}
    folds = (made_fold(0, value, seconds=2.5),)
    point = {"x": number / 10, **more}
    return made_trial(number=number, generation=1, point=point, state=state, value=value, folds=folds, **times)


def test_hpogrids_report_reads_our_results(tmp_path: Path) -> None:
    from hpogrid.components import HPOReport
    from hpogrid.components.validation import validate_job_metadata

    text = "search: s\nobjective: {metric: auc, goal: maximize}\nspace:\n  x: {type: real, low: 0, high: 1}\n"
    text += "  y: {type: integer, low: 0, high: 9}\npayload: {command: run, point: {fixed: {epochs: 5}}}\n"
    search = parse_search(text, "s.yaml")
    trials = [trial(1, 0.5, y=1), trial(2, None, y=2), trial(3, 0.75, y=3), trial(4, 0.25, y=4)]
    report = "".join(as_hpogrid_report(search, trials))
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
    document = json.loads("".join(as_hpogrid_report(search, [])))
    assert validate_job_metadata(document)
    assert len(document) == 11
    assert document["best_config"] is None
    assert document["hyperparameters"] == ["x"]
