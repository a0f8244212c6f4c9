"""Tokens of other issuers, and the sign-in of panda-client."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa

from hpo_pilot.errors import InputError
from hpo_pilot.server import issuers as oidc
from hpo_pilot.server.issuers import Issuers
from hpo_pilot.server.tokens import LEEWAY, Authority, Caller, Role, TokenRefused, Tokens
from tests.answering import answering
from tests.clock import Clock
from tests.server.conftest import refusal
from tests.server.queue_driver import Queue
from tests.task_parameters import make_params

ISSUER = "https://iam.example.org/"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ROLES = {"atlas/production": "operator", "/atlas/pilot": "pilot", "atlas": "user"}


def public(kid: str, key: rsa.RSAPrivateKey = KEY) -> dict[str, Any]:
    jwk: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return jwk | {"kid": kid, "use": "sig"}


def signed(now: float, kid: str = "one", key: Any = KEY, algorithm: str = "RS256", **claims: Any) -> str:
    content = {"iss": ISSUER, "sub": "8a7b", "aud": "panda", "iat": int(now), "exp": int(now) + 3600}
    content |= {"preferred_username": "jane", "name": "jane DOE", "groups": ["/atlas"]} | claims
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(content, key, algorithm, headers={"kid": kid})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "keys.json").write_text(
        json.dumps(
            {"keys": [public("one"), {"kty": "odd", "kid": "two"}, {"kty": "oct", "kid": "two", "k": "c2VjcmV0"}]}
        )
    )
    describe_issuer(tmp_path)
    return tmp_path


def describe_issuer(folder: Path, **changes: Any) -> None:
    settings = {"keys": "keys.json", "audience": "panda", "vo": "atlas", "roles": ROLES} | changes
    settings = {name: value for name, value in settings.items() if value is not None}
    (folder / "issuers.json").write_text(json.dumps({ISSUER: settings}))


@pytest.fixture
def tokens(folder: Path, clock: Clock) -> Tokens:
    authority = Authority(folder / "tokens", clock=clock)
    return Tokens(authority.folder, Issuers(folder / "issuers.json", clock=clock), clock=clock)


@pytest.mark.parametrize(
    ("groups", "origin", "role"),
    [
        (["/atlas"], None, Role.USER),
        (["atlas"], "atlas", Role.USER),
        (["/atlas", "/atlas/pilot"], "atlas", Role.PILOT),
        (["/atlas", "/atlas/pilot", "/atlas/production"], "atlas", Role.OPERATOR),
        (["/atlas", "/atlas/pilot", "/atlas/production"], "atlas:pilot", Role.PILOT),
        (["/atlas", "/atlas/pilot", "/atlas/production"], "atlas.pilot", Role.PILOT),
    ],
)
def test_roles_by_groups(tokens: Tokens, clock: Clock, groups: list[str], origin: str | None, role: Role) -> None:
    assert tokens.verify(f"Bearer {signed(clock.now, groups=groups)}", origin) == Caller("jane", role)


def test_outputs_may_have_the_name_that_panda_client_reads(folder: Path, clock: Clock, queue: Queue) -> None:
    describe_issuer(folder, name="sub")
    caller, _ = Issuers(folder / "issuers.json", clock=clock).verify(signed(clock.now), ISSUER, "")
    assert caller == Caller("8a7b", Role.USER)
    assert queue.submit(caller=caller, name="user.jane.t/") > 0


@pytest.mark.parametrize(
    ("uri", "client", "word"),
    [
        ("http://hpo.example.org/login/return", ["client_id", "oidc_config_url"], "https"),
        ("https://hpo.example.org/", ["client_id", "oidc_config_url"], "/login/return"),
        ("https://hpo.example.org/login/return?x", ["client_id", "oidc_config_url"], "/login/return"),
        ("https://hpo.example.org/login/return", ["client_id"], "oidc_config_url"),
    ],
)
def test_a_wrong_redirect_uri_is_named(folder: Path, uri: str, client: list[str], word: str) -> None:
    describe_issuer(folder, redirect_uri=uri, client=dict.fromkeys(client, "x"))
    with pytest.raises(InputError, match=word):
        Issuers(folder / "issuers.json")


@pytest.mark.parametrize(
    ("claims", "word"),
    [
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "aud"),
        ({"groups": ["/cms"]}, "Not a member of the atlas group"),
        ({"groups": None}, "Not a member of the atlas group"),
        ({"groups": "atlas"}, "Not a member of the atlas group"),
        ({"iss": "https://other.example.org/"}, "another issuer"),
        ({"iss": ISSUER.rstrip("/")}, "another issuer"),
        ({"exp": None}, "exp"),
    ],
)
def test_wrong_claims_are_refused(tokens: Tokens, clock: Clock, claims: dict[str, Any], word: str) -> None:
    assert word in refusal(tokens, signed(clock.now, **claims))


def test_forged_and_expired_tokens_are_refused(tokens: Tokens, clock: Clock) -> None:
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert "signature is wrong" in refusal(tokens, signed(clock.now, key=stranger))
    assert "not valid" in refusal(tokens, signed(clock.now, algorithm="RS512"))
    assert "unknown key of https://iam.example.org/: 'two'" in refusal(tokens, signed(clock.now, kid="two"))
    good = signed(clock.now)
    assert tokens.verify(f"Bearer {good}") is not None
    clock.now += 3600 + LEEWAY
    assert "has expired" in refusal(tokens, good)


def test_the_vo_of_a_call_is_checked(tokens: Tokens, clock: Clock) -> None:
    token = signed(clock.now)
    assert refusal(tokens, token, "cms") == "Unknown vo : cms; the token is for atlas"
    assert refusal(tokens, token, "atlas:production") == "Not a member of the atlas/production group"


def test_new_keys_are_read(tokens: Tokens, folder: Path, clock: Clock) -> None:
    new = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    token = signed(clock.now, kid="new", key=new)
    with pytest.raises(TokenRefused):
        tokens.verify(f"Bearer {token}")
    (folder / "keys.json").write_text(json.dumps({"keys": [public("one"), public("new", new)]}))
    assert tokens.verify(f"Bearer {token}") is not None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"audience": None}, "audience"),
        ({"roles": {"g": "king"}}, "roles"),
        ({"x": 1}, "x"),
        ({"keys": "none.json"}, "none.json"),
        ({"keys": "http://x/k"}, "https"),
        ({"algorithms": ["HS256"]}, "algorithms"),
    ],
)
def test_invalid_files_are_refused(folder: Path, changes: dict[str, Any], word: str) -> None:
    describe_issuer(folder, **changes)
    with pytest.raises(InputError, match=word):
        Issuers(folder / "issuers.json")
    (folder / "issuers.json").write_text("[]")
    with pytest.raises(InputError, match="the file"):
        Issuers(folder / "issuers.json")


def test_keys_from_the_network(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` waits for the keys; while an issuer does not answer, its last keys are used."""
    asked = []

    class Answer:
        content = json.dumps({"keys": [public("one")]}).encode()

        def raise_for_status(self) -> None:
            if len(asked) > 1:
                raise requests.HTTPError("away")

    def get(url: str, **_: Any) -> Answer:
        asked.append(url)
        return Answer()

    monkeypatch.setattr(requests, "get", get)
    monkeypatch.setattr(oidc, "_AGAIN", 0.05)
    describe_issuer(folder, keys="https://iam.example.org/jwk")
    issuers = Issuers(folder / "issuers.json", clock=clock)
    issuers.start()
    try:
        assert issuers.verify(signed(clock.now), ISSUER, "")[0] == Caller("jane", Role.USER)
        with pytest.raises(TokenRefused, match="unknown key of"):
            issuers.verify(signed(clock.now, kid="other"), ISSUER, "")
        deadline = time.monotonic() + 600
        while len(asked) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert asked[:2] == ["https://iam.example.org/jwk"] * 2
        assert issuers.verify(signed(clock.now), ISSUER, "")[0] == Caller("jane", Role.USER)
    finally:
        issuers.stop()


@pytest.fixture
def provider() -> Iterator[str]:
    """An identity provider with the device flow, as far as panda-client uses it."""

    def answer(path: str) -> tuple[int, bytes]:
        answers: dict[str, Any] = {
            "/device": {
                "device_code": "d",
                "verification_uri_complete": f"{url}/sign-in",
                "interval": 0,
                "expires_in": 30,
            },
            "/token": {"id_token": signed(time.time())},
            "/well-known": {"token_endpoint": f"{url}/token", "device_authorization_endpoint": f"{url}/device"},
        }
        return 200, json.dumps(answers[path]).encode()

    with answering(answer) as url:
        yield url


_SIGN_IN = """
from pandaclient import Client
print("\\x01", Client.get_user_name_from_token(), Client.getTaskStatus(1))
"""


def panda_client(url: str, folder: Path, vo: str) -> subprocess.CompletedProcess[str]:
    base = f"{url}/server/panda"
    environment = {"PANDA_URL": base, "PANDA_URL_SSL": base, "PANDACACHE_URL": base, "PANDA_BEHIND_REAL_LB": "1"}
    environment |= {"PANDA_AUTH": "oidc", "PANDA_AUTH_VO": vo, "PANDA_CONFIG_ROOT": str(folder), "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", _SIGN_IN],
        env=environment,
        input="y\n",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_panda_client_signs_in(own_server: Callable[..., Any], folder: Path, provider: str) -> None:
    """Its device flow, from the server's /auth/<vo>_auth_config.json to a call with the token it was given."""
    client = {"client_id": "panda", "client_secret": "", "oidc_config_url": f"{provider}/well-known"}
    describe_issuer(folder, client=client)
    server = own_server(options=("--issuers", str(folder / "issuers.json")))
    server.api("me").submit(make_params("user.me.oidc/", 1))
    (folder / "client").mkdir()
    done = panda_client(server.url, folder / "client", "atlas")
    assert "\x01 ('Jane Doe', ['/atlas'], 'jane') (0, 'running')" in done.stdout, done.stdout + done.stderr


def test_panda_client_shows_how_to_get_a_token_without_an_issuer(server: Any, tmp_path: Path) -> None:
    done = panda_client(server.url, tmp_path, "atlas")
    assert done.returncode != 0
    assert "hpo-pilot token create" in done.stdout + done.stderr


def test_public_keys_are_public(server: Any) -> None:
    (key,) = requests.get(f"{server.url}/.well-known/jwks.json", timeout=600).json()["keys"]
    assert set(key) == {"kty", "crv", "x", "y", "kid", "alg", "use"}
