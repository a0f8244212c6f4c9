"""What the network options of `serve` mean for URLs, certificates and the server's command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.steering.server_processes import AUTHORITIES, NetworkOptions, _own_name
from hpo_pilot.steering.workdir import WorkDir
from tests.certificates import self_signed

EVERYWHERE = "0.0.0.0"  # noqa: S104  # nothing listens here


@pytest.fixture
def workdir(tmp_path: Path) -> WorkDir:
    return WorkDir.make(tmp_path / "work")


def test_a_laptop(workdir: WorkDir) -> None:
    reach = NetworkOptions()
    assert reach.url(1234) == "http://127.0.0.1:1234"
    assert reach.authorities(workdir) is None
    assert reach.server_options() == ["--host", "127.0.0.1"]


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"host": "localhost"}, "http://localhost:7"),
        ({"host": "::1"}, "http://[::1]:7"),
        ({"public_url": "https://proxy.example.org/"}, "https://proxy.example.org"),
        (
            {"host": EVERYWHERE, "behind_proxy": True, "public_url": "https://proxy.example.org:444"},
            "https://proxy.example.org:444",
        ),
    ],
)
def test_urls(options: dict[str, Any], url: str) -> None:
    assert NetworkOptions(**options).url(7) == url


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


def test_a_given_certificate(workdir: WorkDir, tmp_path: Path) -> None:
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
