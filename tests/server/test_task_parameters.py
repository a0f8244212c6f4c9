"""Job parameters from task parameters, against what the real prun writes."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from hpo_pilot.server.task_parameters import MAX_JOBS, TaskParameters, TaskParametersError
from tests.prun import prun
from tests.task_parameters import make_params

COMMON = ("--outDS", "user.me.test", "--noBuild", "--vo", "hpo_pilot", "--site", "LOCAL")


def test_prun_with_numbered_jobs(tmp_path: Path) -> None:
    """%RNDM:5: job i gets number 5 + i; apart from it only the names of files differ."""
    params = prun(tmp_path, *COMMON, "--exec", "python run.py %RNDM:5 'a b'", "--nJobs", "3", "--outputs", "out.json")
    parameters = TaskParameters(params)
    assert (parameters.n_jobs, parameters.sandbox, parameters.queue) == (3, None, "LOCAL")
    for number in (1, 2, 3):
        job = parameters.job(task_id=77, number=number, attempt_nr=1)
        words = shlex.split(job.job_pars)
        assert unquote(words[words.index("-p") + 1]) == f"python run.py {5 + number} 'a b'"
        lfn = f"user.me.77._{number:06d}.out.json"
        assert ast.literal_eval(words[words.index("-o") + 1]) == {"out.json": lfn}
        assert words[words.index("--sourceURL") + 1] == "http://127.0.0.1:1"
        assert words[:2] == ["-j", ""]
        assert [(file.lfn, file.kind) for file in job.files] == [
            (lfn, "output"),
            (f"user.me.test.log.77.{number:06d}.log.tgz", "log"),
        ]
        assert job.sequence == 5 + number
        assert "__delimiter__" not in job.job_pars
        assert "$" not in job.job_pars


def test_prun_without_numbers_with_container_and_memory(tmp_path: Path) -> None:
    params = prun(
        tmp_path, *COMMON, "--exec", "python run.py", "--nJobs", "2", "--outputs", "o.json,b*.root",
        "--containerImage", "docker://x", "--maxAttempt", "2", "--memory", "900",
    )  # fmt: skip
    parameters = TaskParameters(params)
    job = parameters.job(task_id=9, number=5, attempt_nr=2)
    assert (parameters.n_jobs, parameters.max_attempt, parameters.ram_mb) == (2, 2, 900)
    assert parameters.container == "docker://x"
    words = shlex.split(job.job_pars)
    assert ast.literal_eval(words[words.index("-o") + 1]) == {
        "o.json": "user.me.9._000005.o.json",
        "b*.root": "user.me.9._000005.bXYZ.root.tgz",
    }
    assert job.sequence is None and job.steps is not None
    assert job.steps["containerOptions"]["containerImage"] == "docker://x"
    assert job.steps["preprocess"]["args"] == f"--preprocess {job.job_pars}"


def test_job_parameters_of_our_tasks() -> None:
    """Padding, hidden pieces and placeholders."""
    given = make_params()
    given["jobParameters"].insert(1, {"type": "constant", "value": "-a sources.0a1b.tar.gz"})
    job = TaskParameters(given).job(task_id=3, number=2, attempt_nr=1)
    assert job.job_pars == (
        '-j "" --sourceURL http://127.0.0.1:1 -a sources.0a1b.tar.gz '
        "-o \"{'outputs.tar.gz': 'user.me.3._000002.outputs.tar.gz'}\" -p \"runner%20--number%202\""
    )
    assert TaskParameters(given).sandbox == "sources.0a1b.tar.gz"


def test_placeholders_of_events() -> None:
    text = "${FIRSTEVENT} ${SKIPEVENTS} ${MAXEVENTS} ${ATTEMPTNR} $JEDITASKID ${SN}"
    given = make_params(nEvents=10, nEventsPerJob=4, jobParameters=[{"type": "constant", "value": text}])
    job = TaskParameters(given).job(task_id=7, number=3, attempt_nr=2)
    assert job.job_pars == "8 0 4 2 7 3"


@pytest.mark.parametrize(
    ("events", "per_job", "expected"), [(1, 1, 1), (10, 3, 4), (9, 3, 3), ("5", "2", 3), (MAX_JOBS, 1, MAX_JOBS)]
)
def test_number_of_jobs(events: Any, per_job: Any, expected: int) -> None:
    assert TaskParameters(make_params(nEvents=events, nEventsPerJob=per_job)).n_jobs == expected


def test_a_walltime_is_in_hours_unless_our_own_seconds_are_given() -> None:
    assert TaskParameters(make_params(maxWalltime=2, hpoWalltime=None)).max_walltime == 7200
    assert TaskParameters(make_params(maxWalltime=2, hpoWalltime=600)).max_walltime == 600


def test_memory_per_core() -> None:
    assert TaskParameters(make_params(coreCount=4, ramCount=1000, ramCountUnit="MBPerCore")).ram_mb == 4000
    assert TaskParameters(make_params(coreCount=4, ramCount=1000)).ram_mb == 1000


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"nEvents": "many"}, "nEvents"),
        ({"nEvents": 0}, "nEvents"),
        ({"nEvents": MAX_JOBS + 1}, "split"),
        ({"maxAttempt": -1}, "maxAttempt"),
        ({"coreCount": [1]}, "coreCount"),
        ({"ramCount": 2**40}, "ramCount"),
        ({"site": 5}, "site"),
        ({"jobParameters": None}, "jobParameters"),
        ({"jobParameters": []}, "jobParameters"),
        ({"jobParameters": ["text"]}, r"jobParameters\[0\]"),
        ({"jobParameters": [{"type": "odd", "value": "x"}]}, r"jobParameters\[0\]"),
        ({"jobParameters": [{"type": "constant", "value": "${IN}"}]}, "unresolved"),
        ({"jobParameters": [{"type": "constant", "value": "${SEQNUMBER}"}]}, "SEQNUMBER"),
        (
            {"jobParameters": [{"type": "template", "param_type": "input", "value": "x", "dataset": "d"}]},
            "input dataset",
        ),
        ({"jobParameters": [{"type": "template", "param_type": "output", "value": "x"}]}, "dataset"),
        ({"log": "here"}, "log"),
        ({"includedSite": 7}, "sites"),
    ],
)
def test_invalid_parameters_are_refused(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(TaskParametersError, match=word):
        TaskParameters(make_params() | wrong)
