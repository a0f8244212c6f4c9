"""TLS: given certificates, their renewal, and who may listen without."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography import x509

from hpo_pilot.errors import InputError
from hpo_pilot.server.listening import ServedCertificate
from hpo_pilot.trust import served_name
from tests.bearer import make_token_folder, token
from tests.certificates import self_signed
from tests.server.conftest import TOKENS, PandaClient

Params = Callable[..., dict[str, Any]]
ALIVE = "/api/v1/system/is_alive"
EVERYWHERE = "0.0.0.0"  # noqa: S104  # what is refused


def test_the_name_to_call_a_given_certificate_by(tmp_path: Path) -> None:
    made = self_signed(tmp_path, ["*.example.org", "panda.example.org"])
    assert served_name(made.chain) == "panda.example.org"
    with pytest.raises(InputError, match="not a certificate"):
        served_name(made.key)


def test_a_certificate_that_does_not_fit_its_key(tmp_path: Path) -> None:
    one, other = self_signed(tmp_path / "one"), self_signed(tmp_path / "other")
    with pytest.raises(InputError, match="belong together"):
        ServedCertificate(one.chain, other.key)
    with pytest.raises(InputError, match="No such file"):
        ServedCertificate(one.chain, tmp_path / "nothing")


def _serial_shown(context: ssl.SSLContext, trusted: Path) -> int:
    """The serial number that a server with this context shows."""
    client = ssl.create_default_context(capath=str(trusted))
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    a = client.wrap_bio(ours, theirs, server_hostname="localhost")
    b = context.wrap_bio(theirs, ours, server_side=True)
    for _ in range(4):
        for side in (a, b):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = a.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, other = self_signed(tmp_path / "made"), self_signed(tmp_path / "other")
    served = ServedCertificate(made.chain, made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.chain, made.key)
    first, trusted = _serial_shown(context, made.folder), made.folder
    assert not served.refresh(context)
    good = made.chain.read_bytes()
    made.chain.write_text("half a certifi")
    assert not served.refresh(context)
    assert "stays in use" in caplog.text
    assert _serial_shown(context, trusted) == first
    made.chain.write_bytes(good)
    assert served.refresh(context)
    assert _serial_shown(context, trusted) == first
    made.key.write_bytes(other.key.read_bytes())
    made.chain.write_bytes(other.chain.read_bytes())
    assert served.refresh(context)
    assert _serial_shown(context, other.folder) != first
    assert not served.refresh(context)


def test_a_server_with_a_certificate(own_server: Callable[..., Any], params: Params, tmp_path: Path) -> None:
    """The real panda-client and our own sessions, verified by the authority's file or folder."""
    server = own_server(tls=True)
    assert server.url.startswith("https://127.0.0.1:")
    task_id = server.api("me").submit(params("user.me.tls/", 1))
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(server.url + ALIVE, timeout=10)
    port = server.url.rsplit(":", 1)[1]
    for name in ("localhost", "127.0.0.1"):
        assert requests.get(f"https://{name}:{port}{ALIVE}", verify=str(server.tls.chain), timeout=10).ok
    (tmp_path / "client").mkdir()
    client = PandaClient(server.url, "token-of-me", tmp_path / "client", server.tls.folder)
    assert client.getTaskStatus(task_id) == [0, "running"]
    client.close()
    stranger = PandaClient(server.url, "token-of-me", tmp_path / "client", tmp_path)
    assert stranger.getTaskStatus(task_id)[0] != 0, "it verifies"
    stranger.close()
    server.stop()
    server.start()
    assert server.api("me").get("task/get_status", task_id=task_id)["success"], "with the same certificate"


def test_plain_http_to_a_tls_port_is_no_trouble(own_server: Callable[..., Any]) -> None:
    server = own_server(tls=True)
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rsplit(":", 1)[1]), timeout=10)
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.request("GET", ALIVE)
        connection.getresponse()
    assert server.api(None).get("system/is_alive")["success"]


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hpo_pilot.server", "--database", f"sqlite:///{folder}/panda.db"]
    command += ["--files", str(folder / "files"), "--tokens", str(folder / "tokens"), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--host", EVERYWHERE), "add --tls-cert"),
        (("--host", ""), "add --tls-cert"),
        (("--tls-cert", "cert.pem"), "give both, or neither"),
        (("--tls-cert", "cert.pem", "--tls-key", "key.pem"), "cert.pem"),
        (("--issuers", "/nowhere"), "issuers"),
    ],
)
def test_refused_options(
    tmp_path: Path, refused: Callable[..., tuple[int, str]], options: tuple[str, ...], word: str
) -> None:
    make_token_folder(tmp_path / "tokens")
    code, line = refused(tmp_path, *options)
    assert (code, word in line) == (2, True), line


def test_insecure_is_said_in_so_many_words(tmp_path: Path) -> None:
    """Listens on loopback only here, but for the option's sake."""
    make_token_folder(tmp_path / "tokens")
    server = start(tmp_path, "--insecure-behind-proxy")
    assert server.stdout is not None
    url = server.stdout.readline().rsplit(" ", 1)[1].strip()
    headers = {"Authorization": f"Bearer {token(*TOKENS['token-of-me'])}"}
    assert requests.get(f"{url}/api/v1/system/get_user_attributes", headers=headers, timeout=10).ok
    server.terminate()
    server.communicate(timeout=20)
