"""Sweeps of Weights & Biases and Experiments of Katib become searches that say the same."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpo_pilot.errors import InputError, Problem
from hpo_pilot.migrate.draft import ImportedSearch, ImportOptions
from hpo_pilot.migrate.importing import import_search
from hpo_pilot.migrate.sweeps import SWEEPS
from hpo_pilot.runner.hpo_pilot_command import fill
from hpo_pilot.search.command import placeholders

Importing = Callable[..., ImportedSearch]
Refused = Callable[..., list[Problem]]

WANDB: dict[str, Any] = yaml.safe_load("""
program: my train.py
method: bayes
metric: {name: val/loss, goal: minimize}
parameters:
  lr: {distribution: log_uniform_values, min: 0.0001, max: 0.1}
  flag: {values: [true, false]}
  act: {values: [re lu, tanh]}
  n: {value: 3}
run_cap: 20
early_terminate: {type: hyperband, s: 2, eta: 3, max_iter: 27}
project: tagger
""")
KATIB: dict[str, Any] = yaml.safe_load("""
apiVersion: kubeflow.org/v1beta1
kind: Experiment
metadata: {name: tagger}
spec:
  objective: {type: maximize, goal: 0.99, objectiveMetricName: accuracy}
  algorithm: {algorithmName: tpe}
  earlyStopping: {algorithmName: medianstop, algorithmSettings: [{name: start_step, value: "2"}]}
  maxTrialCount: 12
  maxFailedTrialCount: 3
  parameters:
    - {name: lr, parameterType: double, feasibleSpace: {min: "0.01", max: "0.05"}}
    - {name: opt, parameterType: categorical, feasibleSpace: {list: [sgd, adam]}}
  trialTemplate:
    primaryContainerName: main
    trialParameters: [{name: rate, reference: lr}, {name: opt, reference: opt}]
    trialSpec:
      kind: Job
      spec: {template: {spec: {containers: [{name: main, image: "example.org/train:1",
        command: [python3, train.py, --log=/katib/log.json, "--lr=${trialParameters.rate}"],
        resources: {limits: {cpu: 500m, memory: 1Gi, nvidia.com/gpu: 2, fpga: 1}}}]}}}
""")
LOGGED = {"path": "/katib/log.json"}
DOCUMENTS = {"wandb": WANDB, "katib": KATIB}


def with_katib(**spec: Any) -> dict[str, Any]:
    return {**KATIB, "spec": {**KATIB["spec"], **spec}}


def paths(imported: ImportedSearch) -> set[str]:
    return {warning.path for warning in imported.warnings}


def words(imported: ImportedSearch, **point: Any) -> list[str]:
    """The words that the training gets at a point."""
    payload = imported.search.payload
    full = payload.point.payload_point(point)
    return shlex.split(fill(payload.command, placeholders(payload.command, list(full)) or "(?!)()()()", full))


def test_a_sweep_of_wandb(importing: Importing) -> None:
    imported = importing("wandb", WANDB)
    search = imported.search
    assert (search.objective.metric, search.objective.goal) == ("val/loss", "minimize")
    assert (search.optimizer.name, search.budget.trials) == ("bayesian", 20)
    stopping = search.early_stopping
    assert (stopping.method, stopping.eta, stopping.min_steps, stopping.max_steps) == ("asha", 3, 3, 27)
    given = words(imported, lr=0.01, flag="True", act="re lu")
    assert given == ["WANDB_MODE=offline", "python", "my train.py", "--lr=0.01", "--flag=True", "--act=re lu", "--n=3"]
    pattern = search.payload.result.stdout
    for line, value in (
        ("val/loss: 0.25 - x: 1", "0.25"),
        ("{'val/loss': -1e-3, 'x': 1}", "-1e-3"),
        ("x/val/loss=1", 0),
    ):
        assert (found[1] if (found := re.search(pattern, line)) else 0) == value
    assert paths(imported) == {"metric", "early_terminate", "project"}


@pytest.mark.parametrize(
    ("macro", "given"),
    [
        ("${args_no_boolean_flags}", ["--lr=0.01", "--flag"]),
        ("${args_no_hyphens}", ["lr=0.01", "flag=True"]),
        ("${args_no_equals}", ["--lr", "0.01", "--flag", "True"]),
        ("--file=${args_json_file}", ["--file=input.json"]),
        ("${envvar:HOME}/it's", ["$HOME/it's"]),
        ("${other}", ["${other}"]),
    ],
)
def test_macros_of_a_command(importing: Importing, macro: str, given: list[str]) -> None:
    parameters = {key: WANDB["parameters"][key] for key in ("lr", "flag")}
    document = {**WANDB, "parameters": parameters, "command": ["${env}", "${interpreter}", "${program}", macro]}
    imported = importing("wandb", document)
    is_text = "True" in imported.search.space_dimensions["flag"].choices
    assert words(imported, lr=0.01, flag="True" if is_text else True)[3:] == given
    assert ("command" in paths(imported)) == ("args" not in macro)


PARAMETERS = """
wandb | min: 0.0, max: 1.0 | type: real, low: 0.0, high: 1.0
wandb | min: 1, max: 4 | type: integer, low: 1, high: 4
wandb | distribution: log_uniform, min: -2, max: 0 | type: real, low: 0.135335283237, high: 1.0, scale: log
wandb | distribution: inv_log_uniform, min: 0, max: 2 | type: real, low: 0.135335283237, high: 1.0, scale: log
wandb | distribution: q_uniform, min: 0, max: 1, q: 0.25 | type: real, low: 0, high: 1, step: 0.25
wandb | distribution: q_log_uniform_values, min: 1, max: 4 | type: integer, low: 1, high: 4, scale: log
wandb | distribution: normal, mu: 0.5, sigma: 0.5 | type: real, low: -1.0, high: 2.0
wandb | values: [0.3, 0.1, 0.2] | type: ordinal, choices: [0.1, 0.2, 0.3]
katib | parameterType: double, feasibleSpace: {min: "0", max: "1", step: "0.5"} | type: real, low: 0, step: 0.5
katib | parameterType: int, feasibleSpace: {min: "1", max: "4", distribution: logUniform} | type: integer, scale: log
katib | parameterType: discrete, feasibleSpace: {list: ["8", "1", "2"]} | type: ordinal, choices: [1, 2, 8]
"""


@pytest.mark.parametrize("line", PARAMETERS.strip().splitlines())
def test_parameters(importing: Importing, line: str) -> None:
    tool, entry, expected = line.split(" | ")
    entry, expected = yaml.safe_load(f"{{{entry}}}"), {"scale": "linear", **yaml.safe_load(f"{{{expected}}}")}
    document = copy.deepcopy(DOCUMENTS[tool])
    if tool == "katib":
        document["spec"]["parameters"][1] = {"name": "x", **entry}
    else:
        document["parameters"]["x"] = entry
    found = {"scale": "linear", **importing(tool, document).search.to_dict()["space"]["x"]}
    assert {key: found[key] for key in expected} == expected


def test_a_grid_ends_with_its_last_point(importing: Importing) -> None:
    sweep = {
        **WANDB,
        "method": "grid",
        "run_cap": None,
        "parameters": {"a": {"values": [1, 5]}, "b": {"min": 1, "max": 3}},
    }
    assert importing("wandb", sweep).search.budget.trials == 6


def test_an_experiment_of_katib(importing: Importing) -> None:
    imported = importing("katib", KATIB)
    search = imported.search
    assert (search.name, search.optimizer.name, search.objective.goal) == ("tagger", "bayesian", "maximize")
    assert (search.budget.trials, search.budget.parallel, search.budget.failures) == (12, 3, 3)
    stopping = search.early_stopping
    assert (stopping.method, stopping.warmup_trials, stopping.warmup_steps) == ("median", 3, 2)
    assert words(imported, lr=0.02, opt="sgd") == ["python3", "train.py", "--log=/katib/log.json", "--lr=0.02"]
    assert search.payload.container == "docker://example.org/train:1"
    assert (search.resources.cores, search.resources.memory_mb, search.resources.gpus_per_node) == (1, 1074, 2)
    expected = {"spec.objective", "spec.objective.goal", "spec.earlyStopping"}
    assert {path for path in paths(imported) if "trialSpec" not in path} == expected
    assert any(path.endswith("limits.fpga") for path in paths(imported))


@pytest.mark.parametrize(
    ("collector", "source", "result", "ends"),
    [
        ("File", {"fileSystemPath": {**LOGGED, "format": "JSON"}}, {"file": "log.json", "key": "accuracy"}, ""),
        ("File", {"fileSystemPath": LOGGED}, None, " && cat log.json"),
        ("StdOut", {"filter": {"metricsFormat": [r"{name: ([\w|-]+), is: ((-?\d+)(\.\d+)?)}"]}}, "0.5", ""),
        ("TensorFlowEvent", {}, None, ""),
    ],
)
def test_collectors_of_katib(importing: Importing, collector: str, source: Any, result: Any, ends: str) -> None:
    imported = importing("katib", with_katib(metricsCollectorSpec={"collector": {"kind": collector}, "source": source}))
    payload = imported.search.payload
    assert payload.command.endswith(f"--lr={{lr}}{ends}")
    assert ("--log=log.json" in payload.command) == (collector == "File")
    assert ("spec.metricsCollectorSpec" in paths(imported)) == (collector != "StdOut")
    if isinstance(result, str):
        assert re.search(payload.result.stdout, "{name: accuracy, is: 0.5}")["value"] == result
    elif result:
        assert payload.result.model_dump(exclude_none=True) == result


def test_a_script_of_a_shell_keeps_its_own_quotes(importing: Importing) -> None:
    document = copy.deepcopy(KATIB)
    container = document["spec"]["trialTemplate"]["trialSpec"]["spec"]["template"]["spec"]["containers"][0]
    container |= {"command": ["/bin/sh", "-c"], "args": ["cd /opt && python t.py ${trialParameters.rate} | tee 'a b'"]}
    assert importing("katib", document).search.payload.command == "cd /opt && python t.py {lr} | tee 'a b'"


MISTAKES = """
wandb | parameters: {x: {distribution: beta}} | parameters.x.distribution
wandb | parameters: {x: {min: a, max: 1}} | parameters.x.min
wandb | parameters: {x: {value: 1}} | parameters
wandb | metric: {name: loss, goal: max} | metric
wandb | command: python train.py | command
wandb | run_cap: many | run_cap
katib | parameters: [] | spec.parameters
katib | parameters: [lr] | spec.parameters[0]
katib | metricsCollectorSpec: [1] | spec.metricsCollectorSpec
"""


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_mistakes_have_their_place(refused: Refused, line: str) -> None:
    tool, change, place = line.split(" | ")
    changes = yaml.safe_load(f"{{{change}}}")
    document = with_katib(**changes) if tool == "katib" else {**DOCUMENTS[tool], **changes}
    assert place in {problem.path for problem in refused(tool, document)}


@pytest.mark.parametrize("tool", SWEEPS)
def test_what_must_be_filled_in_is_said(tmp_path: Path, importing: Importing, tool: str) -> None:
    document = {key: value for key, value in DOCUMENTS[tool].items() if key != "program"}
    if tool == "katib":
        document = with_katib(trialTemplate={"configMap": {"configMapName": "x"}})
    imported = importing(tool, document)
    assert "a guess" in next(line for line in imported.text.splitlines() if line.startswith("  command:"))
    assert any("a guess" in warning.message for warning in imported.warnings)
    (tmp_path / "hello.yaml").write_text("hello")
    with pytest.raises(InputError):
        import_search(tool, tmp_path / "hello.yaml", ImportOptions(tmp_path))
