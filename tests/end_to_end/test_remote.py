"""A group's service, and a user elsewhere who has a URL and a token and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.certificates import self_signed
from tests.command_here import command_here
from tests.end_to_end.conftest import BOWL, Scan

PYTHON = [sys.executable, "-m", "hpo_pilot.cli"]
SLOW = BOWL.replace("import json, os", "import json, os, time\ntime.sleep(0.3)")


@dataclass
class User:
    """Somebody with a folder of their own; `environment` names the service and the token."""

    folder: Path
    environment: dict[str, str]

    def __call__(self, *arguments: str, status: int | None = 0, **more: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [*PYTHON, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folder,
            env={**os.environ, "COLUMNS": "200", **self.environment, **more},
            check=False,
        )
        if status is not None:
            assert result.returncode == status, (result.returncode, result.stdout, result.stderr)
        return result

    def here(self, *arguments: str, status: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """A command that only looks, or that is refused: in this process."""
        result = command_here(*arguments, cwd=self.folder, env={**self.environment, **more})
        assert result.returncode == status, (result.returncode, result.stdout, result.stderr)
        return result

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PYTHON, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env={**os.environ, **self.environment},
        )

    def write(self, name: str, script: str = BOWL, **document) -> str:
        Scan(self.folder).write({"search": name, **document}, script)
        return "search.yaml"


@dataclass
class Group:
    """A service, and what its operator hands out."""

    scan: Scan
    process: subprocess.Popen[str]
    url: str
    ca: Path

    def user(self, folder: Path, name: str, role: str = "user") -> User:
        folder.mkdir(parents=True, exist_ok=True)
        token = folder / "my.token"
        self.scan.here("token", "create", "--name", name, "--role", role, "-o", str(token))
        environment = {"HPO_PILOT_SERVICE": self.url, "HPO_PILOT_TOKEN_FILE": str(token)}
        return User(folder, {**environment, "REQUESTS_CA_BUNDLE": str(self.ca)})


@pytest.fixture(scope="module")
def group(tmp_path_factory) -> Iterator[Group]:
    scan = Scan(tmp_path_factory.mktemp("group"))
    made = self_signed(tmp_path_factory.mktemp("tls"))
    process = scan.start("serve", "--slots", "2", *made.options, "--ca", str(made.chain))
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert "serving" in lines[0], (lines, scan.logs())
        assert "REST API is at https://" in lines[1]
        url = (scan.workdir / "service.url").read_text().strip()
        assert url in lines[1]
        yield Group(scan, process, url, made.chain)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert not (scan.workdir / "service.url").exists()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_everything_with_a_url_and_a_token(group, tmp_path):
    alice = group.user(tmp_path / "alice", "alice")
    file = alice.write(
        "remote", folds=2, payload={"files": "payload", "command": "python3 -I -S train.py", "outputs": ["model.txt"]}
    )
    assert "is valid" in alice("validate", file).stdout
    assert json.loads(alice("submit", file, "--dry-run").stdout)["nEvents"] == 4
    assert "status remote --watch" in alice("submit", file).stdout
    assert "4 of 4 trials" in alice("status", "remote", "--watch").stdout
    status = json.loads(alice("status", "remote", "--json").stdout)
    assert (status["state"], status["owner"]) == ("done", "alice")
    trials = json.loads(alice("trials", "remote", "--json").stdout)
    assert [trial["state"] for trial in trials] == ["finished"] * 4
    best = json.loads(alice("best", "remote", "--json").stdout)
    assert best["value"] == min(trial["value"] for trial in trials)
    alice("fetch", "best", "remote", "-o", "out")
    found = sorted(path.relative_to(alice.folder / "out").as_posix() for path in alice.folder.glob("out/**/*.txt"))
    assert found == [f"trial{best['number']}/fold{fold}/model.txt" for fold in (0, 1)]
    text = (alice.folder / "out" / found[1]).read_text()
    assert text == f"trial {best['number']} fold 1\n"
    path = alice("report", "remote").stdout.strip()
    assert Path(path) == alice.folder / "hpo-pilot" / "reports" / "remote.html"
    assert "remote" in Path(path).read_text()
    assert len(alice("export", "remote").stdout.splitlines()) == 5
    assert "alice" in alice("log", "remote").stdout
    assert "remote" in alice("list").stdout
    # The jobs are the service's: its name, not the user's, stands in the tasks'.
    task = json.loads(alice("submit", alice.write("other"), "--dry-run").stdout)
    assert ".alice." not in task["taskName"]
    assert not (alice.folder / "hpo-pilot" / "hpo-pilot.db").exists()


def test_a_running_search_is_its_owner_s(group, tmp_path):
    alice, bob = group.user(tmp_path / "a", "alice"), group.user(tmp_path / "b", "bob")
    operator, pilot = group.user(tmp_path / "o", "op", "operator"), group.user(tmp_path / "p", "p", "pilot")
    alice("submit", alice.write("long", SLOW, budget={"trials": 500, "parallel": 2}))
    assert "long" in bob("list").stdout
    for command in (["pause"], ["stop"], ["extend", "--trials", "+1"], ["resume"]):
        refused = bob.here(command[0], "long", *command[1:], status=2)
        assert refused.stderr == "hpo-pilot: search 'long' is alice's: only alice or an operator may change it\n"
    assert "this is a pilot's token" in pilot("list", status=2).stderr
    alice("pause", "long")
    operator("resume", "long")
    (alice.folder / "payload" / "more.txt").write_text("mended")
    alice("resume", "long", "--new-payload")
    alice("extend", "long", "--trials", "+1")
    operator("stop", "long")
    end = time.monotonic() + 120
    while json.loads(alice.here("status", "long", "--json").stdout)["state"] != "stopped":
        assert time.monotonic() < end
        time.sleep(0.1)
    done = [
        (event["who"], event["what"].partition(":")[0])
        for event in json.loads(alice.here("log", "long", "--json").stdout)
    ]
    wanted = [("alice", "paused"), ("op", "resumed"), ("alice", "resumed with new payload files")]
    wanted += [("alice", "extended"), ("op", "stopping")]
    assert [entry for entry in done if entry[0] != "service"] == [("alice", "submitted"), *wanted]


def test_run_leaves_the_work_to_the_service(group, tmp_path):
    alice = group.user(tmp_path / "alice", "alice")
    file = alice.write("run-there", SLOW, budget={"trials": 40, "parallel": 2})
    first = alice.start("run", file)
    assert first.stdout is not None
    next(line for line in first.stdout if "trials, best" in line)
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 3, output
    assert "no longer watching; the service continues search 'run-there'" in output
    result = alice("run", file)
    assert "40 of 40 trials" in result.stdout
    assert "report: hpo-pilot/reports/run-there.html" in result.stdout
    assert (alice.folder / "hpo-pilot" / "reports" / "run-there.html").exists()


def test_a_slow_or_dead_api_leaves_the_steering_alone(group, tmp_path):
    import psutil

    alice = group.user(tmp_path / "alice", "alice")
    alice("submit", alice.write("steady", SLOW, budget={"trials": 30, "parallel": 2}))
    children = psutil.Process(group.process.pid).children(recursive=True)
    (api,) = [child for child in children if "hpo_pilot.web" in child.cmdline()]
    api.suspend()
    with pytest.raises(requests.RequestException):
        requests.get(f"{group.url}/api/v1/health", timeout=2, verify=str(group.ca))
    before = len([t for t in group.scan.json("trials", "steady") if t["state"] == "finished"])
    end = time.monotonic() + 60
    while len([t for t in group.scan.json("trials", "steady") if t["state"] == "finished"]) <= before:
        assert time.monotonic() < end
        time.sleep(0.5)
    api.kill()
    assert "steady" in alice("list").stdout  # it is started again, at the same address
    alice("status", "steady", "--watch")
    assert json.loads(alice("status", "steady", "--json").stdout)["state"] == "done"


@pytest.mark.parametrize(
    ("arguments", "environment", "status", "message"),
    [
        (["list"], {"HPO_PILOT_TOKEN_FILE": "wrong.token"}, 2, "it is not a JSON web token"),
        (["list"], {"HPO_PILOT_TOKEN_FILE": ""}, 2, "--token-file or HPO_PILOT_TOKEN_FILE"),
        (["list"], {"HPO_PILOT_SERVICE": "https://127.0.0.1:1"}, 3, "cannot be reached"),
        (["list"], {"REQUESTS_CA_BUNDLE": ""}, 2, "is not trusted"),
        (["list", "--service", "http://hpo.example.org"], {}, 2, "use https://"),
        (["run", "search.yaml", "--slots", "2"], {}, 2, "the service sets the number of jobs"),
        (["submit", "wrong.yaml"], {}, 2, "wrong.yaml:2:1: spase: "),
    ],
)
def test_wrong_commands_say_what_to_do(group, tmp_path, arguments, environment, status, message):
    alice = group.user(tmp_path / "alice", "alice")
    alice.write("fine")
    (alice.folder / "wrong.token").write_text("wrong")
    (alice.folder / "wrong.yaml").write_text("search: x\nspase: {}\n")
    result = alice.here(*arguments, status=status, **environment)
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_no_token_is_in_any_log_or_list_of_processes(group, tmp_path):
    import psutil

    alice = group.user(tmp_path / "alice", "alice")
    alice("list")
    token = (alice.folder / "my.token").read_text().strip()
    assert token.rsplit(".")[-1] not in group.scan.logs()
    family = [psutil.Process(group.process.pid), *psutil.Process(group.process.pid).children(recursive=True)]
    tokens = [path.read_text().strip() for path in (group.scan.workdir / "tokens").glob("*.token")]
    for process in family:
        assert not [secret for secret in [token, *tokens] if secret in " ".join(process.cmdline())]
