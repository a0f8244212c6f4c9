"""Our task dictionary is what prun would write for the same command; each difference is named here, with its reason."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zlib
from dataclasses import replace

import pytest

from hpo_pilot.panda.task_parameters import encode_points, output_name, task_parameters

PRUN = """
import json, sys
from pandaclient import PrunScript
print(json.dumps(PrunScript.main(True, sys.argv[1:], True)))
"""

#: Keys that only we write, and why.
OURS_ALONE = {
    "userName": "the embedded server takes the owner from the token; a look at the dictionary shows it too",
    "coreCount": "prun writes it for --nCore only",
    "ramCount": "prun writes it for --memory only",
    "maxWalltime": "prun writes it for --maxWalltime only",
    "maxAttempt": "prun leaves it to the server; lost jobs start at most three times",
    "skipScout": "prun writes it for --skipScout only; a generation must not wait for scouts",
    "noEmail": "prun writes it for --noEmail only; a mail per generation helps nobody",
    "transPath": "prun adds it after these parameters are returned, at submission",
}

#: Keys that prun alone writes, and why not we.
PRUN_ALONE = {"osInfo": "where the user sat says nothing about the job"}

#: Keys in both with other values, and why.
DIFFERENT = {
    "processingType": "our own label, so that monitors can tell our tasks apart",
    "cliParams": "the command that made the task",
    "sourceURL": "the server that has the sandbox",
    "vo": "ours is given by the caller",
    "jobParameters": "compared piece by piece below",
}


@pytest.fixture(scope="module")
def prun():
    base = "http://127.0.0.1:1/server/panda"
    environment = {
        **os.environ,
        **dict.fromkeys(("PANDA_URL", "PANDA_URL_SSL", "PANDACACHE_URL"), base),
        "PANDA_BEHIND_REAL_LB": "1",
        "PANDA_AUTH": "oidc",
        "PANDA_AUTH_VO": "hpo_pilot",
        "OIDC_AUTH_ID_TOKEN": "none",
        "PANDA_SYS": "/nonexistent",
    }
    command = [
        "--exec",
        "python3 -I -S hpo_pilot_runner.py --task T --number %RNDM:0",
        "--outDS",
        "user.me.demo.cafecafe.g1",
    ]
    command += ["--nJobs", "4", "--noBuild", "--vo", "hpo_pilot", "--site", "LOCAL", "--outputs", "outputs.tar.gz"]
    run = subprocess.run(
        [sys.executable, "-c", PRUN, *command], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture
def ours(task):
    return task_parameters(task, owner="me", vo="hpo_pilot", server="http://127.0.0.1:1", sandbox="sources.0.tar.gz")


def test_every_key_is_prun_s_or_explained(ours, prun):
    assert set(ours) - set(prun) == set(OURS_ALONE) - set(prun)
    assert set(prun) - set(ours) == set(PRUN_ALONE)
    different = {key for key in set(ours) & set(prun) if ours[key] != prun[key]}
    assert different <= set(DIFFERENT), {key: (ours[key], prun[key]) for key in different - set(DIFFERENT)}


def test_job_parameters_are_prun_s_but_for_sandbox_and_points(ours, prun):
    def shape(parameters):
        return [
            {key: value for key, value in piece.items() if key != "value" or piece["type"] == "template"}
            for piece in parameters
        ]

    mine, theirs = shape(ours["jobParameters"]), shape(prun["jobParameters"])
    for piece in (*mine, *theirs):
        # prun puts the task's name without its uid-less revision; both must name the same output
        piece.pop("value", None) if piece.get("param_type") == "output" else None
    assert mine == theirs
    values = [piece["value"] for piece in ours["jobParameters"]]
    prun_values = [piece["value"] for piece in prun["jobParameters"]]
    same = [mine == theirs for mine, theirs in zip(values, prun_values, strict=True)]
    changed = [values[i] for i, equal in enumerate(same) if not equal]
    assert changed[0] == "-a sources.0.tar.gz"
    assert all("outputs.tar.gz" in value or "hpo_pilot_runner.py" in value for value in changed[1:])


def test_points_travel_whole(task):
    packed = json.loads(zlib.decompress(base64.urlsafe_b64decode(encode_points(task))))
    assert packed == {
        "search": "demo",
        "uid": "cafecafe",
        "generation": 1,
        "folds": 2,
        "jobs": [[1, 0, 11], [1, 1, 11], [2, 0, 22], [2, 1, 22]],
        "points": {"1": {"x": 0.25}, "2": {"x": 0.5}},
    }


def test_no_outputs_no_output_dataset(task):
    bare = replace(task, has_outputs=False)
    parameters = task_parameters(bare, owner="me", vo="v", server="http://h:1", sandbox="s")["jobParameters"]
    assert not any(piece.get("param_type") == "output" for piece in parameters)


def test_a_container_is_named_as_prun_does(task):
    boxed = replace(task, container="docker://x/y:1")
    parameters = task_parameters(boxed, owner="me", vo="v", server="http://h:1", sandbox="s")
    assert parameters["container_name"] == "docker://x/y:1"
    assert parameters["multiStepExec"]["containerOptions"]["containerImage"] == "docker://x/y:1"


def test_the_output_name_is_what_the_template_gives(task, ours):
    (template,) = [p["value"] for p in ours["jobParameters"] if p.get("param_type") == "output"]
    made = template.replace("$JEDITASKID", "77").replace("${SN/P}", f"{3:06d}")
    assert output_name(task.name, 77, 3) == made
