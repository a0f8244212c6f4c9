from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hpo_pilot.transformation.executable import build
from tests.pilot.conftest import RUNNER, TOKEN, FakePanda, archive_of
from tests.programs import program

OUT = "user.me.9._000001.out.txt"


class Job:
    """A folder in which the built file is started, as a Pilot 3 starts it: through a shell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "job"
        self.folder.mkdir()
        built = self.folder / "runGen-00-00-02"
        built.write_bytes(build())
        built.chmod(0o755)
        self.env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder), "PANDAID": "7"}

    def start(self, parameters: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["/bin/sh", "-c", "exec ./runGen-00-00-02 " + parameters],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, parameters: str) -> subprocess.CompletedProcess[str]:
        process = self.start(parameters)
        out, error = process.communicate(timeout=600)
        return subprocess.CompletedProcess("", process.returncode, out, error)

    @property
    def report(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "jobReport.json").read_text()))

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} - {"runGen-00-00-02"}


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_it_needs_nothing_but_the_standard_library(job):
    code = "import runpy, sys; sys.argv = ['x', '-p', 'true']; runpy.run_path('runGen-00-00-02', run_name='__main__')"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=job.folder, check=False)
    assert done.returncode == 0 and job.report == {"exitCode": 0}


def test_an_image_that_is_missing_is_a_verdict(job, panda):
    panda.add_job("touch ran", container="/no/image.xyz")
    done = job.run(panda.waiting[0]["jobPars"])
    assert done.returncode == 0, done.stderr
    verdict = job.report["user_job_metadata"]["hpo_pilot"]
    assert verdict["status"] == 1 and "there is no image '/no/image.xyz'" in verdict["message"]


@pytest.mark.parametrize(
    ("command", "value", "message", "packed"),
    [
        ("""echo '{"status": 0, "loss": 0.5}' > output.json; echo m > model""", 0.5, "", ["model"]),
        ("echo no good; exit 3", None, "exit code 3", []),  # reported all the same, with an empty archive
    ],
)
def test_a_trial_of_a_search(job, panda, command, value, message, packed):
    panda.add_job(command, outputs=["model"])
    done = job.run(panda.waiting[0]["jobPars"])
    assert done.returncode == 0, done.stderr
    verdict = job.report["user_job_metadata"]["hpo_pilot"]
    assert verdict["value"] == value and message in verdict["message"] and job.report["exitCode"] == 0
    with tarfile.open(job.folder / "user.me.outputs.tar.gz") as archive:
        assert archive.getnames() == packed
    assert "workDir" not in job.names()


def test_a_job_of_prun(job, panda):
    script = tarfile.TarInfo("sub/run.sh")
    packed = archive_of((script, b'#!/bin/sh\necho "$1 $2" | tr a b > out.txt; touch a.log b.log\n'))
    panda.cache["jobO.1.tar.gz"] = packed
    line = quote("run.sh 'a a' $PANDAID && [ -f out.txt ]")
    outputs = f"\"{{'out.txt': '{OUT}', '*.log': 'user.me.logs.tgz'}}\""
    done = job.run(f'-j "" --sourceURL {panda.url} -r sub -a jobO.1.tar.gz -o {outputs} -p "{line}" --new-option 3')
    assert done.returncode == 0, done.stderr
    assert (job.folder / OUT).read_text() == "b b 7\n"
    with tarfile.open(job.folder / "user.me.logs.tgz") as archive:
        assert sorted(archive.getnames()) == ["a.log", "b.log"]
    assert "--new-option 3 is not known" in done.stdout
    assert job.names() == {OUT, "user.me.logs.tgz", "jobReport.json", "jobO.1.tar.gz"}


def test_outputs_that_are_links_are_delivered_with_their_content(job):
    outputs = f"\"{{'best.root': '{OUT}', 'last.root': 'user.me.last'}}\""
    line = quote("mkdir run; echo 3 > run/out.root; ln -s run/out.root best.root; echo 4 > last.root")
    done = job.run(f'-j "" -o {outputs} -p "{line}"')
    assert done.returncode == 0, done.stderr
    assert [(job.folder / name).read_text() for name in (OUT, "user.me.last")] == ["3\n", "4\n"]


def test_a_sandbox_that_the_pilot_brought(job):
    (job.folder / "lib.tgz").write_bytes(archive_of((tarfile.TarInfo("x"), b"found")))
    assert job.run("-l lib.tgz -p cat%20x").stdout == "found"


def test_inputs_that_the_pilot_brought(job):
    for name in ("a.root", "b.root", "c.root"):
        (job.folder / name).write_text(name)
    maps = "--inMap \"{'IN': ['a.root', 'b.root'], 'IN2': ['c.root']}\" --writeInputToTxt IN:list.json"
    done = job.run(f"-i \"['a.root']\" {maps} -p 'cat list.json; echo; cat %IN2; echo %IN'")
    assert done.stdout == '["a.root", "b.root"]\nc.roota.root,b.root\n'
    done = job.run("-i \"['d.root']\" -p true")
    assert done.returncode == 11 and "d.root" in done.stderr


@pytest.mark.parametrize(
    ("parameters", "status", "said"),
    [
        ("", 10, "neither -p nor -j"),
        ("-p exit%205", 5, ""),
        ("-p 'kill -9 $$'", 137, ""),
        ("-p true -o \"{'x': 'y'}\"", 152, "the output x was not made"),
        ("-p true --containerImage image.xyz", 151, "no container runtime here can run it"),
        ("-p true --containerImage /no/image.xyz", 151, "there is no image '/no/image.xyz'"),
        ("-a x.tar.gz -p true --sourceURL file:///etc", 146, "not an http"),
        ("-l lib.tgz -p true", 146, "lib.tgz is not there"),
    ],
)
def test_what_goes_wrong_has_a_status_and_a_reason(job, parameters, status, said):
    job.env["HPO_PILOT_CONTAINER_RUNTIME"] = "none"
    done = job.run(parameters)
    assert done.returncode == status and said in done.stderr
    assert job.report["exitCode"] == status
    if said:
        assert said in job.report["exitMsg"] and "ERROR : " in done.stderr and "Traceback" not in done.stderr


def test_sandboxes_that_do_not_come_or_are_refused(job, panda):
    panda.cache["evil.tar.gz"] = archive_of((tarfile.TarInfo("../evil"), b"x"))
    done = job.run(f"-a evil.tar.gz --sourceURL {panda.url} -p true")
    assert done.returncode == 143 and "leads out" in done.stderr
    done = job.run(f"-a gone.tar.gz --sourceURL {panda.url} -p true")
    assert done.returncode == 146 and "401" in done.stderr


def test_the_token_goes_to_the_pilots_own_server_alone(job, panda):
    other = FakePanda()
    (job.folder / "token").write_text(TOKEN + "\n")
    panda.cache["a.tgz"] = other.cache["a.tgz"] = archive_of((tarfile.TarInfo("x"), b""))
    job.env |= {"OIDC_AUTH_TOKEN": "token", "PANDA_AUTH_DIR": f"{job.folder}/", "PANDA_SERVER_URL": panda.url}
    for server, seen in ((panda, f"Bearer {TOKEN}"), (other, None)):
        assert job.run(f"-a a.tgz --sourceURL {server.url} -p 'test -z \"$OIDC_AUTH_TOKEN\"'").returncode == 0
        assert server.fetched == [("a.tgz", seen)]
        (job.folder / "a.tgz").unlink()
    other.down()


def test_a_pilot_that_starts_the_container_itself(job, panda):
    panda.add_job("""echo '{"loss": 2}' > output.json""")
    parameters = panda.waiting[0]["jobPars"]
    assert job.run("--preprocess " + parameters).returncode == 0
    assert (job.folder / "workDir" / RUNNER.name).exists() and "jobReport.json" not in job.names()
    done = subprocess.run(["/bin/sh", "__run_main_exec.sh"], cwd=job.folder, env=job.env, check=False)
    assert done.returncode == 0
    assert job.run("--postprocess " + parameters).returncode == 0
    assert job.report["user_job_metadata"]["hpo_pilot"]["value"] == 2


def test_a_pilot_that_runs_the_steps_around_the_whole_job(job, panda):
    """Pilot 3 from 3.10.3 on does so without an experiment's plugin: the last step once took the verdict away."""
    panda.add_job("""echo '{"loss": 2}' > output.json""")
    parameters = panda.waiting[0]["jobPars"]
    for step in ("--preprocess ", "", "--postprocess "):
        assert job.run(step + parameters).returncode == 0
    assert job.report["user_job_metadata"]["hpo_pilot"]["value"] == 2


def test_the_image_of_the_payloads_document(job, panda):
    panda.add_job("true", container="docker://example.org/x:1")
    tools = program(job.folder / "tools" / "apptainer", 'echo "$@" > "$HOME/ran"').parent
    job.env["PATH"] = f"{tools}:{job.env['PATH']}"
    job.run(panda.waiting[0]["jobPars"])
    ran = (job.folder.parent / "ran").read_text()
    assert f"--bind {job.folder}:{job.folder}" in ran
    assert f"--pwd {job.folder}/workDir docker://example.org/x:1 python3 -I -S {RUNNER.name}" in ran
