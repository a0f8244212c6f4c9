"""Tokens: signed, verified, revoked, refused with the reason."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jwt
import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hpo_pilot.errors import InputError
from hpo_pilot.server import listening
from hpo_pilot.server.tokens import LEEWAY, Authority, Caller, Role, TokenRefused, Tokens, check_origin
from tests.clock import Clock
from tests.server.conftest import refusal

DAY = 86400


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Authority:
    return Authority(tmp_path / "tokens", clock=clock)


@pytest.fixture
def tokens(authority: Authority, clock: Clock) -> Tokens:
    return Tokens(authority.folder, clock=clock)


@pytest.mark.parametrize("role", list(Role))
def test_a_token_has_a_name_and_a_role(authority: Authority, tokens: Tokens, role: Role) -> None:
    token, made = authority.issue("Jane Doe", role, 1)
    assert tokens.verify(f"Bearer {token}") == Caller("Jane Doe", role)
    assert tokens.verify(f"bearer  {token}\n", "hpo_pilot") == Caller("Jane Doe", role)
    assert (made.name, made.role, made.expires - made.issued) == ("Jane Doe", role, DAY)


def test_claims_that_panda_client_reads(authority: Authority) -> None:
    token, made = authority.issue("jane", Role.OPERATOR, 1, vo="atlas")
    claims = jwt.decode(token, options={"verify_signature": False})
    expected = {"sub": "jane", "name": "jane", "preferred_username": "jane", "jti": made.id, "vo": "atlas"}
    expected |= {"groups": ["atlas", "atlas/production"]}
    assert {key: claims[key] for key in expected} == expected
    assert jwt.get_unverified_header(token)["alg"] == "ES256"


def jws(*parts: bytes) -> str:
    return "Bearer " + ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


HEAD = b'{"alg": "ES256", "kid": "x"}'
ODD = (b"[" * 11_000, b"[1]", b'{"iss": ["a"], "kid": ["b"]}', b"\xff")


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "Bearer", "Bearer ", "Basic abc", "Bearer abc", "Bearer a.b.c", "x" * 9),
        *(jws(odd, b"{}", b"x") for odd in ODD),
        *(jws(HEAD, odd, b"x") for odd in ODD),
    ],
)
def test_text_that_is_no_token(tokens: Tokens, header: str | None) -> None:
    with pytest.raises(TokenRefused):
        tokens.verify(header)


def test_a_token_is_valid_between_its_times_plus_or_minus_a_minute(
    authority: Authority, tokens: Tokens, clock: Clock
) -> None:
    token, _ = authority.issue("jane", Role.USER, 1)
    clock.now -= LEEWAY + 2
    assert "not valid yet" in refusal(tokens, token)
    clock.now += 2
    assert tokens.verify(f"Bearer {token}") is not None
    clock.now += DAY + 2 * LEEWAY - 1
    assert tokens.verify(f"Bearer {token}") is not None
    clock.now += 1
    assert refusal(tokens, token) == (
        "the token has expired on 2023-11-15 22:13:20 UTC: ask for another (hpo-pilot token create)"
    )


def test_a_list_that_cannot_be_read_for_a_moment_is_read_again(
    authority: Authority, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, made = authority.issue("someone", Role.USER, 1)
    authority.revoke(made.id)
    with monkeypatch.context() as away:
        away.setattr(Path, "read_text", Mock(side_effect=OSError("stale file handle")))
        assert tokens.verify(f"Bearer {token}")
    assert "was revoked" in refusal(tokens, token)


def test_a_token_is_revoked_at_once_and_for_ever(authority: Authority, tokens: Tokens) -> None:
    token, made = authority.issue("jane", Role.USER, 1)
    other, kept = authority.issue("jim", Role.USER, 1)
    assert tokens.verify(f"Bearer {token}") is not None
    authority.revoke(made.id)
    assert refusal(tokens, token) == f"the token {made.id} was revoked: ask for another (hpo-pilot token create)"
    authority.revoke(authority.issue("someone", Role.USER, 1)[1].id)
    assert "revoked" in refusal(tokens, token)
    assert tokens.verify(f"Bearer {other}") is not None
    assert [(token.id, token.revoked) for token in authority.issued()][:2] == [(made.id, True), (kept.id, False)]
    revoked = authority.folder / "revoked.json"
    revoked.write_text("{half a fi")
    assert "revoked" in refusal(tokens, token)
    assert tokens.verify(f"Bearer {other}") is not None
    revoked.unlink()  # while an editor replaces it
    assert "revoked" in refusal(tokens, token)


def test_expired_tokens_leave_the_lists(authority: Authority, clock: Clock) -> None:
    _, old = authority.issue("old", Role.USER, 1)
    authority.revoke(old.id)
    clock.now += 3 * DAY
    _, new = authority.issue("new", Role.USER, 1)
    authority.revoke(new.id)
    assert set(json.loads((authority.folder / "revoked.json").read_text())) == {new.id}
    assert [token.id for token in authority.issued()] == [new.id]
    assert set(json.loads((authority.folder / "issued.json").read_text())) == {new.id}


def test_tokens_of_other_authorities_are_refused(
    authority: Authority, tokens: Tokens, tmp_path: Path, clock: Clock
) -> None:
    token, _ = Authority(tmp_path / "other", clock=clock).issue("jane", Role.OPERATOR, 1)
    assert refusal(tokens, token).startswith("the token is of another issuer, 'hpo-pilot:")


def claims(authority: Authority, **more: Any) -> dict[str, Any]:
    token, _ = authority.issue("jane", Role.USER, 1)
    return jwt.decode(token, options={"verify_signature": False}) | more


def signed_by_us(authority: Authority, content: dict[str, Any]) -> str:
    key = (authority.folder / "signing-key.pem").read_text()
    kid = json.loads((authority.folder / "jwks.json").read_text())["keys"][0]["kid"]
    return jwt.encode(content, key, "ES256", headers={"kid": kid})


def test_forged_tokens_are_refused(authority: Authority, tokens: Tokens) -> None:
    good = claims(authority)
    public = (authority.folder / "jwks.json").read_text()
    kid = json.loads(public)["keys"][0]["kid"]
    head, body, signature = signed_by_us(authority, good).split(".")
    richer = base64.urlsafe_b64encode(json.dumps(good | {"role": "operator"}).encode()).rstrip(b"=").decode()
    stranger = ec.generate_private_key(ec.SECP256R1())
    rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def signed(key: Any, algorithm: str) -> str:
        return jwt.encode(good, key, algorithm, headers={"kid": kid})

    for name, forged, word in (
        ("by a stranger", signed(stranger, "ES256"), "the token's signature is wrong"),
        ("by nobody", signed(None, "none"), "not valid"),
        ("the public key taken for a secret", signed(public * 2, "HS256"), "not valid"),
        ("another family of algorithms", signed(rsa_key, "RS256"), "not valid"),
        ("with another role", f"{head}.{richer}.{signature}", "the token's signature is wrong"),
        ("large", signed_by_us(authority, good | {"more": "x" * 20_000}), "longer than"),
    ):
        assert word in refusal(tokens, forged), name
    assert tokens.verify(f"Bearer {head}.{body}.{signature}") == Caller("jane", Role.USER)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        *(({name: None}, name) for name in ("sub", "role", "iat", "exp", "jti")),
        ({"role": "king"}, "'king'"),
        ({"exp": "soon"}, "not valid"),
        # Comparisons with NaN are false, so such a token would never end.
        *(({name: when}, "not valid") for name in ("exp", "iat", "nbf") for when in (float("nan"), float("inf"))),
        ({"iss": "me"}, "another issuer"),
        ({"sub": 7}, ""),
    ],
)
def test_wrong_claims_are_refused(authority: Authority, tokens: Tokens, changes: dict[str, Any], word: str) -> None:
    content = {name: value for name, value in claims(authority, **changes).items() if value is not None}
    assert word in refusal(tokens, signed_by_us(authority, content))


def test_a_token_is_valid_for_its_vo_only(authority: Authority, tokens: Tokens) -> None:
    token, _ = authority.issue("jane", Role.PILOT, 1, vo="atlas")
    for origin in (None, "atlas", "atlas:pilot", "atlas.pilot", "https://panda.example.org"):
        assert tokens.verify(f"Bearer {token}", origin) == Caller("jane", Role.PILOT), origin
    assert "Unknown vo" in refusal(tokens, token, "cms")
    assert "Not a member" in refusal(tokens, token, "atlas.production")


@pytest.mark.parametrize(
    ("origin", "vo", "good"),
    [
        ("vo.example.org", "vo.example.org", True),
        ("vo.example.org:pilot", "vo.example.org", True),
        ("vo.example.org.pilot", "vo.example.org", True),
        ("vo.example.org.production", "vo.example.org", False),
        ("vo.example.com", "vo.example.org", False),
        ("panda_dev.pilot", "panda_dev", True),
    ],
)
def test_names_of_vos_may_have_points(origin: str, vo: str, good: bool) -> None:
    with contextlib.nullcontext() if good else pytest.raises(TokenRefused):
        check_origin(origin, vo, [vo, f"/{vo}/pilot"])


@pytest.mark.parametrize(("name", "days"), [("", 1), (" jane", 1), ("a\nb", 1), ("x" * 200, 1), ("j", 0), ("j", 5000)])
def test_invalid_names_and_lifetimes_are_refused(authority: Authority, name: str, days: float) -> None:
    with pytest.raises(InputError):
        authority.issue(name, Role.USER, days)
    assert authority.issued() == []


def test_an_unknown_token_cannot_be_revoked(authority: Authority) -> None:
    with pytest.raises(InputError, match="token list"):
        authority.revoke("nothing")


def test_files_are_private_and_have_no_token(authority: Authority) -> None:
    token, made = authority.issue("jane", Role.USER, 1)
    authority.revoke(made.id)
    for path in authority.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert token.rsplit(".", 1)[1] not in path.read_text(), path
    assert stat.S_IMODE(authority.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("empty", [False, True])
def test_a_lost_key_is_replaced_with_its_public_half(authority: Authority, clock: Clock, empty: bool) -> None:
    old, _ = authority.issue("jane", Role.USER, 1)
    (authority.folder / "signing-key.pem").unlink()
    if empty:  # after a power cut
        (authority.folder / "signing-key.pem").touch(0o600)
    new, _ = Authority(authority.folder, clock=clock).issue("jane", Role.USER, 1)
    tokens = Tokens(authority.folder, clock=clock)
    assert tokens.verify(f"Bearer {new}") is not None
    assert "another issuer" in refusal(tokens, old)


def test_a_verifier_needs_no_secret(authority: Authority, tmp_path: Path, clock: Clock) -> None:
    token, _ = authority.issue("jane", Role.USER, 1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "jwks.json").write_text((authority.folder / "jwks.json").read_text())
    tokens = Tokens(elsewhere, clock=clock)
    assert tokens.verify(f"Bearer {token}") == Caller("jane", Role.USER)
    assert "d" not in tokens.public_keys["keys"][0]


def test_a_key_that_others_can_read_is_refused(authority: Authority) -> None:
    (authority.folder / "signing-key.pem").chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        Authority(authority.folder)


@pytest.mark.parametrize("content", ["", "[]", '{"keys": []}', '{"keys": [{"kid": "x"}]}'])
def test_invalid_public_keys_are_refused(authority: Authority, content: str) -> None:
    (authority.folder / "jwks.json").write_text(content)
    with pytest.raises(InputError, match="public keys"):
        Tokens(authority.folder)


def test_the_number_of_remembered_tokens_is_limited(
    authority: Authority, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpo_pilot.server.tokens._REMEMBERED", 3)
    tokens = Tokens(authority.folder, clock=clock)
    made = [authority.issue(f"user{number}", Role.USER, 1)[0] for number in range(8)]
    assert [tokens.verify(f"Bearer {token}").name for token in made] == [f"user{number}" for number in range(8)]
    assert len(tokens._known) == 3


@pytest.mark.parametrize(
    ("path", "header", "status", "waits"),
    [
        ("/api/v1/x", b"authorization", 401, True),
        ("/points/1", b"x-idds-auth-token", 401, True),
        ("/login", b"cookie", 403, True),
        ("/api/v1/x", b"authorization", 200, False),
        ("/api/v1/x", b"authorization", 403, False),  # a good token without the role
        ("/api/v1/x", b"cookie", 401, False),
    ],
)
def test_only_answers_to_wrong_tokens_wait(
    monkeypatch: pytest.MonkeyPatch, path: str, header: bytes, status: int, waits: bool
) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status})

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def send(_message: Any) -> None:
        pass

    async def many() -> None:
        scope = {"type": "http", "path": path, "method": "POST", "headers": [(header, b"x")], "client": ("10.0.0.1", 1)}
        for _ in range(100):
            await slow(scope, send, send)

    slept: list[float] = []
    monkeypatch.setattr(listening.asyncio, "sleep", sleep)
    slow = listening.SlowRefusals(app)
    asyncio.run(many())
    assert (slept[:10] == [0] * 10 and slept[-1] == slow.longest) if waits else slept == []


def test_wrong_tokens_of_one_address_delay_no_other() -> None:
    slow = listening.SlowRefusals(lambda *_: None)  # type: ignore[arg-type,return-value]
    for _ in range(50):
        slow.delay("2001:db8:1:2:3:4:5:6", 0)
        slow.delay("2001:db8::7", 0)
        slow.delay("::ffff:10.0.0.2", 0)
    assert min(slow.delay(one, 0) for one in ("2001:db8:1:2::7", "2001:db8::1:2:3:4", "::ffff:10.0.0.2")) > 0
    assert (
        slow.delay("2001:db8:1:3::7", 0)
        == slow.delay("::ffff:10.0.0.3", 0)
        == slow.delay("10.0.0.1", 0)
        == slow.delay("2001:db8:1:2::7", 100)
        == 0
    )
    for number in range(10_000):
        slow.delay(str(number), 200)
    assert len(slow._seen) < 5000


class Mirror:
    """A server that answers with the address and scheme of the caller."""

    name = "mirror"

    def application(self) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                request = Request(scope)
                assert request.client is not None
                await PlainTextResponse(f"{request.client.host} {request.url.scheme}")(scope, receive, send)

        return app

    def close_waiting(self) -> None:
        pass


@pytest.mark.parametrize(
    ("named", "forwarded", "seen"),
    [
        ("", "198.51.100.7", "127.0.0.1 http"),
        ("127.0.0.2, 10.0.0.0/8", "127.0.0.2", "127.0.0.1 http"),
        ("127.0.0.1", "198.51.100.7", "198.51.100.7 https"),
        ("127.0.0.0/8,::1", "127.0.0.1, 198.51.100.7, 127.0.0.9", "198.51.100.7 https"),  # the last that is no proxy
    ],
)
def test_only_named_proxies_say_whose_request_it_is(
    monkeypatch: pytest.MonkeyPatch, named: str, forwarded: str, seen: str
) -> None:
    monkeypatch.setenv("HPO_PILOT_PROXIES", named)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn's own
    (listener,) = listening.listen("127.0.0.1", 0, secure=False)
    ours, lifeline = socket.socketpair()
    headers = {"X-Forwarded-For": forwarded, "X-Forwarded-Proto": "https"}
    with listener, lifeline, ThreadPoolExecutor(1) as thread, ours:
        served = thread.submit(listening.serve, Mirror(), listener, lifeline.fileno())
        answer = requests.get(f"http://127.0.0.1:{listener.getsockname()[1]}", headers=headers, timeout=600)
        assert answer.text == seen
        ours.close()
        served.result()


@pytest.mark.parametrize("named", ["*", "proxy.example.org", "10.0.0.1/8"])
def test_a_proxy_is_an_address_or_a_network(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("HPO_PILOT_PROXIES", f"127.0.0.1,{named}")
    with pytest.raises(InputError, match="as in"):
        listening.proxies()
