"""Signing in at a service's issuer by a device code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from typer.testing import CliRunner

from hpo_pilot.cli.main import app
from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.operations.sign_in import device_token
from tests.operations.conftest import http_service

PENDING = (400, {"error": "authorization_pending"})
SLOWER = (400, {"error": "slow_down"})


class Issuer:
    """A service and its issuer at one address."""

    def __init__(self, *tokens: tuple[int, Any]) -> None:
        self.tokens, self.forms, self.url = list(tokens), [], ""
        self.device = {"device_code": "d", "user_code": "ABCD", "verification_uri": "https://iam/x", "expires_in": 60}
        self.client = {"client_id": "hpo", "client_secret": "s", "audience": "panda"}
        self.places = {"token_endpoint": "token", "device_authorization_endpoint": "device"}

    def answer(self, _method: str, path: str, _headers: Any, body: bytes) -> Any:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.forms += [form] if form else []
        status, found = 200, {}
        if path == "/login/issuer.json":
            found = {"oidc_config_url": f"{self.url}/known"} | self.client
        elif path == "/known":
            found = {name: f"{self.url}/{end}" for name, end in self.places.items()}
        elif path == "/device":
            found = self.device
        elif path == "/token":
            status, found = self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]
        return status, {}, json.dumps(found).encode()


def sign_in(issuer: Issuer, said: list[str], slept: list[float]) -> str:
    with http_service(issuer.answer) as issuer.url:
        return device_token(issuer.url, None, said.append, sleep=slept.append)


def test_a_token_comes_when_the_user_has_signed_in() -> None:
    issuer, said, slept = Issuer(PENDING, SLOWER, (502, "lost"), (200, {"id_token": "t"})), [], []
    issuer.device |= {"user_code": "ABC\x1bD"}
    assert sign_in(issuer, said, slept) == "t"
    assert said == ["sign in at https://iam/x, with the code ABC?D"]
    assert slept == [5, 5, 10, 20]
    assert issuer.forms[0]["audience"] == "panda" and {form["client_secret"] for form in issuer.forms} == {"s"}
    assert issuer.forms[1]["device_code"] == "d"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((400, {"error": "access_denied"}), "access_denied"),
        (PENDING, "repeat"),
        ((500, {}), "did not answer"),
        ((200, ["x"]), "did not answer"),
        ((400, ["x"]), "token create"),
        ((200, {"access_token": "t"}), "no id_token"),
    ],
)
def test_without_a_token_it_says_why(answer: tuple[int, Any], words: str) -> None:
    with pytest.raises(HpoPilotError, match=words):
        sign_in(Issuer(answer), [], [])


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({"error": "invalid_client"}, "invalid_client"),
        ({"user_code": "A"}, "verification_uri"),
        ({"verification_uri": "x", "expires_in": "soon"}, "times"),
        ({"verification_uri": "x", "expires_in": 1e12, "interval": -1, "device_code": "d"}, "repeat"),
    ],
)
def test_wrong_answers_of_the_device_endpoint_end_it(device: dict[str, Any], words: str) -> None:
    issuer, slept = Issuer(PENDING), []
    issuer.device = device
    with pytest.raises(InputError, match=words):
        sign_in(issuer, [], slept)
    assert sum(slept) <= 1800


def test_an_issuer_without_the_flow_and_one_without_tls_are_refused() -> None:
    issuer = Issuer((200, {}))
    del issuer.places["device_authorization_endpoint"]
    with pytest.raises(InputError, match="device_authorization_endpoint"):
        sign_in(issuer, [], [])
    issuer = Issuer((200, {}))
    del issuer.client["client_id"]
    with pytest.raises(InputError, match="client_id"):
        sign_in(issuer, [], [])
    with pytest.raises(InputError, match="https"):
        device_token("http://hpo.example.org", None, print)


def test_the_command_writes_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer((200, {"id_token": "t"}))
    monkeypatch.setattr("hpo_pilot.operations.sign_in._INTERVAL", 0)
    with http_service(issuer.answer) as issuer.url:
        words = ["token", "login", "--service", f"{issuer.url}/api/v1/", "-o", str(tmp_path / "t")]
        assert CliRunner().invoke(app, words).exit_code == 0
        forms = len(issuer.forms)
        refused = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "missing" / "t")])
        assert isinstance(refused.exception, InputError)
        assert len(issuer.forms) == forms  # nobody signs in for nothing
    assert (tmp_path / "t").read_text() == "t" and (tmp_path / "t").stat().st_mode & 0o077 == 0
