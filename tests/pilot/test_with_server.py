"""Pilot, runner and the embedded server together."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from hpo_pilot.jobs import JobNeeds, Member, TaskSpec, TrialLevel
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.panda.task_parameters import task_parameters
from hpo_pilot.pilot.settings import pilot_key
from hpo_pilot.server.tokens import Role
from tests.bearer import make_token_folder, token
from tests.pilot.conftest import GOOD, PilotProcess, slurm_stubs
from tests.pilot.test_agents import SLURM, SRUN
from tests.server_process import ServerProcess


class Embedded:
    """The embedded server on a free port, which it keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "files" / "cache").mkdir(parents=True)
        make_token_folder(folder / "tokens")
        self.port = 0
        self.start()

    def start(self) -> None:
        folder = self.folder
        database, files, tokens = folder / "panda.db", folder / "files", folder / "tokens"
        self._server = ServerProcess(database=database, files=files, tokens=tokens, port=self.port)
        self.url = self._server.url
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self._server.process.kill()
        self._server.stop()

    def submit(
        self,
        command: str,
        jobs: int,
        *,
        cores: int = 1,
        needs: JobNeeds | None = None,
        files: Path | None = None,
        search: str = "s",
        first: int = 0,
        level: TrialLevel | None = None,
        **payload: Any,
    ) -> int:
        numbers = range(first, first + jobs)
        needs = needs or JobNeeds(cores=cores, memory_mb=500, minutes=5.0)
        document = {"command": command, "metric": "loss", "minutes": needs.minutes, **payload}
        document |= {"nodes": needs.nodes, "ranks_per_node": needs.ranks_per_node}
        task = TaskSpec(
            name=f"user.me.s.1a2b3c4d.g{time.monotonic_ns()}/",
            search=search,
            uid="1a2b3c4d",
            generation=1,
            folds=1,
            points={n: {"x": n} for n in numbers},
            jobs=tuple((Member(n, 0, place),) for place, n in enumerate(numbers)),
            sandbox=build_sandbox(files, document, self.folder / "sandboxes"),
            needs=needs,
            container=payload.get("container"),
            has_outputs="outputs" in payload,
            queue="LOCAL",
            levels={} if level is None else dict.fromkeys(numbers, level),
        )
        self.upload(task.sandbox)
        parameters = task_parameters(task, owner="me", vo="hpo_pilot", server=self.url, sandbox=task.sandbox.name)
        answer = self.call("POST", "task/submit", task_parameters=parameters, parent_tid=None)
        return int(re.findall(r"\d+", str(answer))[-1])

    def upload(self, sandbox: Path) -> None:
        if not (self.folder / "files" / "cache" / sandbox.name).exists():
            self._send("POST", "file_server/upload_cache_file", files={"file": (sandbox.name, sandbox.read_bytes())})

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        return self._send(method, path, **{"json" if method == "POST" else "params": arguments})

    def _send(self, method: str, path: str, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {token('me', Role.USER)}", "Origin": "hpo_pilot"}
        answer = requests.request(method, f"{self.url}/api/v1/{path}", headers=headers, timeout=600, **options).json()
        assert answer["success"], answer
        return answer["data"]

    def state(self, task: int) -> str:
        return str(self.call("GET", "task/get_status", task_id=task))

    def verdicts(self, task: int) -> list[dict[str, Any]]:
        found = self.call("GET", "job/get_metadata_for_analysis_jobs", task_id=task)
        return [json_of(x)["user_job_metadata"]["hpo_pilot"] for x in found.values()]


def json_of(value: Any) -> dict[str, Any]:
    return dict(json.loads(value) if isinstance(value, str) else value)


@pytest.fixture
def embedded(tmp_path):
    server = Embedded(tmp_path / "server")
    yield server
    server.kill()


@pytest.fixture
def pilots(tmp_path, embedded):
    """Two pilots that share no folder."""
    made = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        made.append(PilotProcess(tmp_path / name, embedded.url, token("me", Role.PILOT)))
    yield made
    for started in (process for pilot in made for process in pilot.processes):
        started.kill()
        started.wait()


@pytest.fixture
def pilot(pilots):
    return pilots[0]


def read_step(pilot: PilotProcess, name: str) -> int:
    return int(next(pilot.workdir.glob(f"checkpoints/*/1a2b3c4d/{name}/i")).read_text())


def test_kill_9_of_server_and_pilot_costs_an_attempt_and_no_result(embedded, pilot, until):
    """The next pilot goes on with what was running, and sends the report that the first one kept.

    It does so under another token: it is known by its key.
    """
    started, gate, end = (pilot.folder / name for name in ("started", "gate", "end"))
    script = (
        f"kept=$HPO_PILOT_CHECKPOINT_DIR; i=$(cat $kept/i || echo 0); until [ -e {end} ]; do i=$((i+1)); "
        "echo $i > $kept/new; mv $kept/new $kept/i; sleep 0.1; "
        """echo '{"step": '$i', "value": 1}' >> progress.jsonl; done; """
        """echo '{"status": 0, "loss": '$i'}' > output.json"""
    )
    short = embedded.submit(f"touch {started}; while [ ! -e {gate} ]; do sleep 0.1; done; {GOOD}", 1)
    long = embedded.submit(script, 2, search="long", first=1)
    process = pilot.start(slots=3)
    until(lambda: started.exists() and len(list(pilot.workdir.glob("checkpoints/*/1a2b3c4d/t*f0/i"))) == 2)
    (key,) = pilot.workdir.glob("jobs/*.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_text()
    embedded.kill()
    gate.touch()
    until(lambda: list(pilot.workdir.glob("unsent/*/*.json")))
    process.kill()
    process.wait()
    kept = {name: read_step(pilot, name) for name in ("t1f0", "t2f0")}
    embedded.start()
    pilot.token_file.write_text(token("renamed", Role.PILOT))
    pilot.start(slots=3)
    until(lambda: embedded.state(short) == "done")
    until(lambda: all(read_step(pilot, name) > step + 1 for name, step in kept.items()))
    end.touch()
    until(lambda: embedded.state(long) == "done")
    assert [verdict["attempt"] for verdict in embedded.verdicts(short)] == [1]
    again = {f"t{verdict['trial']}f0": verdict for verdict in embedded.verdicts(long)}
    assert {name: verdict["attempt"] for name, verdict in again.items()} == {"t1f0": 2, "t2f0": 2}
    first_steps = {name: verdict["progress"][0][0] for name, verdict in again.items()}
    assert all(first_steps[name] >= step for name, step in kept.items()), "they went on, and did not begin anew"
    assert all(verdict["value"] == verdict["last_progress"]["step"] for verdict in again.values())
    assert key.read_text() == before
    assert not list(pilot.workdir.glob("checkpoints/*/1a2b3c4d/t*f0"))


#: Counts the epochs that it trains: each is a line in a file that outlives everything. Told to end, it ends by itself,
#: so that its checkpoint counts as whole at once.
TRAINING = """trap 'exit 1' TERM; epoch=$(cat {kept} || echo 0)
while [ $epoch -lt 1000 ]; do
  if [ -e {gate} ]; then echo '{{"status": 0, "loss": 0.5}}' > output.json; echo end $epoch >> {trained}; exit; fi
  epoch=$((epoch+1)); echo $epoch > {kept}.part; mv {kept}.part {kept}; echo $epoch >> {trained}; sleep 0.7
done"""


def _said_dead(embedded: Embedded, pilot: PilotProcess, harvester_id: str) -> None:
    """What a pilot's service says of it when it has died: its jobs go back at once."""
    answer = requests.post(
        f"{embedded.url}/api/v1/pilot/update_worker_status",
        json={"worker_id": 1, "harvester_id": harvester_id, "status": "failed"},
        headers={
            "Authorization": f"Bearer {token('me', Role.PILOT)}",
            "X-HPO-Pilot-Key": pilot_key(pilot.workdir, f"{harvester_id}-1"),
        },
        timeout=600,
    )
    assert answer.json()["success"], answer.text


@pytest.mark.parametrize(
    ("how", "kept"), [(signal.SIGKILL, "$HPO_PILOT_CHECKPOINT_DIR/state"), (signal.SIGTERM, "ckpt")]
)
def test_a_trial_goes_on_at_another_pilot(tmp_path, embedded, pilots, until, alive, how, kept):
    trained, gate = tmp_path / "trained", tmp_path / "gate"
    command = TRAINING.format(gate=gate, trained=trained, kept=kept)
    task = embedded.submit(command, 1, checkpoint=["ckpt"])
    one, other = pilots
    cache = embedded.folder / "files" / "cache"
    process = one.start("--harvester-id", "one", "--checkpoint-every", "0.5", "--drain-seconds", "0", slots=1)
    if how is signal.SIGKILL:
        until(lambda: list(cache.glob("hpo_cp_*")))
    else:
        until(lambda: trained.exists() and len(trained.read_text().split()) >= 2)
    os.kill(process.pid, how)
    process.wait(600)
    if how is signal.SIGKILL:
        _said_dead(embedded, one, "one")
    assert [path.name for path in cache.glob("hpo_cp_*")] == [f"hpo_cp_{task}_1"]
    # The runner ends its payload when it notices; what that still trains the server does not know of.
    until(lambda: not alive(one.workdir))
    before = [int(line) for line in trained.read_text().split()]
    other.start("--harvester-id", "other", slots=1)
    until(lambda: len(trained.read_text().split()) > len(before))
    went_on_at = int(trained.read_text().split()[len(before)])
    assert 1 < went_on_at <= max(before) + 2
    if how is signal.SIGTERM:
        assert went_on_at > max(before), "saved when it was told to end, and sent before it was reported"
    assert "goes on from the checkpoint" in other.said()
    gate.touch()
    until(lambda: embedded.state(task) == "done")
    assert [verdict["attempt"] for verdict in embedded.verdicts(task)] == [2]
    assert list(cache.glob("hpo_cp_*")) == [], "it has its result"


@pytest.mark.parametrize("kept", ["$HPO_PILOT_CHECKPOINT_DIR/epoch", "ckpt/epoch"])
def test_a_trial_goes_on_from_the_level_below_at_another_pilot(tmp_path, embedded, pilots, until, kept):
    """The first pilot is killed as soon as the server has the checkpoint; its report may have come or not."""
    trained, cache = tmp_path / "trained", embedded.folder / "files" / "cache"
    command = (
        f"mkdir -p ckpt; epoch=$(cat {kept} || echo 0); until [ $epoch -ge $HPO_PILOT_LEVEL ]; do "
        f"epoch=$((epoch+1)); echo $epoch > {kept}.new; mv {kept}.new {kept}; echo $epoch >> {trained}; done; "
        """echo '{"status": 0, "loss": '$epoch'}' > output.json"""
    )
    one, other = pilots

    def submit(trial: int, level: int, chain: int | None, keep: bool) -> int:
        return embedded.submit(command, 1, first=trial, level=TrialLevel(level, chain, keep), checkpoint=["ckpt"])

    def stored() -> list[str]:
        return [path.name.rpartition("_")[2] for path in cache.glob("hpo_cp_of_*")]

    def result(task: int) -> dict[str, Any]:
        until(lambda: embedded.state(task) == "done")
        (verdict,) = embedded.verdicts(task)
        return verdict

    first = submit(0, 3, None, True)
    process = one.start("--harvester-id", "one", slots=1)
    until(stored)
    process.kill()
    process.wait()
    _said_dead(embedded, one, "one")
    other.start("--harvester-id", "other", slots=1)
    assert (result(first)["value"], stored()) == (3, ["t0f0.0"])
    assert (result(submit(1, 9, 0, True))["value"], stored()) == (9, ["t0f0.1"])
    last = result(submit(2, 12, 0, False))
    assert (last["value"], last["message"]) == (12, "")
    until(lambda: not stored())  # no later trial goes on from the highest level
    assert trained.read_text().split() == [str(epoch) for epoch in range(1, 13)], "no epoch was trained twice"
    until(lambda: not list(other.workdir.glob("checkpoints/*/1a2b3c4d/t*")))
    lone = result(submit(4, 2, 3, True))
    assert lone["message"] == "trained from the start: there is no checkpoint of trial 3"
    assert lone["from_start"] is True and "from_start" not in last


def test_agents_store_a_level_before_its_result(tmp_path, embedded, pilots, until):
    """The pilot's own folder keeps nothing that the server has."""
    (pilot, _), cache = pilots, embedded.folder / "files" / "cache"
    tools = slurm_stubs(tmp_path / "tools", srun=SRUN.format(folder=tmp_path / "tools"))
    site = {"name": "here", "launcher": {"name": "srun"}, "node": {"cores": 4, "memory_mb": 4000}, **SLURM}
    (tmp_path / "site.json").write_text(json.dumps({**site, "scratch": {"node": str(tmp_path / "disk")}}))
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    pilot.start("--site", str(tmp_path / "site.json"), "--allocation", variables=variables)
    train = "i=$(cat ckpt || echo 0); echo $HPO_PILOT_LEVEL > ckpt; echo '{\"loss\": '$i'}' > output.json"

    def run(trial: int, level: int, *, keep: bool) -> tuple[float, list[str]]:
        said = TrialLevel(level, None if trial == 0 else 0, keep)
        task = embedded.submit(train, 1, first=trial, level=said, checkpoint=["ckpt"])
        until(lambda: embedded.state(task) == "done")
        found = [path.name.rpartition("_")[2] for path in cache.glob("hpo_cp_of_*")]
        until(lambda: not list(pilot.workdir.glob("checkpoints/*/1a2b3c4d/t*")))
        return embedded.verdicts(task)[0]["value"], found

    assert run(0, 1, keep=True) == (0, ["t0f0.0"])
    assert run(1, 3, keep=True) == (1, ["t0f0.1"])
    assert run(2, 9, keep=False)[0] == 3
    until(lambda: not list(cache.glob("hpo_cp_of_*")))
