"""TLS: certificates and their renewal."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography import x509

from hpo_pilot.errors import InputError
from hpo_pilot.server.listening import ServedCertificate
from hpo_pilot.trust import served_name
from tests.certificates import self_signed
from tests.server.conftest import connected
from tests.task_parameters import make_params

ALIVE = "/api/v1/system/is_alive"


def test_the_name_in_a_certificate(tmp_path: Path) -> None:
    made = self_signed(tmp_path, ["*.example.org", "panda.example.org"])
    assert served_name(made.chain) == "panda.example.org"
    with pytest.raises(InputError, match="not a certificate"):
        served_name(made.key)


def test_a_certificate_that_does_not_fit_its_key_is_refused(tmp_path: Path) -> None:
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


def test_a_renewed_certificate_needs_no_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, other = self_signed(tmp_path / "made"), self_signed(tmp_path / "other")
    served = ServedCertificate(made.chain, made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.chain, made.key)
    first, trusted = _serial_shown(context, made.folder), made.folder
    assert not served.refresh(context)
    good = made.chain.read_bytes()
    for half in (b"half a certifi", other.chain.read_bytes()):  # being written; there before its key
        made.chain.write_bytes(half)
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


def test_a_server_with_a_certificate(own_server: Callable[..., Any], tmp_path: Path) -> None:
    """Clients verify it; `test_panda_client` has one that trusts it."""
    server = own_server(tls=True)
    assert server.url.startswith("https://127.0.0.1:")
    task_id = server.api("me").submit(make_params("user.me.tls/", 1))
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(server.url + ALIVE, timeout=600)
    port = server.url.rsplit(":", 1)[1]
    for name in ("localhost", "127.0.0.1"):
        assert requests.get(f"https://{name}:{port}{ALIVE}", verify=str(server.tls.chain), timeout=600).ok
    with connected(server, tmp_path, authorities=tmp_path) as stranger:
        assert stranger.getTaskStatus(task_id)[0] != 0, "it verifies"
    plain = http.client.HTTPConnection("127.0.0.1", int(port), timeout=600)
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.request("GET", ALIVE)
        plain.getresponse()
    assert server.api(None).get("system/is_alive")["success"], "plain HTTP to its port is no trouble"
    server.stop()
    server.start()
    assert server.api("me").get("task/get_status", task_id=task_id)["success"], "with the same certificate"
