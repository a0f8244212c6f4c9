"""Notifications, sent to a real HTTP server and to a stub of sendmail."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.report.exports import as_json
from hpo_pilot.search import Search
from hpo_pilot.steering import notifications
from hpo_pilot.steering.notifications import ANY_HOST, Notifier, post
from hpo_pilot.steering.service import run
from hpo_pilot.store import SearchState, StoreAwayError
from tests.certificates import self_signed
from tests.made import made_search
from tests.steering.memory_panda import finish_all


@pytest.fixture
def receiver():
    """A server with `url`, the `got` requests, and the statuses of its next answers; then it answers 204."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.got.append((self.path, self.headers["Content-Type"], json.loads(body)))
            status = server.statuses.pop(0) if server.statuses else 204
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.got, server.statuses = [], []
        server.url = f"http://127.0.0.1:{server.server_port}/T0/secret?key=hidden"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def sendmail(tmp_path, monkeypatch):
    """A sendmail program that writes its arguments and the mail to a file."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sendmail"
    program.write_text(f'#!/bin/sh\n{{ echo "$@"; cat; }} >> {tmp_path}/mail\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return tmp_path / "mail"


def test_a_store_that_is_away_is_a_line_of_the_log(store, caplog, monkeypatch):
    tried = threading.Event()

    def away(_):
        tried.set()
        raise StoreAwayError("store: it is away; nothing is lost: try again")

    monkeypatch.setattr(notifications, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(Notifier, "look", away)
    with Notifier(store).working():
        assert tried.wait(600)
    assert {(record.levelname, record.exc_info) for record in caplog.records} == {("WARNING", None)}


def notifying(receiver, **notify):
    return made_search(notify={"url": receiver.url, **notify})


def log(store):
    return [event.what for event in store.events(1) if event.what.startswith("notification")]


def test_an_end_is_told_once_with_the_best_point_also_after_a_restart(store, steer, panda, receiver):
    steering = steer({"notify": {"url": receiver.url}}, trials=2)
    finish_all(steering, panda)
    for _ in range(2):
        assert not Notifier(store, hosts=ANY_HOST, pages="https://hpo.example.org").look()
    ((path, kind, sent),) = receiver.got
    assert (path, kind) == ("/T0/secret?key=hidden", "application/json")
    assert (sent["event"], sent["search"], sent["owner"]) == ("done", "demo", "me")
    assert sent["trials"] == {"planned": 2, "finished": 2}
    best = min(store.trials(1), key=lambda trial: trial.values)
    assert sent["best"] == {"trial": best.number, "values": {"loss": best.values[0]}, "point": best.point}
    assert sent["page"] == "https://hpo.example.org/searches/demo"
    assert log(store) == [f"notification of done by webhook sent to http://127.0.0.1:{receiver.server_port}"]
    store.reopen(1, "me", "extended", only_from=[SearchState.DONE])
    store.set_state(1, SearchState.FAILED, "service", "all trials failed")
    Notifier(store, hosts=ANY_HOST).look()
    assert [(one[2]["event"], one[2]["message"]) for one in receiver.got[1:]] == [("failed", "all trials failed")]


def test_other_events_than_the_wished_ones_and_ends_on_request_are_not_told(store, register, receiver):
    register(notifying(receiver, on=["failed"]))
    for state in (SearchState.DONE, SearchState.STOPPED):
        store.set_state(1, state, "service")
        assert not Notifier(store, hosts=ANY_HOST).look()
    assert receiver.got == []


@pytest.mark.parametrize("status", [302, 500])
def test_a_refused_message_is_tried_again_and_then_given_up(store, register, receiver, status):
    register(notifying(receiver))
    store.set_state(1, SearchState.DONE, "service")
    receiver.statuses = [status] * 3
    notifier = Notifier(store, hosts=ANY_HOST, pauses=(0.0, 0.0))
    assert [notifier.look() for _ in range(4)] == [True, True, False, False]
    assert [path for path, _, _ in receiver.got] == ["/T0/secret?key=hidden"] * 3
    assert log(store) == [
        f"notification of done by webhook not sent after 3 tries: 127.0.0.1 answered with status {status}"
    ]


def test_a_message_whose_entry_cannot_be_written_is_sent_once(store, register, receiver, monkeypatch):
    store.set_state(register(notifying(receiver)).id, SearchState.FAILED, "service", "no")
    notifier = Notifier(store, hosts=ANY_HOST)

    def away(*_, **__):
        raise StoreAwayError("store: the disk is full")

    with monkeypatch.context() as full:
        full.setattr(store, "record", away)
        for _ in range(3):
            with pytest.raises(StoreAwayError):
                notifier.look()
    notifier.look()
    assert len(receiver.got) == 1 and len(log(store)) == 1


def test_a_stalled_search_is_told_once_until_something_happens(store, register, receiver, monkeypatch):
    register(notifying(receiver))
    store.set_state(1, SearchState.RUNNING, "service")
    notifier, now = Notifier(store, hosts=ANY_HOST), time.time()

    def look(minutes):
        monkeypatch.setattr(notifications.time, "time", lambda: now + 60 * minutes)
        notifier.look()
        return [one["event"] for _, _, one in receiver.got]

    assert look(179) == []  # nothing finished yet: a run may take the 60 minutes of its job
    assert look(181) == look(600) == ["stalled"]
    store.set_state(1, SearchState.PAUSED, "me")
    assert look(900) == ["stalled"]
    store.set_state(1, SearchState.RUNNING, "me")
    assert look(1000) == ["stalled"]  # three hours after it was resumed
    assert look(1081) == look(9000) == ["stalled"] * 2
    monkeypatch.undo()


def test_a_mail_goes_through_sendmail(store, register, sendmail):
    register(made_search(notify={"email": "ada@example.org"}))
    store.set_state(1, SearchState.DONE, "service")
    assert not Notifier(store).look()
    arguments, *mail = sendmail.read_text().splitlines()
    assert arguments == "-i -- ada@example.org"
    assert "To: ada@example.org" in mail
    assert "Subject: hpo-pilot: search demo: done" in mail
    assert log(store) == ["notification of done by e-mail sent to ada@example.org"]


def test_a_machine_without_sendmail_says_so_in_the_log(store, register, monkeypatch):
    monkeypatch.setattr(notifications.shutil, "which", lambda *_, **__: None)
    register(made_search(notify={"email": "ada@example.org"}))
    store.set_state(1, SearchState.DONE, "service")
    assert not Notifier(store).look()
    assert "no sendmail program" in log(store)[0]


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("http://127.0.0.1:1/", ()),
        ("http://localhost:1/", ()),
        ("http://[::1]:1/", ()),
        ("http://[::ffff:127.0.0.1]:1/", ()),
        ("http://2130706433:1/", ()),
        ("http://10.0.0.1/", ()),
        ("http://169.254.169.254/latest", ()),
        ("http://127.0.0.1:1/", ("hooks.example.org",)),
    ],
)
def test_a_service_sends_nothing_to_private_addresses_or_unlisted_hosts(url, hosts):
    with pytest.raises(InputError, match="serve --notify-hosts"):
        post(url, {}, hosts)


def test_a_receiver_that_answers_byte_by_byte_holds_no_thread(monkeypatch):
    monkeypatch.setattr(notifications, "_SEND_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle():
            caller, _ = server.accept()
            with caller, contextlib.suppress(OSError):
                while True:
                    caller.sendall(b"H")
                    time.sleep(0.1)

        threading.Thread(target=trickle, daemon=True).start()
        with pytest.raises((OSError, http.client.HTTPException)):
            post(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, ANY_HOST)


def test_https_needs_a_trusted_certificate(tmp_path, receiver, monkeypatch):
    made = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.chain, made.key)
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True)
    url = receiver.url.replace("http://127.0.0.1", "https://localhost")
    with pytest.raises(ssl.SSLError):
        post(url, {}, ANY_HOST)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.chain))
    post(url, {}, ANY_HOST)
    assert len(receiver.got) == 1


def test_a_listed_host_may_have_any_address(receiver):
    post(receiver.url, {}, ["127.0.0.1"])
    assert len(receiver.got) == 1


def test_secret_parts_of_the_address_are_stored_and_not_shown(store, register, receiver):
    search = register(notifying(receiver)).search
    assert search.notify.url == receiver.url
    assert Search.model_validate(search.shown()).to_dict() == search.shown()
    assert "secret" not in (shown := "".join(as_json(search, [])))
    assert "hidden" not in shown


def test_run_tells_the_end_before_it_returns(tmp_path, receiver, monkeypatch):
    monkeypatch.delenv("PANDA_URL_SSL", raising=False)
    (tmp_path / "demo.yaml").write_text(
        json.dumps(
            {
                "search": "demo",
                "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
                "budget": {"trials": 1},
                "payload": {"command": "echo '{\"loss\": 0.5}' > output.json"},
                "notify": {"url": receiver.url, "on": ["done"]},
            }
        )
    )
    for _ in range(2):
        run(tmp_path / "demo.yaml", tmp_path / "work", server="embedded")
    ((_, _, sent),) = receiver.got
    assert sent["trials"] == {"planned": 1, "finished": 1}
    assert sent["best"]["values"] == {"loss": 0.5}
    assert 0.0 <= sent["best"]["point"]["x"] <= 1.0
