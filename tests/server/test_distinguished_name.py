"""Names of grid certificates, from a proxy's header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.auth import Caller, Role, TokenRefused, Tokens
from hpo_pilot.server.access.authority import Authority
from hpo_pilot.server.access.distinguished_name import ProxyHeader, person
from hpo_pilot.server.access.gate import Gate

JANE = "/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN=jdoe/CN=123456/CN=Jane Doe"


@pytest.mark.parametrize(
    ("name", "expected"),
    # What `clean_user_id` of panda-server 1.0.4 makes of them, but for the last four, which it does not know.
    [
        (JANE, "Jane Doe"),
        (f"{JANE}/CN=proxy", "Jane Doe"),
        (f"{JANE}/CN=proxy/CN=proxy/CN=4412", "Jane Doe"),
        ("/C=UK/O=eScience/OU=Cambridge/L=UCS/CN=john smith", "john smith"),
        ("/O=GRID-FR/C=FR/O=CNRS/OU=LAPP/CN=Jean Dupont 4711", "Jean Dupont"),
        ("/DC=org/DC=terena/DC=tcs/C=DE/O=DESY/CN=Jane Doe jane.doe@desy.de", "Jane Doe"),
        ("/DC=org/DC=terena/C=DE/O=DESY/CN=Jane Doe/emailAddress=x@y.z", "Jane Doe"),
        ("/DC=ch/OU=Users/CN=atlpilo1/CN=614260/CN=Robot: ATLAS Pilot1", "atlpilo1"),
        ("/DC=ch/CN=Jane O'Neil (old)", "Jane ONeil old"),
        ("/C=US/O=Globus/CN=Jane_12 Doe", "Jane Doe"),
        ("/DC=org/CN=host/panda.example.org", "host/panda.example.org"),
        ("CN=Jane Doe,CN=123456,CN=jdoe,OU=Users,DC=cern,DC=ch", "Jane Doe"),
        ("CN=Doe\\, Jane,OU=Users,DC=ch", "Doe, Jane"),
        ("/DC=ch/OU=nobody", ""),
        ("Jane Doe", ""),
    ],
)
def test_a_persons_name(name: str, expected: str) -> None:
    assert person(name) == expected


def request(peer: str | None, *headers: tuple[str, str]) -> Request:
    scope: dict[str, Any] = {
        "type": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "client": (peer, 1234) if peer else None,
    }
    return Request(scope)


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    path = tmp_path / "roles.json"
    path.write_text(json.dumps({JANE: "operator", "atlpilo1": "pilot", "john smith": "user"}))
    return path


@pytest.mark.parametrize(
    ("peer", "proxies", "taken"),
    [
        ("127.0.0.1", (), True),
        ("::1", (), True),
        ("::ffff:127.0.0.1", (), True),
        (None, (), True),
        ("10.1.2.3", (), False),
        ("10.1.2.3", ("10.1.0.0/16",), True),
        ("10.2.2.3", ("10.1.0.0/16", "10.2.2.3"), True),
        ("::ffff:10.1.2.3", ("10.1.0.0/16",), True),
        ("10.3.2.3", ("10.1.0.0/16",), False),
        ("127.0.0.1", ("10.1.0.0/16",), False),
        ("testclient", (), False),
    ],
)
def test_whence_it_is_taken(roles: Path, peer: str | None, proxies: tuple[str, ...], taken: bool) -> None:
    header = ProxyHeader("X-DN", roles, proxies)
    asked = request(peer, ("X-DN", JANE))
    if taken:
        assert header.caller(asked) == Caller("Jane Doe", Role.OPERATOR)
    else:
        with pytest.raises(TokenRefused, match="trusted proxy alone"):
            header.caller(asked)
    assert header.caller(request(peer)) is None


def test_roles_by_name_and_by_person(roles: Path) -> None:
    header = ProxyHeader("X-DN", roles)
    assert header.caller(request("::1", ("x-dn", "/DC=ch/CN=atlpilo1/CN=Robot: x"))) == Caller("atlpilo1", Role.PILOT)
    with pytest.raises(TokenRefused, match="no role here"):
        header.caller(request("::1", ("X-DN", "/DC=ch/CN=Jim Doe")))
    roles.write_text(json.dumps({"*": "user"}))
    assert header.caller(request("::1", ("X-DN", "/DC=ch/CN=Jim Doe"))) == Caller("Jim Doe", Role.USER)
    with pytest.raises(TokenRefused, match="no role here"):
        header.caller(request("::1", ("X-DN", "/DC=ch")))


def test_what_a_proxy_must_not_hand_on(roles: Path) -> None:
    header = ProxyHeader("X-DN", roles)
    with pytest.raises(TokenRefused, match="2 times"):
        header.caller(request("::1", ("X-DN", JANE), ("X-DN", "/CN=other")))
    with pytest.raises(TokenRefused, match="limited"):
        header.caller(request("::1", ("X-DN", f"{JANE}/CN=limited proxy")))


def test_the_gate(roles: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tokens")
    bearer = ("Authorization", f"Bearer {authority.issue('jim', Role.USER, 1)[0]}")
    tokens = Tokens(authority.folder)
    closed, opened = Gate(tokens), Gate(tokens, ProxyHeader("X-DN", roles))
    with pytest.raises(TokenRefused, match="bearer token"):
        closed.caller(request("::1", ("X-DN", JANE)))
    assert opened.caller(request("::1", ("X-DN", JANE))).name == "Jane Doe"
    assert opened.caller(request("10.0.0.1", bearer)).name == "jim"
    assert opened.caller(request("::1", ("X-DN", JANE), bearer)).name == "jim"
    with pytest.raises(TokenRefused, match="trusted proxy"):
        opened.caller(request("10.0.0.1", ("X-DN", JANE), bearer))


@pytest.mark.parametrize(
    ("header", "content", "proxies", "word"),
    [
        ("X DN", "{}", (), "no name of a header"),
        ("X-DN", "[]", (), "makes no sense"),
        ("X-DN", '{"a": "king"}', (), "makes no sense"),
        ("X-DN", "{}", ("proxy.example.org",), "--trusted-proxy"),
    ],
)
def test_wrong_settings(tmp_path: Path, header: str, content: str, proxies: tuple[str, ...], word: str) -> None:
    path = tmp_path / "roles.json"
    path.write_text(content)
    with pytest.raises(InputError, match=word):
        ProxyHeader(header, path, proxies)
