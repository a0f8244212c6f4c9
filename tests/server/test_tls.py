"""TLS: certificates of our own making, given ones, renewal, and who may listen without."""

from __future__ import annotations

import http.client
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography import x509

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.tls import Certificate, ServedCertificate, names_of, self_made, served_name
from tests.bearer import make_token_folder, token
from tests.server.conftest import TOKENS, PandaClient

Params = Callable[..., dict[str, Any]]
ALIVE = "/api/v1/system/is_alive"
EVERYWHERE = "0.0.0.0"  # noqa: S104  # what is refused


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def later(days: float) -> Callable[[], datetime]:
    return lambda: datetime.now(UTC) + timedelta(days=days)


def test_it_is_made_once_and_renewed_before_it_ends(tmp_path: Path) -> None:
    made = self_made(tmp_path, {"a.example.org", "10.0.0.1"})
    first, authority = made.chain.read_bytes(), made.authority
    assert authority is not None
    assert self_made(tmp_path, {"a.example.org"}, clock=later(59)).chain.read_bytes() == first
    public = authority.read_bytes()
    self_made(tmp_path, {"a.example.org"}, clock=later(61))
    assert made.chain.read_bytes() != first
    assert read(made.chain).not_valid_after_utc > later(150)()
    assert authority.read_bytes() == public, "clients trust it still"
    read(made.chain).verify_directly_issued_by(read(authority))
    made.check()


def test_another_name_is_another_certificate_of_the_same_authority(tmp_path: Path) -> None:
    made = self_made(tmp_path, {"a.example.org"})
    public = (tmp_path / "ca" / "ca.pem").read_bytes()
    self_made(tmp_path, {"b.example.org", "::1"})
    names = read(made.chain).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["b.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["::1"]
    assert (tmp_path / "ca" / "ca.pem").read_bytes() == public


def test_an_authority_at_its_end_is_replaced(tmp_path: Path) -> None:
    made = self_made(tmp_path, {"a"})
    assert made.authority is not None
    public = made.authority.read_bytes()
    self_made(tmp_path, {"a"}, clock=later(3600))
    assert made.authority.read_bytes() != public
    read(made.chain).verify_directly_issued_by(read(made.authority))
    assert len(list(made.authority.parent.glob("*.[0-9]"))) == 1


@pytest.mark.parametrize("damaged", ["server.pem", "server-key.pem", "ca/ca.pem", "ca-key.pem"])
@pytest.mark.parametrize("how", ["gone", "broken"])
def test_damage_is_mended(tmp_path: Path, damaged: str, how: str) -> None:
    made = self_made(tmp_path, {"a"})
    if how == "gone":
        (tmp_path / damaged).unlink()
    else:
        (tmp_path / damaged).write_text("broken")
    self_made(tmp_path, {"a"})
    assert made.authority is not None
    made.check()
    read(made.chain).verify_directly_issued_by(read(made.authority))


def test_keys_are_private_and_the_authority_is_not(tmp_path: Path) -> None:
    self_made(tmp_path / "tls", {"a"})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").rglob("*")}
    assert (modes["ca-key.pem"], modes["server-key.pem"]) == (0o600, 0o600)
    assert (modes["ca"], modes["ca.pem"]) == (0o755, 0o644)


def test_names_of_a_server() -> None:
    names = names_of(EVERYWHERE)
    assert {"localhost", "127.0.0.1", "::1", socket.gethostname()} <= names
    assert EVERYWHERE not in names
    assert "panda.example.org" in names_of("panda.example.org")


def test_the_name_to_call_a_given_certificate_by(tmp_path: Path) -> None:
    made = self_made(tmp_path, {"panda.example.org"})
    assert served_name(made.chain) == "panda.example.org"
    with pytest.raises(InputError, match="no certificate"):
        served_name(made.key)


def test_a_certificate_that_does_not_fit_its_key(tmp_path: Path) -> None:
    one, other = self_made(tmp_path / "one", {"a"}), self_made(tmp_path / "other", {"a"})
    with pytest.raises(InputError, match="belong together"):
        Certificate(one.chain, other.key).check()
    with pytest.raises(InputError, match="No such file"):
        Certificate(one.chain, tmp_path / "nothing").check()


def _subject_shown(context: ssl.SSLContext, trusted: Path) -> int:
    """The serial number that a server with this context shows."""
    client = ssl.create_default_context(cafile=str(trusted))
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


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    made = self_made(tmp_path, {"localhost"}, clock=later(-61))
    assert made.authority is not None
    today = [later(-60.5)]
    served = ServedCertificate(made, lambda: self_made(tmp_path, {"localhost"}, clock=today[0]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.chain, made.key)
    first = _subject_shown(context, made.authority)
    assert not served.refresh(context)
    today[0] = later(0)
    assert served.refresh(context)
    assert _subject_shown(context, made.authority) != first
    assert not served.refresh(context)


def test_a_broken_renewal_leaves_the_old_one_in_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = self_made(tmp_path, {"localhost"})
    assert made.authority is not None
    served = ServedCertificate(Certificate(made.chain, made.key), None)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.chain, made.key)
    first = _subject_shown(context, made.authority)
    good = made.chain.read_bytes()
    made.chain.write_text("half a certifi")
    assert not served.refresh(context)
    assert "stays in use" in caplog.text
    assert _subject_shown(context, made.authority) == first
    made.chain.write_bytes(good)
    assert served.refresh(context)
    assert _subject_shown(context, made.authority) == first


def test_a_server_with_a_certificate_of_its_own(own_server: Callable[..., Any], params: Params, tmp_path: Path) -> None:
    """The real panda-client and our own sessions, verified by the authority's file or folder."""
    server = own_server(tls=True)
    assert server.url.startswith("https://127.0.0.1:")
    task_id = server.api("me").submit(params("user.me.tls/", 1))
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(server.url + ALIVE, timeout=10)
    port = server.url.rsplit(":", 1)[1]
    for name in ("localhost", "127.0.0.1"):
        assert requests.get(f"https://{name}:{port}{ALIVE}", verify=str(server.tls / "ca/ca.pem"), timeout=10).ok
    (tmp_path / "client").mkdir()
    client = PandaClient(server.url, "token-of-me", tmp_path / "client", server.process.authorities)
    assert client.getTaskStatus(task_id) == [0, "running"]
    client.close()
    stranger = PandaClient(server.url, "token-of-me", tmp_path / "client", tmp_path)
    assert stranger.getTaskStatus(task_id)[0] != 0, "it verifies"
    stranger.close()
    server.stop()
    server.start()
    assert server.api("me").get("task/get_status", task_id=task_id)["success"], "the authority stays"


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
        (("--host", EVERYWHERE), "add --tls self"),
        (("--host", ""), "add --tls self"),
        (("--tls", "self"), "--tls-folder"),
        (("--tls-cert", "cert.pem"), "go together"),
        (("--tls-cert", "cert.pem", "--tls-key", "key.pem"), "cert.pem"),
        (("--tls", "self", "--tls-folder", "x", "--tls-cert", "a", "--tls-key", "b"), "not both"),
        (("--dn-header", "X-DN"), "--dn-roles"),
        (("--trusted-proxy", "10.0.0.1"), "--dn-header"),
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
