"""Addresses, credentials and certificates of a PanDA server, and the link to its monitor."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.panda.server import PandaServer, address, bigpanda_link, environment_server, environment_vo

ATLAS = "https://pandaserver.cern.ch:25443"
NAMED = {"PANDAMON_URL": "https://mon.example/x/"}
VARIABLES = ("PANDA_URL", "PANDA_URL_SSL", "PANDACACHE_URL", "PANDA_BEHIND_REAL_LB", "PANDA_AUTH", "PANDA_AUTH_VO")
TOKENS = ("PANDA_AUTH_ID_TOKEN", "OIDC_AUTH_TOKEN_FILE", "OIDC_AUTH_ID_TOKEN", "PANDA_VERIFY_HOST", "X509_CERT_DIR")


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in (*VARIABLES, *TOKENS, "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("https://panda.example.org:25443/server/panda", "https://panda.example.org:25443"),
        ("https://panda.example.org", "https://panda.example.org"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
    ],
)
def test_an_address_may_have_a_path(url, wanted):
    assert address(url, "--server") == wanted


@pytest.mark.parametrize("url", ["panda.example.org", "ftp://x", "https://", "https://me:pass@x", "https://x:y"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(InputError, match="--server"):
        address(url, "--server")


def test_the_user_s_own_addresses_stay_where_they_lead_there_already(monkeypatch):
    monkeypatch.setenv("PANDA_URL_SSL", "https://panda.example.org/server/panda")
    monkeypatch.setenv("PANDACACHE_URL", "https://cache.example.org/server/panda")
    assert environment_server() == "https://panda.example.org"
    same = PandaServer("https://panda.example.org", None, "me").environment()
    assert same["PANDACACHE_URL"] == "https://cache.example.org/server/panda"
    assert same["PANDA_URL"] == "https://panda.example.org/server/panda", "what is missing would lead to CERN"
    other = PandaServer("https://10.0.0.1:25443", None, "me").environment()
    assert other["PANDACACHE_URL"] == other["PANDA_URL_SSL"] == "https://10.0.0.1:25443/server/panda"
    assert other["PANDA_BEHIND_REAL_LB"] == "1"
    assert "PANDA_BEHIND_REAL_LB" not in PandaServer("https://panda.elsewhere.org", None, "me").environment()


def test_atlas_s_server_keeps_its_cache():
    assert "PANDACACHE_URL" not in PandaServer("https://pandaserver.cern.ch", None, "me").environment()


def test_no_variables_no_server():
    assert environment_server() is None


def test_the_vo_is_panda_client_s(monkeypatch):
    assert environment_vo() == "atlas"
    monkeypatch.setenv("PANDA_AUTH", "oidc")
    monkeypatch.setenv("PANDA_AUTH_VO", "wlcg")
    assert environment_vo() == "wlcg"


def test_tokens_are_shown_in_panda_client_s_order(tmp_path, monkeypatch):
    server = PandaServer("https://x", None, "me", "wlcg")
    assert server.headers() == {}, "a proxy is nothing that we could show"
    monkeypatch.setenv("PANDA_AUTH", "oidc")
    monkeypatch.setenv("PANDA_AUTH_VO", "vo1")
    assert server.headers() == {}, "panda-client's own cache is its own"
    monkeypatch.setenv("OIDC_AUTH_ID_TOKEN", "third")
    assert server.headers() == {"Authorization": "Bearer third", "Origin": "vo1"}
    (tmp_path / "token").write_text("second\n")
    monkeypatch.setenv("OIDC_AUTH_TOKEN_FILE", str(tmp_path / "token"))
    assert server.headers()["Authorization"] == "Bearer second"
    monkeypatch.setenv("PANDA_AUTH_ID_TOKEN", "first")
    assert server.headers()["Authorization"] == "Bearer first"
    monkeypatch.delenv("PANDA_AUTH_ID_TOKEN")
    (tmp_path / "token").unlink()
    with pytest.raises(TryAgainError, match=str(tmp_path / "token")):
        server.headers()


def test_certificates_are_checked_as_panda_client_checks_them(tmp_path, monkeypatch):
    server = PandaServer("https://x", None, "me")
    assert server.session().verify is True
    monkeypatch.setenv("X509_CERT_DIR", str(tmp_path))
    assert server.session().verify == str(tmp_path)
    monkeypatch.setenv("PANDA_VERIFY_HOST", "off")
    assert server.session().verify is False
    ours = PandaServer("https://x", tmp_path / "token", "me", authorities=tmp_path / "ca")
    assert ours.session().verify == str(tmp_path / "ca")
    assert ours.environment()["X509_CERT_DIR"] == str(tmp_path / "ca")


@pytest.mark.parametrize(
    ("server", "monitor", "environment", "link"),
    [
        (ATLAS, None, {}, "https://bigpanda.cern.ch/tasks/?taskname=*.cafe.g*"),
        ("https://pandaserver-doma.cern.ch:25443", None, {}, "https://panda-doma.cern.ch/tasks/?taskname=*.cafe.g*"),
        (ATLAS, None, NAMED, "https://mon.example/x/tasks/?taskname=*.cafe.g*"),
        (ATLAS, "http://[::1]:8080", NAMED, "http://[::1]:8080/tasks/?taskname=*.cafe.g*"),
        (None, None, NAMED, None),
        ("embedded", None, NAMED, None),
        ("https://panda.example:25443", None, {}, None),
        *((ATLAS, wrong, {}, None) for wrong in ("javascript:alert(1)", "https://", "ftp://x", "https://me:secret@x")),
        *((ATLAS, wrong, {}, None) for wrong in ('https://x/"onclick', "https://x:y")),
    ],
)
def test_link_to_the_tasks_of_a_search(server, monitor, environment, link):
    assert bigpanda_link(server, "cafe", monitor=monitor, environment=environment) == link


def test_the_uid_is_quoted():
    assert bigpanda_link(ATLAS, 'a"&b', environment={}).endswith("/tasks/?taskname=*.a%22%26b.g*")
