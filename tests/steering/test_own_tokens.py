"""The tokens of the work folder's own processes."""

from __future__ import annotations

from pathlib import Path

import jwt
import pytest

from hpo_pilot.server.tokens import Authority, Caller, Role, Tokens
from hpo_pilot.steering.server_processes import OwnTokens
from tests.clock import Clock

DAY = 86400.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def own(tmp_path: Path, clock: Clock) -> OwnTokens:
    return OwnTokens(tmp_path / "tokens", "jane", clock=clock)


def test_one_for_each_of_our_processes(own: OwnTokens, tmp_path: Path, clock: Clock) -> None:
    tokens = Tokens(tmp_path / "tokens", clock=clock)
    assert {path.name for path in own.files.values()} == {"user.token", "pilot.token"}
    for role, path in own.files.items():
        assert tokens.verify(f"Bearer {path.read_text()}") == Caller("jane", role)
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_text() == path.read_text().strip(), "panda-client and Pilot 3 send what the file holds"


def test_they_stay_until_they_must_be_renewed(own: OwnTokens, tmp_path: Path, clock: Clock) -> None:
    before = {role: path.read_text() for role, path in own.files.items()}
    clock.now += 19 * DAY
    OwnTokens(tmp_path / "tokens", "jane", clock=clock)
    own.renew()
    assert {role: path.read_text() for role, path in own.files.items()} == before
    clock.now += 2 * DAY
    own.renew()
    tokens = Tokens(tmp_path / "tokens", clock=clock)
    for role, path in own.files.items():
        assert path.read_text() != before[role]
        assert tokens.verify(f"Bearer {before[role]}") is not None, "whoever has read the old one goes on with it"
        left = jwt.decode(path.read_text(), options={"verify_signature": False})["exp"] - clock.now
        assert left == pytest.approx(30 * DAY, abs=2)


def test_looking_is_rare(own: OwnTokens, clock: Clock) -> None:
    own.files[Role.USER].unlink()
    clock.now += 500
    own.renew()
    assert not own.files[Role.USER].exists()
    clock.now += 200
    own.renew()
    assert own.files[Role.USER].exists()


@pytest.mark.parametrize("content", [b"", b"an-old-token-of-the-time-before", b"\xff\xfe"])
def test_what_is_no_token_is_replaced(own: OwnTokens, tmp_path: Path, clock: Clock, content: bytes) -> None:
    own.files[Role.PILOT].write_bytes(content)
    OwnTokens(tmp_path / "tokens", "jane", clock=clock)
    assert Tokens(tmp_path / "tokens", clock=clock).verify(f"Bearer {own.files[Role.PILOT].read_text()}") is not None


def test_a_revoked_one_and_another_users_are_replaced(own: OwnTokens, tmp_path: Path, clock: Clock) -> None:
    authority = Authority(tmp_path / "tokens", clock=clock)
    for token in authority.issued():
        authority.revoke(token.id)
    again = OwnTokens(tmp_path / "tokens", "anna", clock=clock)
    tokens = Tokens(tmp_path / "tokens", clock=clock)
    assert tokens.verify(f"Bearer {again.files[Role.USER].read_text()}") == Caller("anna", Role.USER)
