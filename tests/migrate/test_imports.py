"""Whole files of other tools become search files that say the same; nothing is dropped silently."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError, Problem
from hpo_pilot.migrate.draft import ImportedSearch, ImportOptions
from hpo_pilot.migrate.importing import import_search
from hpo_pilot.search import EarlyStopping
from hpo_pilot.steering.search_file import load_search

Importing = Callable[..., ImportedSearch]
Refused = Callable[..., list[Problem]]

SPACE = {
    "lr": {"method": "loguniform", "dimension": {"low": 1e-5, "high": 1e-2, "base": 10}},
    "depth": {"method": "uniformint", "dimension": {"low": 1, "high": 5}},
    "act": {"method": "categorical", "dimension": {"categories": ["relu", "tanh"], "grid_search": 0}},
}

PROJECT = {
    "project_name": "tagger",
    "scripts_path": "./scripts",
    "model_config": {"script": "train.py", "model": "Tagger", "param": {}},
    "hpo_config": {
        "algorithm": "nevergrad",
        "metric": "accuracy",
        "mode": "max",
        "num_trials": 100,
        "max_concurrent": 3,
        "scheduler": "asynchyperband",
        "resource": {"cpu": 2, "gpu": 0},
        "stop": {"training_iteration": 1},
        "algorithm_param": {"method": "CMA"},
        "scheduler_param": None,
        "log_dir": None,
        "verbose": 0,
    },
    "grid_config": {
        "site": "ANY",
        "container": "docker://example.org/train:1",
        "inDS": "user.me.data/",
        "outDS": "user.${RUCIO_ACCOUNT}.hpogrid.out",
        "retry": 4,
        "extra": {"memory": 4000, "cmtConfig": "x"},
    },
    "search_space": SPACE,
}

PHPO = {
    "evaluationContainer": "docker://example.org/evaluation:1",
    "evaluationExec": "bash ./run.sh %SEGMENT_NAME",
    "evaluationMetrics": "metrics.tgz",
    "evaluationMeta": "meta.json",
    "evaluationInput": "hp.json",
    "searchSpaceFile": "space.json",
    "steeringExec": '/bin/bash -c "hpogrid generate --n_point=%NUM_POINTS -l=skopt --mode max"',
    "steeringContainer": "example.org/steering:1",
    "trainingDS": "mc23:mc23.jets/",
    "maxPoints": "20",
    "nParallelEvaluation": 3,
    "minUnevaluatedPoints": 5,
    "maxPointsPerEvaluationJob": 2,
    "checkPointToSave": "a.h5,states/",
    "architecture": "@el9#x86_64&nvidia",
    "site": "ANALY_X",
    "outDS": "user.me.tagger.v1/",
    "workingGroup": "flavour",
}


def test_a_project_of_hpogrid(importing: Importing) -> None:
    search = importing("hpogrid", PROJECT).search
    assert search.name == "tagger"
    assert search.objective.goal == "maximize"
    assert search.objective.metric == "loss"  # where hpogrid writes it, whatever its metric is called
    assert search.budget.trials == 100
    assert search.budget.parallel == 3
    assert search.optimizer.name == "cma"
    assert search.payload.container == "docker://example.org/train:1"
    assert search.payload.inputs == ("user.me:user.me.data",)
    assert search.payload.command == "hpogrid run task.json --mode idds"
    assert search.payload.file_names.metadata == "userJobMetadata.json"
    assert (search.resources.cores, search.resources.memory_mb) == (2, 4000)
    assert search.panda.attempts == 5
    assert search.to_dict()["space"]["depth"]["high"] == 5


#: The library of an hpogrid project (None: its default) -> the highest value of `uniformint` from 1 to 5 there.
HIGHEST = {None: 4, "random": 4, "tune": 4, "nevergrad": 5, "skopt": 5, "optuna": 5, "hyperopt": 5, "bohb": 5, "ax": 5}


@pytest.mark.parametrize("library", HIGHEST)
def test_integers_end_where_the_library_of_the_project_ends(
    importing: Importing, refused: Refused, library: str | None
) -> None:
    hpo = {"algorithm": library, "num_trials": 9} if library else {"num_trials": 9}
    imported = importing("hpogrid", {**PROJECT, "hpo_config": hpo})
    assert imported.search.to_dict()["space"]["depth"]["high"] == HIGHEST[library]
    assert not any(warning.path.startswith("search_space") for warning in imported.warnings)
    single = {**SPACE, "depth": {"method": "uniformint", "dimension": {"low": 3, "high": 3}}}
    project = {**PROJECT, "hpo_config": hpo, "search_space": single}
    if HIGHEST[library] == 5:
        assert importing("hpogrid", project).search.payload.point.fixed == {"depth": 3}
    else:
        assert "[low, high)" in str(refused("hpogrid", project)[0])


@pytest.mark.parametrize(("library", "named"), [(" --lib nevergrad", True), ("", False)])
def test_integers_of_a_steering_container_include_their_end(importing: Importing, library: str, named: bool) -> None:
    task = {**PHPO, "steeringExec": f"hpogrid generate{library}"}
    imported = importing("phpo", task, space__json=SPACE)
    assert imported.search.to_dict()["space"]["depth"]["high"] == 5
    assert any("names no library" in str(warning) for warning in imported.warnings) is not named


def test_what_of_a_project_has_no_meaning_is_listed_by_name(importing: Importing) -> None:
    imported = importing("hpogrid", PROJECT)
    paths = {warning.path for warning in imported.warnings}
    assert {"hpo_config.scheduler", "hpo_config.stop", "grid_config.outDS", "grid_config.extra.cmtConfig"} <= paths
    for warning in imported.warnings:
        assert warning.line
        assert len(warning.message) > 15
        assert warning.message in imported.text


@pytest.mark.parametrize(
    ("scheduler", "parameters", "settings", "noted"),
    [
        ("asynchyperband", None, {"max_steps": 100, "min_steps": 1, "eta": 4}, []),
        (
            "asynchyperband",
            {
                "max_t": 50,
                "grace_period": 5,
                "reduction_factor": 2.5,
                "brackets": 2,
                "time_attr": "epoch",
                "mode": "max",
            },
            {"max_steps": 50, "min_steps": 5, "eta": 3, "brackets": 2},
            ["reduction_factor", "time_attr"],
        ),
        ("asynchyperband", {"max_t": 5, "grace_period": 9}, {"max_steps": 5, "eta": 4}, ["grace_period"]),
        ("bohbhyperband", {"max_t": 27, "x": 1}, {"max_steps": 27, "eta": 3}, ["x"]),
        ("pbt", {"quantile_fraction": 0.3}, None, [""]),
        (None, None, None, []),
    ],
)
def test_a_scheduler_is_early_stopping(importing: Importing, scheduler, parameters, settings, noted) -> None:
    hpo = {**PROJECT["hpo_config"], "scheduler": scheduler, "scheduler_param": parameters}
    imported = importing("hpogrid", {**PROJECT, "hpo_config": {k: v for k, v in hpo.items() if v is not None}})
    expected = EarlyStopping() if settings is None else EarlyStopping(method="asha", **settings)
    assert imported.search.early_stopping == expected
    paths = [warning.path for warning in imported.warnings]
    found = [path for path in paths if path.startswith("hpo_config.scheduler_param")]
    assert found == [f"hpo_config.scheduler_param.{key}".rstrip(".") for key in noted]
    assert ("hpo_config.scheduler" in paths) == (scheduler is not None)


def test_a_script_that_is_no_model_is_run_as_a_program(tmp_path: Path, importing: Importing) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "train.py").write_text("import json\npoint = json.load(open('input.json'))\n")
    search = importing("hpogrid", PROJECT).search
    assert search.payload.command == "python train.py"
    assert search.payload.files == "scripts"
    (scripts / "train.py").write_text("class Tagger:\n    pass\n")
    assert importing("hpogrid", PROJECT).search.payload.command.startswith("hpogrid run")


def test_a_saved_project_of_hpogrid_is_sent_along_whole(tmp_path: Path) -> None:
    for folder in ("config", "scripts"):
        (tmp_path / "tagger" / folder).mkdir(parents=True)
    (tmp_path / "tagger" / "config" / "config.json").write_text(json.dumps(PROJECT))
    (tmp_path / "tagger" / "scripts" / "train.py").write_text("class Tagger: ...")
    path = tmp_path / "tagger" / "config" / "config.json"
    search = import_search("hpogrid", path, ImportOptions(tmp_path)).search
    assert search.payload.files == "tagger"
    assert search.payload.command == "hpogrid run tagger --mode idds"


def test_yaml_numbers_without_a_dot_are_numbers(importing: Importing) -> None:
    text = """\
project_name: p
scripts_path: ./scripts
model_config: {script: train.py, model: M}
hpo_config: {num_trials: 5}
grid_config: {}
search_space:
  lr: {method: loguniform, dimension: {low: 1e-5, high: 1e-2}}
"""
    search = importing("hpogrid", text, name="project.yaml").search
    assert search.to_dict()["space"]["lr"]["low"] == 1e-5
    assert search.optimizer.name == "random"  # hpogrid's default


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"hpo_config": {"num_trials": "5"}}, "hpo_config.num_trials", "must be a whole number"),
        ({"hpo_config": {"num_trials": 0}}, "hpo_config.num_trials", "1 or more"),
        ({"hpo_config": {}}, "hpo_config.num_trials", "is missing"),
        ({"hpo_config": {"num_trials": 5, "mode": "mix"}}, "hpo_config.mode", "did you mean min?"),
        ({"hpo_config": {"num_trials": 5, "algorihtm": "ax"}}, "hpo_config.algorihtm", "did you mean algorithm?"),
        ({"hpo_config": {"num_trials": 5, "stop": "{"}}, "hpo_config.stop", "not JSON"),
        ({"hpo_config": {"num_trials": 5, "resource": {"cpu": -1}}}, "hpo_config.resource.cpu", "must be 0 or more"),
        ({"grid_config": {"container": 5}}, "grid_config.container", "must be text"),
        ({"model_config": {"script": "t.py"}}, "model_config.model", "is missing"),
        ({"search_space": {"x": {"method": "uniform"}}}, "search_space.x.dimension", "is missing"),
    ],
)
def test_a_wrong_project_is_told_with_line_and_column(
    refused: Refused, change: dict[str, Any], path: str, words: str
) -> None:
    problems = refused("hpogrid", {**PROJECT, **change})
    (problem,) = (problem for problem in problems if problem.path == path)
    assert words in str(problem)
    assert problem.line is not None and problem.line > 1


def test_a_phpo_file(importing: Importing) -> None:
    imported = importing("phpo", PHPO, space__json=SPACE)
    search = imported.search
    assert search.name == "tagger-v1"
    assert search.payload.command == "bash ./run.sh %SEGMENT_NAME"
    assert search.payload.container == "docker://example.org/evaluation:1"
    names = search.payload.file_names
    assert (names.point, names.result, names.metadata, names.metrics) == (
        *("hp.json", "output.json", "meta.json", "metrics.tgz"),
    )
    assert search.payload.inputs == ("mc23:mc23.jets",)
    assert search.payload.checkpoint == ("a.h5", "states")
    assert (search.budget.trials, search.budget.parallel, search.budget.queued) == (20, 3, 2)
    assert search.resources.trials_per_job == 2
    # 30 jobs of 2 points for 20 points: each job may be tried three times.
    more = importing("phpo", {**PHPO, "maxEvaluationJobs": 30}, space__json=SPACE).search
    assert more.panda.attempts == 3
    assert search.site.queue == "ANALY_X"
    assert search.site.profile == "grid"
    assert search.site.architecture == "@el9#x86_64&nvidia"
    assert search.panda.working_group == "flavour"
    assert (search.optimizer.name, search.objective.goal) == ("bayesian", "maximize")
    assert {"steeringExec", "steeringContainer", "outDS"} <= {warning.path for warning in imported.warnings}


def test_defaults_of_phpo_are_kept(importing: Importing) -> None:
    search = importing("phpo", {"evaluationExec": "./run", "searchSpaceFile": "space.json"}, space__json=SPACE).search
    assert (search.budget.trials, search.budget.parallel) == (10, 1)


def test_a_phpo_command_line_in_a_script(importing: Importing) -> None:
    script = """\
#!/bin/bash
# submits
export X="1
2"
phpo --nParallelEvaluation 4 --maxPoints=30 --evaluationExec "python train.py --name 'a b'" \\
  --searchSpaceFile space.json --outDS user.me.`uuidgen` --steer "x" -v
"""
    search = importing("phpo", script.replace("--steer ", "--steeringExec "), name="go.sh", space__json=SPACE).search
    assert search.payload.command == "python train.py --name 'a b'"
    assert (search.budget.trials, search.budget.parallel) == (30, 4)


@pytest.mark.parametrize(
    "name", ["$(date +%s)", "$(date +'%Y %m')", "`date +%s`", '$(date +"%Y %s")', '"$(date +%s)"', "${USER}"]
)
def test_a_command_inside_a_word_of_a_script_is_a_part_of_it(importing: Importing, name: str) -> None:
    script = f"""\
# don't forget
phpo --outDS user.me.scan.{name} --maxPoints 30 \\
  --evaluationExec 'python train.py "$(ls *.py)"' --searchSpaceFile space.json
"""
    search = importing("phpo", script, name="go.sh", space__json=SPACE).search
    assert search.budget.trials == 30
    assert search.payload.command == 'python train.py "$(ls *.py)"'
    assert search.name.startswith("scan")


def test_a_script_that_phpo_would_not_take_is_named(tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_text("phpo --maxPoints 3 --nosuch 4\n")
    with pytest.raises(InputError, match=r"go\.sh: not a command of phpo: .*nosuch"):
        import_search("phpo", tmp_path / "go.sh", ImportOptions(tmp_path), [])


def test_a_wrong_option_of_a_script_is_told_with_its_line(refused: Refused) -> None:
    script = "true\nphpo --maxPoints 0 \\\n  --evaluationExec run --searchSpaceFile nowhere.json\n"
    by_path = {problem.path: problem for problem in refused("phpo", script, name="go.sh")}
    assert (by_path["maxPoints"].line, by_path["maxPoints"].column) == (2, 6)
    assert by_path["searchSpaceFile"].line == 3


@pytest.mark.parametrize("name", ["x" * 5000, "~no-such-user/space.json"])
def test_a_name_that_no_file_can_have_is_told_with_its_line(refused: Refused, name: str) -> None:
    by_path = {problem.path: problem for problem in refused("phpo", {**PHPO, "searchSpaceFile": name})}
    found = by_path["searchSpaceFile"]
    assert "cannot be a file: " in found.message and len(found.message) < 200 and found.line


def test_a_phpo_command_without_a_file(tmp_path: Path) -> None:
    (tmp_path / "space.json").write_text(json.dumps(SPACE))
    words = ["phpo", "--evaluationExec", "run", "--searchSpaceFile", str(tmp_path / "space.json"), "--maxPoints", "5"]
    assert import_search("phpo", None, ImportOptions(tmp_path), words).search.budget.trials == 5
    with pytest.raises(InputError, match="not a command of phpo"):
        import_search("phpo", None, ImportOptions(tmp_path), ["--maxPoints", "five"])
    with pytest.raises(InputError, match="no task is given"):
        import_search("phpo", None, ImportOptions(tmp_path), [])


def test_load_json_stands_above_the_command_line_as_phpo_has_it(tmp_path: Path, importing: Importing) -> None:
    (tmp_path / "base.json").write_text(json.dumps({"maxPoints": 7, "searchSpaceFile": "space.json", "nonsense": 1}))
    imported = importing(
        "phpo", "phpo --loadJson base.json --maxPoints 9 --evaluationExec run", name="go.sh", space__json=SPACE
    )
    assert imported.search.budget.trials == 7
    warnings = {warning.path: str(warning) for warning in imported.warnings}
    assert "not 9" in warnings["maxPoints"]
    assert "not an option of phpo" in warnings["nonsense"]


def test_segments_become_a_family(importing: Importing) -> None:
    segments = [{"name": "arm", "files": ["f1", "f3"]}, {"name": "leg", "datasets": ["mc23.legs"]}]
    task = {**PHPO, "segmentSpecFile": "seg.json"}
    search = importing("phpo", task, space__json=SPACE, seg__json=segments).search
    family = search.by_segment()
    assert [one.name for one in family.values()] == ["tagger-v1-arm", "tagger-v1-leg"]
    assert family["arm"].payload.inputs == ("mc23:f1", "mc23:f3")
    assert family["leg"].payload.inputs == ("mc23:mc23.legs",)
    assert family["leg"].segment == "leg"


def test_segments_may_have_spaces_of_their_own(importing: Importing, refused: Refused) -> None:
    segments = [{"name": "arm"}, {"name": "leg"}]
    other = {**SPACE, "depth": {"method": "uniformint", "dimension": {"low": 1, "high": 9}}}
    spaces = [{"model_id": 1, "search_space": other}, {"model_id": 0, "search_space": SPACE}]
    task = {**PHPO, "segmentSpecFile": "seg.json"}
    family = importing("phpo", task, space__json=spaces, seg__json=segments).search.by_segment()
    assert family["arm"].to_dict()["space"]["depth"]["high"] == 5
    assert family["leg"].to_dict()["space"]["depth"]["high"] == 9
    assert "2 segments and 1 search" not in str(refused("phpo", PHPO, space__json=spaces))
    assert "needs segments" in str(refused("phpo", PHPO, space__json=spaces)[0])
    three = [*spaces, {"model_id": 2, "search_space": SPACE}]
    assert "2 segments and 3 search spaces" in str(refused("phpo", task, space__json=three, seg__json=segments)[0])


REQUEST = {
    "method": "nevergrad",
    "sandbox": None,
    "max_points": 20,
    "num_points_per_generation": 10,
    "opt_space": {
        "A": {"type": "Choice", "params": {"choices": [1, 4]}},
        "B": {"type": "Scalar", "bounds": [0, 5]},
        "C": {"type": "Array", "params": {"shape": [2]}, "bounds": [0, 1]},
    },
    "initial_points": [
        [{"A": 1, "B": 2, "C": [0.5, 0.25]}, 0.0],
        [{"A": 1, "B": 3, "C": [0, 1]}, None],
        [{"A": 2, "B": 3, "C": [0, 1]}, 1.5],
    ],
}


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_idds_request(importing: Importing, wrapped: bool) -> None:
    document = {"requester": "panda", "request_metadata": REQUEST} if wrapped else REQUEST
    imported = importing("idds", document)
    search = imported.search
    assert search.optimizer.name == "evolutionary"
    assert search.budget.trials == 20
    assert [(known.point, known.value) for known in search.known] == [
        ({"A": 1, "B": 2.0, "C_1": 0.5, "C_2": 0.25}, 0.0)  # zero is a result
    ]
    assert list(search.start) == [{"A": 1, "B": 3.0, "C_1": 0.0, "C_2": 1.0}]
    assert search.payload.point.payload_point(search.start[0])["C"] == [0.0, 1.0]
    texts = "\n".join(map(str, imported.warnings))
    assert "initial_points[2]" in texts
    assert "num_points_per_generation" in texts
    assert "payload.command is a guess" in texts


def test_bounds_of_the_bayesian_method_are_real(importing: Importing) -> None:
    request = {"method": "bayesian", "opt_space": {"A": [1, 4], "B": [1, 10]}, "max_points": 5}
    search = importing("idds", request).search
    assert search.optimizer.name == "bayesian"
    assert {d.type for d in search.space_dimensions.values()} == {"real"}


def test_a_wrong_request(refused: Refused) -> None:
    by_path = {p.path: p for p in refused("idds", {"max_pionts": 5, "opt_space": {"A": {"type": "Choic"}}})}
    assert "did you mean max_points?" in str(by_path["max_pionts"])
    assert by_path["opt_space.A.type"].line == 5
    assert "nothing to search" in str(refused("idds", {"method": "nevergrad"})[0])


def test_what_is_written_is_a_search_file_and_says_where_things_came_from(tmp_path: Path, importing: Importing) -> None:
    imported = importing("phpo", PHPO, space__json=SPACE)
    (tmp_path / "search.yaml").write_text(imported.text)
    assert load_search(tmp_path / "search.yaml") == imported.search
    assert "# maxPoints" in imported.text
    assert "task.json" in imported.text.splitlines()[0]


def test_options_of_the_user_replace_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps(REQUEST))
    options = ImportOptions(tmp_path, name="mine", command="./go", payload=tmp_path / "code")
    search = import_search("idds", tmp_path / "request.json", options).search
    assert (search.name, search.payload.command, search.payload.files) == ("mine", "./go", "code")


@pytest.mark.parametrize("tool", ["hpogrid", "phpo", "idds", "optuna"])
def test_what_is_no_file_of_the_tool(tmp_path: Path, tool: str) -> None:
    for name, content in (("empty.json", ""), ("list.json", "[1]"), ("open.json", '{"a": ['), ("text.yaml", "hello")):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError):
            import_search(tool, tmp_path / name, ImportOptions(tmp_path))
    with pytest.raises(InputError, match="no importer" if tool == "optuna" else "cannot be read"):
        import_search(tool, tmp_path / "nowhere.json", ImportOptions(tmp_path))
