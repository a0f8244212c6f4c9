"""`hpo-pilot run --server`: a whole search at a server that is none of ours, with all that such servers do."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from hpo_pilot.cli.main import app
from hpo_pilot.errors import HpoPilotError
from hpo_pilot.panda import manager, tasks
from hpo_pilot.server.tokens import Role
from tests.bearer import make_token_folder, token
from tests.panda.foreign_panda import ForeignPanda, Quirks
from tests.rest_api import store_of
from tests.server_process import ServerProcess

#: A Rucio that has every file: an archive that says which it is.
RUCIO = """#!{python}
import io, sys, tarfile
*_, folder, did = sys.argv
name = did.partition(":")[2]
with tarfile.open(f"{{folder}}/{{name}}", "w:gz") as archive:
    info = tarfile.TarInfo("model.txt")
    info.size = len(name)
    archive.addfile(info, io.BytesIO(name.encode()))
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A collaboration's server with one site, whose pilot knows nothing of us, and the user's login there."""
    tokens = make_token_folder(tmp_path / "tokens")
    server = ServerProcess(database=tmp_path / "panda.db", files=tmp_path / "files", tokens=tokens)
    for name, role in (("user", Role.USER), ("pilot", Role.PILOT)):
        (tmp_path / f"{name}.token").write_text(token("me", role))
        (tmp_path / f"{name}.token").chmod(0o600)
    foreign = ForeignPanda(server.url)
    pilot = subprocess.Popen(
        [
            *(sys.executable, "-m", "hpo_pilot.pilot", "--server", server.url, "--queue", "CERN", "--slots", "2"),
            *("--token-file", str(tmp_path / "pilot.token"), "--workdir", str(tmp_path / "pilots")),
            *("--checkpoints", str(tmp_path / "checkpoints"), "--heartbeat", "1"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    settings = {
        "PANDA_URL_SSL": f"{foreign.url}/server/panda",
        "PANDA_AUTH": "oidc",
        "PANDA_AUTH_VO": "hpo_pilot",
        "OIDC_AUTH_TOKEN_FILE": str(tmp_path / "user.token"),
        "PANDA_NICKNAME": "me",
        "COLUMNS": "200",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("PANDA_AUTH_ID_TOKEN", "HPO_PILOT_STORE", "HPO_PILOT_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    # Minutes at a real server; a test has seconds.
    monkeypatch.setattr(tasks, "INTERVAL", (0.2, 0.5))
    monkeypatch.setattr(manager, "POLITE", replace(manager.POLITE, retry_seconds=(0.2, 0.5)))
    yield foreign
    pilot.terminate()
    pilot.wait(600)
    foreign.stop()
    server.stop()


def command(scan, *arguments):
    result = CliRunner().invoke(app, [*arguments, "--workdir", str(scan.workdir)])
    if result.exception is not None and not isinstance(result.exception, SystemExit | HpoPilotError):
        raise result.exception
    return result


def test_a_search_survives_whatever_a_real_server_does(scan, site, tmp_path, monkeypatch):
    site.quirks = Quirks(hidden=0.5, brokerage=0.5, holding=0.5, throttled=1, lost=1, bad_gateway_every=23)
    budget = {"trials": 8, "parallel": 4}
    payload = {"files": "payload", "command": "python3 -I -S train.py", "outputs": ["model.txt"]}
    scan.write({"budget": budget, "folds": 2, "payload": payload, "site": {"queue": "CERN"}})
    result = command(scan, "run", str(scan.file), "--server", f"{site.url}/server/panda")
    assert result.exit_code == 0, f"{result.exception} {result.output} {scan.logs()}"
    assert f"PanDA server: {site.url}" in result.output
    trials = scan.trials()
    assert [trial["state"] for trial in trials] == ["finished"] * 8
    for trial in trials:
        assert trial["value"] == pytest.approx((trial["point"]["x"] - 0.3) ** 2 + 0.0005)
        assert [fold["attempt"] for fold in trial["folds"]] == [1, 1]
    with closing(store_of(scan.workdir)) as store:
        assert store.search("demo").server == site.url
        assert all(name.startswith("user.me:user.me.demo.") for name in store.outputs(1, 1).values())
    assert site.calls["task/submit"] <= 12
    assert not (scan.workdir / "panda.db").exists(), "no embedded server was started"
    assert not (scan.workdir / "pilots").exists()

    # Its outputs are fetched from Rucio.
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    result = command(scan, "fetch", "best", "demo", "-o", str(tmp_path / "out"))
    assert "rucio download --no-subdir --dir" in str(result.exception) + result.output
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "rucio").write_text(RUCIO.format(python=sys.executable))
    (folder / "rucio").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    assert command(scan, "fetch", "best", "demo", "-o", str(tmp_path / "out")).exit_code == 0
    fetched = list((tmp_path / "out").rglob("model.txt"))
    assert len(fetched) == 2 and all(path.read_text().endswith(".outputs.tar.gz") for path in fetched)


def test_a_task_that_the_server_finds_senseless_ends_the_search(scan, site):
    scan.write({"budget": {"trials": 4, "parallel": 2}, "site": {"queue": "CERN"}})
    change = site._changed

    def broken(path, answer):
        answer = change(path, answer)
        if path == "task/get_detailed_info" and answer["success"]:
            answer["data"] |= {"status": "broken", "errorDialog": "<b>no such VO</b>"}
        if path == "task/get_job_descriptions":
            answer["data"] = []
        return answer

    site._changed = broken
    result = command(scan, "run", str(scan.file))
    assert result.exit_code == 1
    assert "cannot use the parameters of task" in result.output
    assert "no such VO" in result.output


def test_the_doctor_tries_what_a_search_does_there(scan, site, tmp_path):
    def examined(status=0):
        result = command(scan, "doctor", "--server", site.url, "--json")
        assert result.exit_code == status, result.output
        return {finding["what"]: finding for finding in json.loads(result.output)}

    found = examined()
    assert site.url in found["PanDA server"]["detail"]
    assert "you are me, VO hpo_pilot" in found["credentials"]["detail"]
    assert "without a production role" in found["group"]["detail"]
    assert "early stopping" not in found["group"]["detail"]
    assert found["upload"]["ok"] and found["upload"]["needed"]
    assert not found["queues"]["ok"] and not found["queues"]["needed"], "no queue file describes any"
    assert site.calls["file_server/upload_cache_file"] == site.calls["file_server/touch_cache_file"] == 1
    assert site.calls["task/submit"] == 0
    (tmp_path / "user.token").write_text(token("me", Role.OPERATOR))
    found = examined()
    assert found["upload"]["ok"], "the same file again"
    assert "early stopping stops none" in found["group"]["detail"]
    site.quirks.unregistered = 1
    failed = examined(3)["upload"]
    assert not failed["ok"] and "failed to register" in failed["detail"]
    site.quirks.denied = "Invalid token. Signature has expired"
    found = examined(3)
    assert "Signature has expired" in found["PanDA server"]["detail"]
    assert "upload" not in found
    site.stop()
    assert "cannot be reached" in examined(3)["PanDA server"]["detail"]


def test_nothing_is_sent_by_a_rehearsal_and_by_what_is_refused(scan, site):
    scan.write({"budget": {"trials": 40, "parallel": 40}, "panda": {"working_group": "phys-higgs", "official": True}})
    rehearsal = command(scan, "submit", str(scan.file), "--dry-run").output
    assert '"taskName": "group.phys-higgs.demo.00000000.g1/"' in rehearsal
    assert '"site": null' in rehearsal and f'"sourceURL": "{site.url}"' in rehearsal
    slots = command(scan, "run", str(scan.file), "--slots", "2")
    assert "no pilot is started here" in str(slots.exception)

    assert command(scan, "submit", str(scan.file), "--server", "embedded").exit_code == 0
    elsewhere = command(scan, "run", str(scan.file), "--server", site.url)
    assert "has its tasks at the embedded PanDA server" in str(elsewhere.exception)
    assert "--server embedded" in str(elsewhere.exception)
    assert not site.calls
