from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import requests

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.client import (
    CallRefused,
    Delivery,
    FormFile,
    JobOfAnotherPilot,
    JobServer,
    PilotTokenRefused,
    ServerAway,
)
from hpo_pilot.pilot.machine import FreeResources, MachineGpu
from hpo_pilot.pilot.settings import PilotWorkDir
from tests.certificates import self_signed
from tests.pilot.conftest import TOKEN

REPORT = {"job_id": 1, "attempt_nr": 1, "job_status": "running"}


@pytest.fixture
def settings(panda, make_settings):
    return make_settings(panda.url + "/", slots=2, worker_id=3)


@pytest.fixture
def server(settings):
    return JobServer(settings)


def test_acquire_says_who_asks(panda, server, settings):
    first = panda.add_job("true")
    panda.add_job("true")
    assert [job["PandaID"] for job in server.acquire(FreeResources(1, 4, (MachineGpu("0", "NVIDIA"),)), 0, 500, 0)] == [
        first
    ]
    asked = panda.acquired[0]
    assert asked["site_name"] == "LOCAL" and asked["n_jobs"] == 1 and asked["worker_id"] == 3
    assert asked["harvester_id"] == settings.harvester_id and asked["disk_space"] == 500
    assert asked["prod_source_label"] == "user"
    assert asked["target_architecture"] == {"gpus": [{"vendor": "NVIDIA"}]}
    assert panda.headers[0]["X-HPO-Pilot-Cores"] == "4"


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, PilotTokenRefused), (403, PilotTokenRefused), (404, CallRefused), (413, CallRefused), (500, ServerAway)],
)
def test_answers_become_errors(panda, server, status, error):
    panda.refuse_with = status
    with pytest.raises(error, match=str(status)):
        server.update(REPORT)


def test_away_and_back_are_said_once(panda, server, caplog):
    caplog.set_level(logging.DEBUG)
    server.update(REPORT)
    panda.down()
    for _ in range(3):
        with pytest.raises(ServerAway):
            server.update(REPORT)
    panda.up()
    server.update(REPORT)
    server.update(REPORT)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("hpo_pilot")]
    assert len(ours) == 2
    assert "the server is away, payloads go on" in ours[0] and "the server is back after" in ours[1]
    assert TOKEN not in caplog.text


def test_the_token_file_is_read_again(panda, server, settings):
    server.update(REPORT)
    panda.tokens = {"the-next-one"}
    with pytest.raises(PilotTokenRefused, match="must hold a pilot's token"):
        server.update(REPORT)
    fresh = settings.token_file.with_suffix(".new")
    fresh.write_text("the-next-one\n")
    fresh.replace(settings.token_file)
    server.update(REPORT)
    settings.token_file.write_text("")  # under renewal: the last one does for now
    server.update(REPORT)
    settings.token_file.unlink()
    server.update(REPORT)


def test_authorities_that_are_away_for_a_moment_are_no_proxy(make_settings, tmp_path):
    certificate = self_signed(tmp_path / "ca").chain
    server = JobServer(make_settings("https://127.0.0.1:9", ca=certificate))
    certificate.unlink()
    with pytest.raises(ServerAway, match=r"--ca .*cert\.pem"):
        server.update(REPORT)


@pytest.mark.parametrize("content", [None, "", " \n", "two words", "schlüssel"])
def test_a_token_file_without_token_is_refused(settings, content):
    settings.token_file.unlink()
    if content is not None:
        settings.token_file.write_text(content)
    with pytest.raises(InputError, match="--token-file"):
        JobServer(settings)


def _reports(count: int) -> list[dict[str, object]]:
    return [REPORT | {"job_id": number} for number in range(1, count + 1)]


def test_heartbeats_go_in_bounded_lists_and_each_has_its_answer(panda, server):
    panda.commands[2] = "tobekilled"
    panda.answers[3] = {"success": False, "message": "of another pilot", "data": {"StatusCode": 70}}
    panda.answers[4] = {"success": True, "message": "Timed out", "data": {"StatusCode": 10}}
    panda.answers[5] = {"success": False, "message": "Type error", "data": None}
    first, second, *refused, last = server.update_all(_reports(6))
    assert (first, second, last) == ("", "tobekilled", "") and panda.lists == [6]
    assert [type(error) for error in refused] == [JobOfAnotherPilot, ServerAway, CallRefused]
    assert len(server.update_all(_reports(250))) == 250 and panda.lists[1:] == [100, 100, 50]
    assert server.update_all(_reports(1)) == [""] and len(panda.lists) == 4


def test_a_job_with_which_a_list_fails_stops_no_other(panda, server):
    panda.broken = {7}
    assert server.update_all(_reports(20)) == [""] * 20
    assert sorted(report["job_id"] for report in panda.reports) == list(range(1, 21))  # it went alone, too


def test_a_server_without_the_call_gets_single_reports(panda, server):
    panda.lists = None
    assert server.update_all(_reports(5)) == [""] * 5 and server.most_reports == 1
    panda.lists = []
    assert server.update_all(_reports(5)) == [""] * 5 and panda.lists == [] and len(panda.reports) == 10


def test_a_list_that_got_no_answer_is_shorter_next_time(panda, server):
    panda.refuse_with = 504
    assert [type(answer) for answer in server.update_all(_reports(80))] == [ServerAway] * 80
    panda.refuse_with = 401  # the token is renewed: this says nothing of the call
    assert {type(answer) for answer in server.update_all(_reports(2))} == {PilotTokenRefused}
    panda.refuse_with = None
    assert [server.update_all(_reports(80)) for _ in range(2)] == [[""] * 80] * 2 and panda.lists == [40, 40, 80]


class ProxyServer(BaseHTTPRequestHandler):
    """Takes no token: whoever shows a certificate of its authority may call."""

    def do_POST(self) -> None:
        self.server.seen.append((self.connection.getpeercert(), self.headers.get("Authorization")))
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"success": self.server.gives, "message": "production role needed", "data": {}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A server that takes grid proxies, and a proxy of its authority where grid tools look for one."""
    own, user = self_signed(tmp_path / "tls", ("127.0.0.1",)), self_signed(tmp_path / "user", ("me",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.chain, own.key)
    context.load_verify_locations(user.chain)
    context.verify_mode = ssl.CERT_REQUIRED
    proxy = tmp_path / "x509up"
    proxy.write_bytes(user.chain.read_bytes() + user.key.read_bytes())
    monkeypatch.setenv("X509_USER_PROXY", str(proxy))
    monkeypatch.setenv("X509_CERT_DIR", str(own.folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), ProxyServer)
    server.daemon_threads = True
    server.seen, server.gives, server.proxy = [], True, proxy
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.url = f"https://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join(600)
    server.server_close()


def test_a_proxy_does_where_there_is_no_token(grid, make_settings, tmp_path):
    settings = make_settings(grid.url, token_file=None)
    assert settings.proxy == grid.proxy
    server = JobServer(settings, "key")
    server.update(REPORT)
    ((certificate, authorization),) = grid.seen
    assert certificate["subjectAltName"] == (("DNS", "me"),) and authorization is None
    grid.gives = False
    with pytest.raises(PilotTokenRefused, match="gives this proxy no jobs"):
        server.acquire(FreeResources(1, 1, ()), 0.0, 100, 0)
    other = self_signed(tmp_path / "other", ("me",))
    (tmp_path / "another").write_bytes(other.chain.read_bytes() + other.key.read_bytes())
    # Its connection may end before the server's alert is read.
    with pytest.raises(ServerAway, match=f"does not accept the proxy {tmp_path}/another|does not answer"):
        JobServer(make_settings(grid.url, token_file=None, proxy=tmp_path / "another")).update(REPORT)
    late = JobServer(settings)
    grid.proxy.unlink()
    with pytest.raises(PilotTokenRefused, match="--proxy"):
        late.update(REPORT)


def test_what_is_no_proxy_is_refused(grid, make_settings, tmp_path):
    with pytest.raises(InputError, match="give one of them"):
        make_settings(grid.url, proxy=grid.proxy)
    with pytest.raises(InputError, match="only https"):
        make_settings("http://127.0.0.1:9", token_file=None)
    with pytest.raises(InputError, match=r"give --token-file.*or --proxy.*there is none at"):
        make_settings(grid.url, token_file=None, proxy=tmp_path / "none")
    grid.proxy.write_bytes((tmp_path / "user" / "cert.pem").read_bytes())  # without its key
    with pytest.raises(InputError, match=r"--proxy .* certificate and key"):
        JobServer(make_settings(grid.url, token_file=None))


def test_a_certificate_that_is_not_trusted_is_told_with_the_option(tmp_path, make_settings):
    own = self_signed(tmp_path / "tls", ("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.chain, own.key)
    listener = socket.create_server(("127.0.0.1", 0))

    def shake_hands() -> None:
        with contextlib.suppress(OSError):  # the client turns away
            context.wrap_socket(listener.accept()[0], server_side=True)

    thread = threading.Thread(target=shake_hands)
    thread.start()
    try:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ServerAway, match=r"certificate of .* is not trusted: .*--ca"):
            JobServer(make_settings(url)).update(REPORT)
    finally:
        thread.join(600)
        listener.close()


def test_a_form_with_one_file():
    form = FormFile("5_1", io.BytesIO(b"content" * 1_000_000))  # several blocks
    for _ in range(2):  # a call may be repeated
        body = b"".join(form)
        assert len(body) == len(form)
        boundary = form.content_type.rpartition("=")[2].encode()
        head, _, rest = body.partition(b"\r\n\r\n")
        assert head.startswith(b"--" + boundary + b'\r\nContent-Disposition: form-data; name="file"; filename="5_1"')
        assert rest == b"content" * 1_000_000 + b"\r\n--" + boundary + b"--\r\n"
    prepared = requests.Request("POST", "http://127.0.0.1/", data=form).prepare()
    assert prepared.headers["Content-Length"] == str(len(form))
    assert "Transfer-Encoding" not in prepared.headers


def test_reports_go_on_if_a_sent_one_cannot_be_deleted(make_settings):
    """As on a disk that is read-only after an error."""
    reports = [{"job_id": number, "attempt_nr": 1, "job_status": "finished"} for number in (1, 2)]
    settings = make_settings()
    workdir, sent = PilotWorkDir(settings), []
    for report in reports:
        workdir.keep_report(report)
    delivery = Delivery(SimpleNamespace(update=sent.append), workdir)
    for path in settings.workdir.glob("unsent/*/1.1.json"):
        path.unlink()
        path.mkdir()
    assert delivery.try_all() == 0
    assert sent == reports
