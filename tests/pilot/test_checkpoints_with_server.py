"""A trial goes on at another pilot, which shares no folder with the first: pilots, runner and server as they are."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import requests

from hpo_pilot.pilot.settings import pilot_key
from hpo_pilot.server.tokens import Role
from tests.bearer import token
from tests.pilot.conftest import PilotProcess
from tests.pilot.test_with_server import Embedded

#: Counts the epochs that it trains: each is a line in a file that outlives everything. Told to end, it ends by itself,
#: so that its checkpoint counts as whole at once.
TRAINING = """trap 'exit 1' TERM; epoch=$(cat {kept} || echo 0)
while [ $epoch -lt 1000 ]; do
  if [ -e {gate} ]; then echo '{{"status": 0, "loss": 0.5}}' > output.json; echo end $epoch >> {trained}; exit; fi
  epoch=$((epoch+1)); echo $epoch > {kept}.part; mv {kept}.part {kept}; echo $epoch >> {trained}; sleep 0.7
done"""


@pytest.fixture
def embedded(tmp_path):
    server = Embedded(tmp_path / "server")
    yield server
    server.kill()


@pytest.fixture
def pilots(tmp_path, embedded):
    made = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        made.append(PilotProcess(tmp_path / name, embedded.url, token("me", Role.PILOT)))
    yield made
    for pilot in made:
        for started in pilot.processes:
            started.kill()
            started.wait()


def _said_dead(embedded: Embedded, pilot: PilotProcess, harvester_id: str) -> None:
    """What a pilot's service says of it when it has died: its jobs go back at once."""
    answer = requests.post(
        f"{embedded.url}/api/v1/pilot/update_worker_status",
        json={"worker_id": 1, "harvester_id": harvester_id, "status": "failed"},
        headers={
            "Authorization": f"Bearer {token('me', Role.PILOT)}",
            "X-HPO-Pilot-Key": pilot_key(pilot.workdir, f"{harvester_id}-1"),
        },
        timeout=10,
    )
    assert answer.json()["success"], answer.text


@pytest.mark.parametrize(
    ("how", "kept"), [(signal.SIGKILL, "$HPO_PILOT_CHECKPOINT_DIR/state"), (signal.SIGTERM, "ckpt")]
)
def test_a_trial_goes_on_at_another_pilot(tmp_path, embedded, pilots, until, how, kept):
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
    process.wait(30)
    if how is signal.SIGKILL:
        _said_dead(embedded, one, "one")
    assert [path.name for path in cache.glob("hpo_cp_*")] == [f"hpo_cp_{task}_1"]
    # The runner ends its payload when it notices; what that still trains the server does not know of.
    until(lambda: _is_quiet(trained))
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


def _is_quiet(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > 1.0
