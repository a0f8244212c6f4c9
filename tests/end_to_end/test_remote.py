"""A group's service, and a user elsewhere who has a URL and a token and nothing else."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests

from tests.certificates import self_signed
from tests.command_here import command_here
from tests.end_to_end.conftest import BOWL, Scan

SLOW = BOWL.replace("import json, os", "import json, os, time\ntime.sleep(0.3)")


class User(Scan):
    """Somebody with a folder of their own; `environment` names the service and the token."""

    @property
    def where(self) -> list[str]:
        return []


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
    with scan.serving("--slots", "2", *made.options, "--ca", str(made.chain)) as process:
        assert process.stdout is not None
        url = (scan.workdir / "service.url").read_text().strip()
        assert f"REST API is at {url}" in process.stdout.readline() and url.startswith("https://")
        yield Group(scan, process, url, made.chain)
    assert not (scan.workdir / "service.url").exists()


SCRIPT = """
import sys
import hpo_pilot

def far(point):
    return (point["x"] - 2) ** 2

if __name__ == "__main__":
    url, ca = sys.argv[1:]
    space = {"x": {"type": "real", "low": -10, "high": 10}}
    budget = {"trials": 4, "parallel": 2}
    found = hpo_pilot.run(far, space, optimizer="random", budget=budget, service=url, token_file="my.token", ca=ca)
    assert found.best["value"] == (found.best["point"]["x"] - 2) ** 2
    assert len(found.trials) == 4
    print(found.status["owner"])
"""


def test_a_function_of_a_script(group, tmp_path):
    pytest.importorskip("pandas")
    alice = group.user(tmp_path / "alice", "alice")
    (alice.root / "script.py").write_text(SCRIPT)
    words = [sys.executable, "script.py", group.url, str(group.ca)]
    ended = subprocess.run(words, cwd=alice.root, capture_output=True, text=True, timeout=600, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "alice"), ended.stderr


def test_everything_with_a_url_and_a_token(group, tmp_path):
    alice = group.user(tmp_path / "alice", "alice")
    payload = {"files": "payload", "command": "python3 -I -S train.py", "outputs": ["model.txt"]}
    alice.write({"search": "remote", "folds": 2, "payload": payload})
    file = alice.file.name
    assert "is valid" in alice.here("validate", file).stdout
    assert json.loads(alice.here("submit", file, "--dry-run").stdout)["nEvents"] == 4
    assert "status remote --watch" in alice("submit", file).stdout
    assert "4 of 4 trials" in alice("status", "remote", "--watch").stdout
    status = alice.json("status", "remote")
    assert (status["state"], status["owner"]) == ("done", "alice")
    trials = alice.json("trials", "remote")
    assert [trial["state"] for trial in trials] == ["finished"] * 4
    best = alice.json("best", "remote")
    assert best["value"] == min(trial["value"] for trial in trials)
    alice("fetch", "best", "remote", "-o", "out")
    found = sorted(path.relative_to(alice.root / "out").as_posix() for path in alice.root.glob("out/**/*.txt"))
    assert found == [f"trial{best['number']}/fold{fold}/model.txt" for fold in (0, 1)]
    text = (alice.root / "out" / found[1]).read_text()
    assert text == f"trial {best['number']} fold 1\n"
    path = alice.here("report", "remote").stdout.strip()
    assert Path(path) == alice.root / "hpo-pilot" / "reports" / "remote.html"
    assert "remote" in Path(path).read_text()
    assert len(alice.here("export", "remote").stdout.splitlines()) == 5
    assert "alice" in alice.here("log", "remote").stdout
    assert "remote" in alice.here("list").stdout
    # The jobs are the service's: its name, not the user's, stands in the tasks'.
    alice.write({"search": "other"})
    task = json.loads(alice.here("submit", file, "--dry-run").stdout)
    assert ".alice." not in task["taskName"]
    assert not (alice.root / "hpo-pilot" / "hpo-pilot.db").exists()


def test_a_running_search_is_its_owner_s(group, tmp_path):
    alice, bob = group.user(tmp_path / "a", "alice"), group.user(tmp_path / "b", "bob")
    operator, pilot = group.user(tmp_path / "o", "op", "operator"), group.user(tmp_path / "p", "p", "pilot")
    alice.write({"search": "long", "budget": {"trials": 500, "parallel": 2}}, SLOW)
    alice.here("submit", "search.yaml")
    assert "long" in bob.here("list").stdout
    for command in (["pause"], ["stop"], ["extend", "--trials", "+1"], ["resume"]):
        refused = bob.here(command[0], "long", *command[1:], status=2)
        assert refused.stderr == "hpo-pilot: search 'long' is alice's: only alice or an operator may change it\n"
    assert "this is a pilot's token" in pilot.here("list", status=2).stderr
    alice.here("pause", "long")
    operator.here("resume", "long")
    (alice.root / "payload" / "more.txt").write_text("mended")
    alice.here("resume", "long", "--new-payload")
    alice.here("extend", "long", "--trials", "+1")
    operator.here("stop", "long")
    alice.until("stopped", "long")
    done = [(event["who"], event["what"].partition(":")[0]) for event in alice.json("log", "long")]
    wanted = [("alice", "paused"), ("op", "resumed"), ("alice", "resumed with new payload files")]
    wanted += [("alice", "extended"), ("op", "stopping")]
    assert [entry for entry in done if entry[0] != "service"] == [("alice", "submitted"), *wanted]


def test_run_leaves_the_work_to_the_service(group, tmp_path):
    alice = group.user(tmp_path / "alice", "alice")
    alice.write({"search": "run-there", "budget": {"trials": 20, "parallel": 2}}, SLOW)
    first = alice.start("run", "search.yaml")
    assert first.stdout is not None
    next(line for line in first.stdout if "trials, best" in line)
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=600)
    assert first.returncode == 3, output
    assert "no longer watching; the service continues search 'run-there'" in output
    result = alice("run", "search.yaml")
    assert "20 of 20 trials" in result.stdout
    assert "report: hpo-pilot/reports/run-there.html" in result.stdout
    assert (alice.root / "hpo-pilot" / "reports" / "run-there.html").exists()


def test_a_slow_or_dead_api_leaves_the_steering_alone(group, tmp_path):
    alice = group.user(tmp_path / "alice", "alice")
    alice.write({"search": "steady", "budget": {"trials": 500, "parallel": 2}}, SLOW)
    alice.here("submit", "search.yaml")
    children = psutil.Process(group.process.pid).children(recursive=True)
    (api,) = [child for child in children if "hpo_pilot.web" in child.cmdline()]
    api.suspend()
    with pytest.raises(requests.RequestException):
        requests.get(f"{group.url}/api/v1/health", timeout=2, verify=str(group.ca))
    before = group.scan.json("status", "steady")["trials"].get("finished", 0)
    group.scan.until("running", "steady", trials=before + 1)
    api.kill()
    end = time.monotonic() + 600
    while command_here("list", env=alice.environment).returncode == 3:  # until it is started again, at the same address
        assert time.monotonic() < end
        time.sleep(0.2)
    alice.here("stop", "steady")
    alice.until("stopped", "steady")


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
    alice.write({"search": "fine"})
    (alice.root / "wrong.token").write_text("wrong")
    (alice.root / "wrong.yaml").write_text("search: x\nspase: {}\n")
    alice.environment |= environment
    result = alice.here(*arguments, status=status)
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_no_token_is_in_any_log_or_list_of_processes(group, tmp_path):
    alice = group.user(tmp_path / "alice", "alice")
    alice.here("list")
    token = (alice.root / "my.token").read_text().strip()
    assert token.rsplit(".")[-1] not in group.scan.logs()
    family = [psutil.Process(group.process.pid), *psutil.Process(group.process.pid).children(recursive=True)]
    tokens = [path.read_text().strip() for path in (group.scan.workdir / "tokens").glob("*.token")]
    for process in family:
        assert not [secret for secret in [token, *tokens] if secret in " ".join(process.cmdline())]
