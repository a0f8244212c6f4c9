"""What the network options of `serve` mean for URLs, certificates, the server's command line, and who is warned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.server.tokens import Authority, Role
from hpo_pilot.steering.server_processes import (
    AUTHORITIES,
    ApiProcess,
    NetworkOptions,
    OwnTokens,
    _own_name,
    security_warnings,
)
from hpo_pilot.steering.workdir import WorkDir, nickname
from tests.certificates import self_signed

EVERYWHERE = "0.0.0.0"  # noqa: S104  # nothing listens here


@pytest.fixture
def workdir(tmp_path: Path) -> WorkDir:
    made = WorkDir.make(tmp_path / "work")
    OwnTokens(made.tokens, nickname())
    return made


@pytest.mark.parametrize(
    ("options", "url", "api"),
    [
        ({}, "http://127.0.0.1:7", "http://127.0.0.1:8443"),
        ({"host": "localhost"}, "http://localhost:7", "http://localhost:8443"),
        ({"host": "::1"}, "http://[::1]:7", "http://[::1]:8443"),
        ({"public_url": "https://proxy.example.org/"}, "https://proxy.example.org", "http://127.0.0.1:8443"),
        (
            {"host": EVERYWHERE, "behind_proxy": True, "public_url": "https://proxy.example.org:444"},
            "https://proxy.example.org:444",
            "http://127.0.0.1:8443",
        ),
        (
            {
                "certificate": Path("c"),
                "key": Path("k"),
                "host": EVERYWHERE,
                "public_url": "https://hpo.example.org:25",
            },
            "https://hpo.example.org:25",
            "https://hpo.example.org:8443",
        ),
        (
            {"behind_proxy": True, "host": "::", "public_url": "https://hpo.example.org"},
            "https://hpo.example.org",
            "http://127.0.0.1:8443",
        ),
    ],
)
def test_addresses_of_the_server_and_the_api(workdir: WorkDir, options: dict[str, Any], url: str, api: str) -> None:
    reach = NetworkOptions(**options)
    assert (reach.url(7), ApiProcess(workdir, store=None, reach=reach, port=8443).url) == (url, api)


@pytest.mark.parametrize(
    ("full", "short", "known", "expected"),
    [
        ("node.example.org", "node", {"node.example.org", "node"}, "node.example.org"),
        ("node.example.org", "node", {"node"}, "node"),
        ("localhost", "node", {"localhost", "node"}, "node"),
        ("localhost.localdomain", "node", set(), "127.0.0.1"),
    ],
)
def test_a_name_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, full: str, short: str, known: set[str], expected: str
) -> None:
    def look_up(name: str, *_: object) -> list[object]:
        if name not in known:
            raise OSError("unknown")
        return []

    monkeypatch.setattr("socket.getfqdn", lambda: full)
    monkeypatch.setattr("socket.gethostname", lambda: short)
    monkeypatch.setattr("socket.getaddrinfo", look_up)
    assert _own_name() == expected


def test_certificates(workdir: WorkDir, tmp_path: Path) -> None:
    assert NetworkOptions().authorities(workdir) is None
    assert NetworkOptions().server_options() == ["--host", "127.0.0.1"]
    made = self_signed(tmp_path / "site", ["panda.example.org"])
    reach = NetworkOptions(host=EVERYWHERE, certificate=made.chain, key=made.key)
    assert reach.url(443) == "https://panda.example.org:443"
    assert reach.authorities(workdir) is None, "an authority that everybody knows"
    private = NetworkOptions(host=EVERYWHERE, certificate=made.chain, key=made.key, authority=made.chain)
    folder = private.authorities(workdir)
    assert folder is not None
    assert len(list(folder.glob("*.0"))) == 1
    assert (folder / AUTHORITIES).read_bytes() == made.chain.read_bytes()
    assert private.server_options()[2:] == ["--tls-cert", str(made.chain), "--tls-key", str(made.key)]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"host": EVERYWHERE}, "add --tls-cert"),
        ({"host": "panda.example.org"}, "add --tls-cert"),
        ({"behind_proxy": True}, "--public-url"),
        ({"certificate": Path("c")}, "give both, or neither"),
        ({"key": Path("k")}, "give both, or neither"),
        ({"public_url": "ftp://x"}, "give a URL"),
        ({"public_url": "https://x/path"}, "give a URL"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        NetworkOptions(**options)


# --- warnings that users' payloads could read the service's tokens ---


def test_ones_own_laptop_gets_no_warning(workdir: WorkDir) -> None:
    assert security_warnings(workdir, NetworkOptions(), 4) == []
    Authority(workdir.tokens).issue(nickname(), Role.OPERATOR, 1)
    assert security_warnings(workdir, NetworkOptions(host="localhost"), 4) == []


@pytest.mark.parametrize(
    ("reach", "why"),
    [
        (NetworkOptions(host=EVERYWHERE, certificate=Path("c"), key=Path("k")), "reached from elsewhere"),
        (
            NetworkOptions(host="127.0.0.1", behind_proxy=True, public_url="https://hpo.example.org"),
            "reached from elsewhere",
        ),
        (NetworkOptions(issuers=Path("issuers.json")), "other issuers"),
    ],
)
def test_a_service_for_others_is_warned_of_its_local_pilot(workdir: WorkDir, reach: NetworkOptions, why: str) -> None:
    warning = security_warnings(workdir, reach, 1)[0]
    assert why in warning and "--slots 0" in warning and str(workdir.tokens) in warning
    assert not any("--slots" in other for other in security_warnings(workdir, reach, 0))


def test_tokens_of_others_are_a_reason_until_they_are_revoked(workdir: WorkDir) -> None:
    authority = Authority(workdir.tokens)
    _, issued = authority.issue("alice", Role.USER, 1)
    assert "tokens of alice" in security_warnings(workdir, NetworkOptions(), 1)[0]
    authority.revoke(issued.id)
    assert security_warnings(workdir, NetworkOptions(), 1) == []
