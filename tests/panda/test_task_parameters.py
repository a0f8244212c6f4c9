"""Our task dictionary is what prun would write for the same command; each difference is named here, with its reason."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace

import pytest

from hpo_pilot.jobs import TaskOptions, TrialLevel, task_name
from hpo_pilot.panda.task_parameters import (
    encode_points,
    output_name,
    points_document,
    submitted_points,
    task_parameters,
)
from tests.prun import prun as real_prun

#: Keys that only we write, and why.
OURS_ALONE = {
    "hpoWalltime": "an embedded server's pilots hold the job to the second, not to the hour",
    "hpoPayloadSeconds": "allocations are planned by when the payload ends, without the pilot's own margin",
    "userName": "the embedded server takes the owner from the token; a look at the dictionary shows it too",
    "coreCount": "prun writes it for more than one core only",
    "campaign": "the search, so that a server can share itself out between searches",
    "transPath": "an embedded server has its own transformation; JEDI fills in its sites' where there is none",
}

#: Keys that prun alone writes, and why not we.
PRUN_ALONE = {"osInfo": "where the user sat says nothing about the job"}

#: Keys in both with other values, and why.
DIFFERENT = {
    "processingType": "our own label, so that monitors can tell our tasks apart",
    "cliParams": "the command that made the task",
    "sourceURL": "the server that has the sandbox",
    "jobParameters": "compared piece by piece below",
    "multiStepExec": "prun shows the script in the log before it runs it: points are long",
}

#: What every task of ours has, as options of prun.
ALWAYS = "--noBuild --nJobs 4 --nCore 8 --memory 1500 --maxWalltime 1 --maxAttempt 3 --noEmail --expertOnly_skipScout"
ALWAYS = [*ALWAYS.split(), "--exec", "python3 -I -S hpo_pilot_runner.py --task T --number %RNDM:0"]


@pytest.fixture
def panda_client(tmp_path):
    """What a script of panda-client's makes of a command line, without sending it."""
    return lambda script, *options: real_prun(tmp_path, *options, script=script)


@pytest.fixture
def task(task):
    """Of a size that prun can ask for."""
    return replace(task, needs=replace(task.needs, cores=8, memory_mb=12000))


@pytest.fixture
def ours(task):
    return parameters_of(task)


def parameters_of(task, **where):
    place = {"owner": "me", "vo": "hpo_pilot", "server": "http://127.0.0.1:1", "sandbox": "sources.0.tar.gz"}
    return task_parameters(task, **(place | where))


def compare(mine, theirs):
    """Whatever differs has its reason."""
    assert set(mine) - set(theirs) <= set(OURS_ALONE), set(mine) - set(theirs) - set(OURS_ALONE)
    assert set(theirs) - set(mine) == set(PRUN_ALONE)
    different = {key for key in set(mine) & set(theirs) if mine[key] != theirs[key]}
    assert different <= set(DIFFERENT), {key: (mine[key], theirs[key]) for key in different - set(DIFFERENT)}


def test_a_monitor_shows_what_a_task_is_for(task):
    def said(*trials, folds=1):
        points = {trial: {"x": 1} for trial in trials}
        return parameters_of(replace(task, points=points, folds=folds))["cliParams"]

    assert said(4, 1, 9, folds=3) == "hpo-pilot demo generation 1: 3 trials, 1 to 9, 3 folds"
    assert said(4) == "hpo-pilot demo generation 1: trial 4"


NAME = ["--outDS", "user.me.demo.cafecafe.g1"]
OUTPUTS = ["--outputs", "outputs.tar.gz"]


@pytest.mark.parametrize(
    ("changes", "options", "prun"),
    [
        ({"queue": "LOCAL"}, {}, "--site LOCAL --outputs outputs.tar.gz"),
        ({}, {}, "--outputs outputs.tar.gz"),
        ({"queue": "CERN,BNL"}, {"exclude": ("RAL", "SARA")}, "--site CERN,BNL --excludedSite RAL,SARA"),
        ({}, {"vo": "wlcg", "priority": 950}, "--vo wlcg --priority 950"),
        ({}, {"working_group": "phys-higgs.production"}, "--workingGroup phys-higgs.production"),
        (
            {"name": "group.phys-higgs.demo.cafecafe.g1/"},
            {"working_group": "phys-higgs", "official": True},
            "--workingGroup phys-higgs --official --outDS group.phys-higgs.demo.cafecafe.g1",
        ),
        ({}, {"label": "ptest"}, "--prodSourceLabel ptest"),
        *(
            ({}, {"architecture": wanted}, f"--architecture {wanted}")
            for wanted in (
                "@el9#x86_64&nvidia",
                "x86_64-gcc13-opt@el9",
                '{"gpu_spec":{"vendor":"nvidia","vram":">=40960"}}',
            )
        ),
        (
            {"container": "docker://x/y:1"},
            {"architecture": "#x86_64-*-avx2&nvidia"},
            "--containerImage docker://x/y:1 --architecture #x86_64-*-avx2&nvidia --useSandbox",
        ),
        ({"container": "docker://x/y:1"}, {}, "--containerImage docker://x/y:1 --useSandbox"),
    ],
)
def test_a_real_server_gets_what_prun_would_send(task, panda_client, changes, options, prun):
    changes = {"queue": None, "has_outputs": "--outputs" in prun, **changes}
    mine = parameters_of(replace(task, **changes, options=TaskOptions(**options)), ours=False)
    # Of an option given twice, prun takes the last.
    theirs = panda_client("PrunScript", *ALWAYS, "--vo", "hpo_pilot", *NAME, *prun.split())
    compare(mine, theirs)
    assert "transPath" not in mine
    if changes.get("container"):
        assert mine["multiStepExec"]["preprocess"] == theirs["multiStepExec"]["preprocess"]
        assert mine["multiStepExec"]["postprocess"] == theirs["multiStepExec"]["postprocess"]
        image = theirs["multiStepExec"]["containerOptions"]["containerImage"]
        assert mine["multiStepExec"]["containerOptions"]["containerImage"] == image


def test_a_bare_platform_is_sent_as_it_is_written(task, panda_client):
    """Prun 2.2.0 writes it twice, one after the other, which no site has."""
    bare = replace(task, options=TaskOptions(architecture="x86_64-el9-gcc13-opt"))
    assert parameters_of(bare, ours=False)["architecture"] == "x86_64-el9-gcc13-opt"
    assert panda_client("PrunScript", *ALWAYS, *NAME, "--architecture", "a-b")["architecture"] == "a-ba-b"


def test_an_embedded_server_gets_the_same_and_its_own_transformation(ours, panda_client):
    theirs = panda_client("PrunScript", *ALWAYS, "--vo", "hpo_pilot", "--site", "LOCAL", *NAME, *OUTPUTS)
    compare(ours, theirs)
    assert ours["transPath"] == "http://127.0.0.1:1/trf/user/runGen-00-00-02"
    assert ours["hpoWalltime"] == 10 * 60 + 300 and ours["hpoPayloadSeconds"] == 10 * 60


def test_job_parameters_are_prun_s_but_for_sandbox_and_points(ours, panda_client):
    def shape(parameters):
        return [
            {key: value for key, value in piece.items() if key != "value" or piece["type"] == "template"}
            for piece in parameters
        ]

    prun = panda_client("PrunScript", *ALWAYS, "--vo", "hpo_pilot", *NAME, *OUTPUTS)
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


def test_datasets_come_as_phpo_s_training_data(task, panda_client, tmp_path):
    (tmp_path / "space.json").write_text("{}")
    options = ["--steeringContainer", "s", "--steeringExec", "x", "--evaluationContainer", "e", "--evaluationExec", "y"]
    options += ["--searchSpaceFile", str(tmp_path / "space.json"), "--trainingDS", "data.a,user.me:data.b"]
    theirs = panda_client("PhpoScript", *options, "--evaluationTrainingData", "hpo_pilot_inputs.json", *NAME)
    fed = replace(task, datasets=("data.a", "user.me:data.b"), has_outputs=False)
    mine = parameters_of(fed, ours=False)["jobParameters"]
    start = next(i for i, piece in enumerate(theirs["jobParameters"]) if "--writeInputToTxt" in piece["value"])
    wanted = theirs["jobParameters"][start : start + 3]
    assert [piece for piece in mine if piece in wanted] == wanted
    assert "${IN_DATA" not in str(parameters_of(fed)), "an embedded server's pilots bring data by themselves"


@pytest.mark.parametrize(
    ("needs", "options", "embedded", "real"),
    [
        ({}, {}, {}, {}),
        ({"gpus_per_node": 1}, {}, {}, {"architecture": "&nvidia"}),
        ({"gpus_per_node": 1}, {"architecture": "&amd"}, {"architecture": "&amd"}, {"architecture": "&amd"}),
        ({}, {"profile": "summit"}, {"hpoSite": "summit"}, {}),
        ({"checkpoints": True}, {}, {"hpoCheckpoints": True}, {}),
        ({"nodes": 6, "gpus_per_node": 2}, {}, {"hpoNodes": 6}, {"architecture": "&nvidia"}),
    ],
)
def test_an_embedded_server_gets_more_and_a_real_one_an_architecture(task, needs, options, embedded, real):
    wanted = replace(task, needs=replace(task.needs, **needs), options=TaskOptions(**options))
    for ours, expected in ((True, embedded), (False, real)):
        told = parameters_of(wanted, ours=ours)
        keys = ("architecture", "hpoSite", "hpoNodes", "hpoCheckpoints")
        assert {key: told[key] for key in keys if told.get(key) is not None} == expected


def test_memory_is_given_per_core_and_gpus_per_node(task):
    told = parameters_of(replace(task, needs=replace(task.needs, nodes=6, gpus_per_node=2, cores=7, memory_mb=21_000)))
    assert (told["nGPU"], told["coreCount"], told["ramCount"]) == (2, 7, 3000)


def test_levels_of_trials_are_in_the_document(task):
    first, later = TrialLevel(1, None, keep_checkpoint=True), TrialLevel(9, 1, keep_checkpoint=False)
    document = submitted_points(parameters_of(replace(task, levels={1: first, 2: later})))
    assert document["levels"] == {"1": {"level": 1, "keep_checkpoint": True}, "2": {"level": 9, "chain": 1}}


def test_a_submitted_task_is_recognised_by_its_points(task, ours):
    assert submitted_points(json.loads(json.dumps(ours))) == points_document(task)
    other = replace(task, points={1: {"x": 0.25}, 2: {"x": 0.75}})
    assert submitted_points(ours) != points_document(other)
    for strange in ({}, {"jobParameters": None}, {"jobParameters": [{"value": "hpo_pilot_runner.py%20--task%20AAAA"}]}):
        assert submitted_points(strange) is None


@pytest.mark.parametrize("length", [1, 50])
def test_names_have_room_for_the_datasets_made_of_them(length):
    for group in (None, "phys-exotics-and-more"):
        name = task_name("n" * 30, "s" * length, "cafecafe", 12345, 12, group=group)
        assert len(name.rstrip("/") + "_outputs.tar.gz/") <= 132
        assert name.endswith(".cafecafe.g12345.r12/")
    assert task_name("me", "demo", "cafecafe", 1, 0) == "user.me.demo.cafecafe.g1/"


def test_points_and_jobs_are_sent_whole(task):
    def packed(of):
        return json.loads(zlib.decompress(base64.urlsafe_b64decode(encode_points(of))))

    jobs = [[1, 0, 11], [1, 1, 11], [2, 0, 22], [2, 1, 22]]
    points = {"1": {"x": 0.25}, "2": {"x": 0.5}}
    table = {"search": "demo", "uid": "cafecafe", "generation": 1, "folds": 2, "jobs": jobs, "points": points}
    assert packed(task) == table
    ((one,), (two,), *rest) = task.jobs
    several = replace(task, jobs=((one, two), *rest))
    assert packed(several)["jobs"] == [[[1, 0, 11], [1, 1, 11]], [[2, 0, 22]], [[2, 1, 22]]]


def test_the_output_name_is_what_the_template_gives(task, ours):
    (template,) = [p["value"] for p in ours["jobParameters"] if p.get("param_type") == "output"]
    made = template.replace("$JEDITASKID", "77").replace("${SN/P}", f"{3:06d}")
    assert output_name(task.name, 77, 3) == made
