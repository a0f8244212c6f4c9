"""prun and pbook as commands: the tools that users of PanDA have in their fingers."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from tests.real.processes import until
from tests.real.target import Target

PAYLOAD = """
import json, sys
number = int(sys.argv[1])
json.dump({"number": number}, open("userJobMetadata.json", "w"))
open("out.txt", "w").write("job %d of %s\\n" % (number, open("greeting.txt").read()))
"""


class Desk:
    """A folder with prun's and pbook's environment."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self.name = f"user.ada.{secrets.token_hex(4)}"
        folder.mkdir()
        (folder / "run.py").write_text(PAYLOAD)
        (folder / "greeting.txt").write_text("the day")

    def __call__(self, *command: str, status: int = 0) -> str:
        environment = {
            **os.environ,
            **self.target.environment,
            "PANDA_SYS": sys.prefix,
            "PANDA_PYTHON_EXEC": sys.executable,
            "PANDA_CONFIG_ROOT": str(self.folder / ".panda"),
            "TERM": "dumb",
            "COLUMNS": "200",
        }
        path = Path(sys.executable).parent / command[0]
        result = subprocess.run(
            [path, *command[1:]],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert result.returncode == status, (result.returncode, result.stdout, result.stderr)
        return result.stdout + result.stderr

    def prun(self, command: str, *options: str) -> int:
        site = ("--site", self.target.queue) if self.target.queue else ()
        vo = self.target.environment.get("PANDA_AUTH_VO") or os.environ["PANDA_AUTH_VO"]
        out = self("prun", "--exec", command, "--outDS", self.name, "--noBuild", "--vo", vo, *site, *options)
        found = re.search(r"jediTaskID=(\d+)", out)
        assert found, out
        return int(found[1])

    def status(self, task: int) -> str:
        """The task's state; empty while JEDI has not looked at it yet."""
        table = self("pbook", "-c", f"show({task})")
        row = re.search(rf"^\s*{task}\s+\d+\s+(\w+)", table, re.MULTILINE)
        return row[1] if row else ""

    def wait(self, task: int, *states: str) -> None:
        until(lambda: self.status(task) in states, f"task {task} is {' or '.join(states)}", self.target.patience)


@pytest.fixture
def desk(target: Target, tmp_path: Path) -> Desk:
    return Desk(target, tmp_path / "desk")


def test_prun_runs_jobs_and_their_outputs_come_back(desk, target, tmp_path):
    task = desk.prun("python3 run.py %RNDM:10", "--nJobs", "3", "--outputs", "out.txt")
    with target.pilot(tmp_path / "pilot"):
        desk.wait(task, "done")
    desk("pbook", "-c", f"get_user_job_metadata({task}, 'metadata.json')")
    metadata = json.loads((desk.folder / "metadata.json").read_text())
    assert sorted(job["user_job_metadata"]["number"] for job in metadata.values()) == [11, 12, 13]
    if not target.embedded:
        return  # a foreign server's outputs are in its data management
    token = Path(target.environment["OIDC_AUTH_TOKEN_FILE"]).read_text()
    texts = set()
    for number in (1, 2, 3):
        url = f"{target.url}/storage/user.ada.{task}._{number:06d}.out.txt"
        answer = requests.get(
            url, headers={"Authorization": f"Bearer {token}"}, verify=target.environment["X509_CERT_DIR"], timeout=600
        )
        assert answer.status_code == 200, (url, answer.text)
        texts.add(answer.text)
    assert texts == {f"job {number} of the day\n" for number in (11, 12, 13)}


def test_pbook_kills(desk, target, tmp_path):
    task = desk.prun("sleep 3000", "--nJobs", "2")
    with target.pilot(tmp_path / "pilot"):
        desk.wait(task, "running", "scouting")
        assert "failed" not in desk("pbook", "-c", f"kill({task})").lower()
        desk.wait(task, "aborted")


def test_pbook_retries(desk, target, tmp_path):
    switch = tmp_path / "works"
    task = desk.prun(f"test -e {switch}", "--nJobs", "2", "--maxAttempt", "1")
    with target.pilot(tmp_path / "pilot"):
        desk.wait(task, "failed", "finished", "exhausted")
        switch.touch()
        desk("pbook", "-c", f"retry({task})")
        desk.wait(task, "done")
