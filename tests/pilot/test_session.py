"""Whom a session with a server trusts, and what it sends."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from hpo_pilot.http import open_session


@pytest.fixture(autouse=True)
def no_bundles(monkeypatch):
    for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


def test_whom_it_trusts(monkeypatch, tmp_path):
    assert open_session("https://x").verify is True
    monkeypatch.setenv("SSL_CERT_FILE", "/of/the/system")
    assert open_session("https://x").verify == "/of/the/system"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/of/requests")
    assert open_session("https://x").verify == "/of/requests"
    assert open_session("https://x", tmp_path).verify == str(tmp_path), "who names authorities means these"


def test_a_login_of_the_users_takes_nobodys_place(panda, monkeypatch, tmp_path):
    """`requests` would send ~/.netrc's in the place of our Authorization header."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login jane password geheim\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    sent = open_session(panda.url).prepare_request(
        requests.Request("GET", panda.url, headers={"Authorization": "Bearer ours"})
    )
    assert sent.headers["Authorization"] == "Bearer ours"


def test_the_proxy_of_the_environment_is_taken(monkeypatch):
    """Compute nodes without a way out reach the server through the facility's, and hosts of no_proxy directly."""
    asked = []

    class Proxy(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append(self.path)
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1,direct.example.org")
        try:
            with (
                open_session("https://panda.example.org:25443") as session,
                pytest.raises(requests.exceptions.ProxyError, match="403"),
            ):
                session.get("https://panda.example.org:25443/", timeout=10)
        finally:
            proxy.shutdown()
            thread.join()
    assert asked == ["panda.example.org:25443"]
    assert "https" not in open_session("https://direct.example.org").proxies
