"""The embedded server of a work folder: its addresses, its port, its queues, and which server a search is tied to."""

from __future__ import annotations

import json
import socket
import stat
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema
import pytest
import requests

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.search import Trial
from hpo_pilot.search.yaml_document import read_document
from hpo_pilot.server.queues import Queues
from hpo_pilot.steering import embedded
from hpo_pilot.steering.embedded import (
    EmbeddedPanda,
    QueueFileError,
    bind_to_server,
    check_steered,
    chosen_server,
    load_queues,
    nickname_at,
    write_queues,
)
from hpo_pilot.steering.server_processes import ApiProcess, NetworkOptions
from hpo_pilot.steering.status import waiting_job_notes
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, NewTask
from hpo_pilot.web.server_jobs import NoServerError, ServerJobs
from schemas.write import schema_of
from tests.certificates import self_signed
from tests.made import made_search

EXAMPLE = Path(__file__).parents[2] / "deploy" / "queues.yaml"
REAL = "https://panda.example.org:25443"


def test_while_it_runs_and_after(tmp_path: Path) -> None:
    """How others on this machine find it and the queues that it was given; they do not once it has ended."""
    file = tmp_path / "queues.yaml"
    file.write_text("queues:\n  LOCAL: {}\n  BIG: {cores: 64}\n")
    workdir = WorkDir.make(tmp_path / "work")
    board = ServerJobs(workdir.root)
    assert waiting_job_notes(workdir.root, [1]) == []
    panda = EmbeddedPanda(workdir, slots=0, queues=file)
    panda.start()
    try:
        assert board.url == panda.url and board.jobs().jobs == () and board.pilots() == []
        assert [queue.name for queue in board.queues()] == ["BIG", "LOCAL"]
        assert waiting_job_notes(workdir.root, [1]) == []
        for address in (workdir.root / "panda.url", workdir.monitor_address):
            assert stat.S_IMODE(address.stat().st_mode) == 0o600
        monitor = workdir.monitor_address.read_text().strip()
        assert monitor.startswith(f"{panda.url}/bigmon/")
        assert requests.get(f"{monitor}/tasks/?json", timeout=600).json() == []
        described = requests.get(f"{panda.url}/cache/pandaqueues.json", timeout=600).json()
    finally:
        panda.stop()
    assert {name: queue["corecount"] for name, queue in described.items()} == {"LOCAL": 1, "BIG": 64}
    assert json.loads((workdir.root / "queues.json").read_text())["queues"]["BIG"] == {"cores": 64}
    assert not (workdir.root / "panda.url").exists()
    assert not board.jobs().is_live
    with pytest.raises(NoServerError):
        board.pilots()


def test_the_port_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(embedded, "_PORT_SECONDS", 0.2)
    workdir = WorkDir.make(tmp_path / "work")
    first = EmbeddedPanda(workdir, slots=0).url
    (workdir.tokens / "address").write_text(f"{first}\n")
    assert EmbeddedPanda(workdir, slots=0).url == first
    with socket.create_server(("127.0.0.1", urlsplit(first).port or 0)):
        other = EmbeddedPanda(workdir, slots=0).url
    assert other != first and "on which earlier pilots expect this server, is taken" in caplog.text
    (workdir.tokens / "address").write_text("nonsense")
    assert EmbeddedPanda(workdir, slots=0).url.startswith("http://127.0.0.1:")


def test_several_processes_need_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = WorkDir.make(tmp_path / "work")
    with pytest.raises(InputError, match="set HPO_PILOT_SERVER_DATABASE=postgresql"):
        EmbeddedPanda(workdir, slots=0, processes=2)
    monkeypatch.setenv("HPO_PILOT_SERVER_DATABASE", "postgresql+psycopg://panda@host/panda")
    assert "panda@host" not in str(EmbeddedPanda(workdir, slots=0, processes=2)._server._argv)


# --- the queue file ---


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("kind", ["server", "API"])
def test_another_program_on_the_port_is_said_and_gets_nothing(tmp_path: Path, kind: str, tls: bool) -> None:
    workdir = WorkDir.make(tmp_path / "work")
    reach = NetworkOptions()
    if tls:
        made = self_signed(tmp_path / "tls")
        reach = NetworkOptions(certificate=made.chain, key=made.key, authority=made.chain)
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        port = other.getsockname()[1]
        panda = EmbeddedPanda(workdir, slots=0, reach=replace(reach, port=port))
        api = ApiProcess(workdir, store=None, reach=reach, port=port)
        try:
            with pytest.raises(TryAgainError, match=f"port {port}"):
                if kind == "server":
                    panda.start()
                else:
                    api.start()
                    api.wait()
            with pytest.raises(BlockingIOError):
                other.accept()
        finally:
            panda.stop()
            api.stop()


def test_the_local_pilot_needs_its_queue(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("queues: {BIG: {cores: 64}}\n")
    folder = WorkDir.make(tmp_path / "work")
    with pytest.raises(InputError, match="has no queue LOCAL"):
        EmbeddedPanda(folder, slots=1, queues=file)
    EmbeddedPanda(folder, slots=0, queues=file)


def test_the_local_pilot_sends_its_checkpoints_if_there_may_be_others(tmp_path: Path) -> None:
    folder = WorkDir.make(tmp_path / "work")
    for url in (None, "https://panda.example.org:25443"):
        panda = EmbeddedPanda(folder, slots=1, reach=NetworkOptions(public_url=url))
        assert ("--checkpoint-mb" in panda._pilot._argv) == (url is not None)


def test_the_example_is_right_and_the_server_can_read_it(tmp_path: Path) -> None:
    found = load_queues(EXAMPLE)
    assert set(found.queues) == {"LOCAL", "CLUSTER_GPU", "CLUSTER_OLD"}
    jsonschema.validate(read_document(EXAMPLE).value, schema_of("queues.json"))
    target = tmp_path / "queues.json"
    write_queues(found, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert Queues(target, tmp_path).described == found.queues


def test_every_mistake_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("""\
queues:
  "bad name": {}
  A: {core: 3, minutes: -1, status: offlin}
  B: 3
  C: {gpu: {modell: x}, storage: shared, cores: 1.5}
other: 1
""")
    with pytest.raises(QueueFileError) as caught:
        load_queues(file)
    assert [(problem.line, problem.column, problem.path) for problem in caught.value.problems] == [
        (2, 15, "queues.bad name"),
        (3, 7, "queues.A.core"),
        (3, 25, "queues.A.minutes"),
        (3, 37, "queues.A.status"),
        (4, 6, "queues.B"),
        (5, 13, "queues.C.gpu.modell"),
        (5, 34, "queues.C.storage"),
        (5, 49, "queues.C.cores"),
        (6, 1, "other"),
    ]
    assert "did you mean cores?" in caught.value.problems[1].suggestion


@pytest.mark.parametrize("text", ["", "[1]", "queues: {}\n", "queues: [A]\n", "queues:\n\tA: 1\n"])
def test_files_without_queues(tmp_path: Path, text: str) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(text)
    with pytest.raises(QueueFileError, match=r"queues\.yaml"):
        load_queues(file)


# --- which server is meant ---


@pytest.fixture
def record(store):
    return store.create_search(made_search(), source="demo.yaml", sandbox=None, owner="me")


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in ("PANDA_URL_SSL", "PANDA_AUTH", "PANDA_AUTH_VO", "OIDC_AUTH_VO"):
        monkeypatch.delenv(name, raising=False)


def test_option_then_search_then_environment_then_embedded(record, monkeypatch):
    assert chosen_server(None) == EMBEDDED
    assert chosen_server("embedded") == EMBEDDED
    monkeypatch.setenv("PANDA_URL_SSL", f"{REAL}/server/panda")
    assert chosen_server(None) == chosen_server(None, [record]) == REAL
    assert chosen_server(EMBEDDED, [record]) == EMBEDDED
    here = replace(record, server=EMBEDDED)
    assert chosen_server(None, [here]) == chosen_server(None, [record, here]) == EMBEDDED
    with pytest.raises(InputError, match=f"--server {EMBEDDED}"):
        chosen_server(REAL, [record, here])


def test_a_search_is_tied_to_the_first_server_that_has_it(store, record):
    assert store.bind_server(record.id, REAL) == REAL
    assert store.bind_server(record.id, EMBEDDED) == REAL
    assert store.search(record.id).server == REAL
    with pytest.raises(InputError, match=f"has its tasks at the PanDA server {REAL}"):
        bind_to_server(store, [record], EMBEDDED)


def test_a_family_is_tied_as_a_whole_or_not_at_all(store, record):
    search = record.search.model_copy(update={"name": "other"})
    other = store.create_search(search, source="other.yaml", sandbox=None, owner="me")
    store.bind_server(other.id, REAL)
    with pytest.raises(InputError, match="'other' has its tasks"):
        bind_to_server(store, [record, other], EMBEDDED)
    assert store.search(record.id).server is None


def test_a_service_leaves_searches_of_other_servers_alone(record):
    check_steered({"new": None, "demo": REAL}, REAL)
    check_steered({"demo": REAL}, None)
    with pytest.raises(InputError, match=f"goes to the embedded PanDA server.*steers only at the PanDA server {REAL}"):
        check_steered({"new": None, "demo": EMBEDDED}, REAL)


def test_a_search_of_before_there_were_others_is_at_the_embedded_one(store, record):
    trial = Trial(1, 1, {"x": 0.5}, seed=7)
    task = NewTask("user.me.demo.cafecafe.g1/", 1, 0, (((1, 0, 7),),))
    store.add_generation(record.id, history=0, pending=[], trials=[trial], task=task)
    assert store.bind_server(record.id, REAL) == EMBEDDED


def test_a_name_that_is_taken_is_replaced_before_it_is_used(store, record):
    task = NewTask("user.me.demo.cafecafe.g1/", 1, 0, (((1, 0, 7),),))
    sent = store.add_generation(record.id, history=0, pending=[], trials=[Trial(1, 1, {"x": 0.5}, seed=7)], task=task)
    store.rename_task(sent.id, "user.me.demo.deadbeef.g1/")
    assert [open_task.name for open_task in store.open_tasks(record.id)] == ["user.me.demo.deadbeef.g1/"]
    store.task_submitted(sent.id, 77)
    store.rename_task(sent.id, "user.me.demo.00000000.g1/")
    assert [open_task.name for open_task in store.open_tasks(record.id)] == ["user.me.demo.deadbeef.g1/"]


def test_oidc_without_a_vo_is_a_wrong_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("PANDA_AUTH", "oidc")
    with pytest.raises(InputError, match="PANDA_AUTH_VO"):
        nickname_at(REAL, tmp_path / "log")


def test_a_name_that_no_task_can_have_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PANDA_AUTH", "x509_no_grid")
    monkeypatch.setenv("PANDA_NICKNAME", "ann other")
    with pytest.raises(InputError, match="'ann other', which is not allowed in names of tasks"):
        nickname_at("http://127.0.0.1:1", tmp_path / "log")
    monkeypatch.setenv("PANDA_NICKNAME", "aother")
    with pytest.raises(TryAgainError, match=r"127\.0\.0\.1:1 cannot be reached"):
        nickname_at("http://127.0.0.1:1", tmp_path / "log")
