"""What the network options of `serve` mean for URLs, certificates and the server's command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.tls import self_made
from hpo_pilot.service.reach import Reach
from hpo_pilot.service.workdir import WorkDir

EVERYWHERE = "0.0.0.0"  # noqa: S104  # nothing listens here


@pytest.fixture
def workdir(tmp_path: Path) -> WorkDir:
    return WorkDir.make(tmp_path / "work")


def test_a_laptop(workdir: WorkDir) -> None:
    reach = Reach()
    assert reach.url(1234) == "http://127.0.0.1:1234"
    assert reach.authorities(workdir) is None
    assert reach.authority_file(workdir) is None
    assert reach.server_options(workdir) == ["--host", "127.0.0.1"]


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"host": "localhost"}, "http://localhost:7"),
        ({"host": "::1"}, "http://[::1]:7"),
        ({"host": "panda.example.org", "self_made": True}, "https://panda.example.org:7"),
        ({"host": "10.0.0.1", "self_made": True}, "https://10.0.0.1:7"),
        ({"public_url": "https://proxy.example.org/"}, "https://proxy.example.org"),
        (
            {"host": EVERYWHERE, "behind_proxy": True, "public_url": "https://proxy.example.org:444"},
            "https://proxy.example.org:444",
        ),
    ],
)
def test_urls(options: dict[str, Any], url: str) -> None:
    assert Reach(**options).url(7) == url


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
    assert Reach(host=EVERYWHERE, self_made=True).url(7) == f"https://{expected}:7"


def test_a_certificate_of_our_own(workdir: WorkDir) -> None:
    reach = Reach(host=EVERYWHERE, self_made=True)
    folder, file = reach.authorities(workdir), reach.authority_file(workdir)
    assert folder == workdir.tls / "ca"
    assert file == workdir.tls / "ca" / "ca.pem"
    assert len(list(folder.glob("*.0"))) == 1
    assert reach.server_options(workdir)[2:] == ["--tls", "self", "--tls-folder", str(workdir.tls)]


def test_a_given_certificate(workdir: WorkDir, tmp_path: Path) -> None:
    made = self_made(tmp_path / "site", {"panda.example.org"})
    reach = Reach(host=EVERYWHERE, certificate=made.chain, key=made.key)
    assert reach.url(443) == "https://panda.example.org:443"
    assert reach.authorities(workdir) is None, "an authority that everybody knows"
    private = Reach(host=EVERYWHERE, certificate=made.chain, key=made.key, authority=made.authority)
    folder = private.authorities(workdir)
    assert folder is not None
    assert len(list(folder.glob("*.0"))) == 1
    assert private.server_options(workdir)[2:] == ["--tls-cert", str(made.chain), "--tls-key", str(made.key)]


def test_who_else_is_let_in(workdir: WorkDir, tmp_path: Path) -> None:
    reach = Reach(dn_header="X-DN", dn_roles=tmp_path / "roles", trusted_proxies=("10.0.0.1", "10.0.0.2"))
    assert reach.server_options(workdir)[2:] == [
        *("--dn-header", "X-DN", "--dn-roles", str(tmp_path / "roles")),
        *("--trusted-proxy", "10.0.0.1", "--trusted-proxy", "10.0.0.2"),
    ]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"host": EVERYWHERE}, "add --tls self"),
        ({"host": "panda.example.org"}, "add --tls self"),
        ({"behind_proxy": True}, "--public-url"),
        ({"certificate": Path("c")}, "go together"),
        ({"key": Path("k")}, "go together"),
        ({"self_made": True, "certificate": Path("c"), "key": Path("k")}, "not both"),
        ({"public_url": "ftp://x"}, "give a URL"),
        ({"public_url": "https://x/path"}, "give a URL"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Reach(**options)
