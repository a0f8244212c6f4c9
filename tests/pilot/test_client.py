from __future__ import annotations

import contextlib
import io
import logging
import socket
import ssl
import threading

import pytest
import requests

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.client import CallRefused, FormFile, JobServer, ServerAway, TokenRefused
from hpo_pilot.pilot.machine import FreeResources, Gpu
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
    assert [job["PandaID"] for job in server.acquire(FreeResources(1, 4, (Gpu("0", "NVIDIA"),)), 0, 500, 0)] == [first]
    asked = panda.acquired[0]
    assert asked["site_name"] == "LOCAL" and asked["n_jobs"] == 1 and asked["worker_id"] == 3
    assert asked["harvester_id"] == settings.harvester_id and asked["disk_space"] == 500
    assert asked["prod_source_label"] == "user"
    assert asked["target_architecture"] == {"gpus": [{"vendor": "NVIDIA"}]}
    assert panda.headers[0]["X-HPO-Pilot-Cores"] == "4"


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, TokenRefused), (403, TokenRefused), (404, CallRefused), (413, CallRefused), (500, ServerAway)],
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
    with pytest.raises(TokenRefused, match="must hold a pilot's token"):
        server.update(REPORT)
    fresh = settings.token_file.with_suffix(".new")
    fresh.write_text("the-next-one\n")
    fresh.replace(settings.token_file)
    server.update(REPORT)
    settings.token_file.unlink()  # under renewal: the last one does for now
    server.update(REPORT)


@pytest.mark.parametrize("content", [None, "", " \n", "two words", "schlüssel"])
def test_a_token_file_without_token_is_refused(settings, content):
    settings.token_file.unlink()
    if content is not None:
        settings.token_file.write_text(content)
    with pytest.raises(InputError, match="--token-file"):
        JobServer(settings)


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
        thread.join(10)
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
