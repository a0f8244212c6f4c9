"""Whom `serve` warns that users' payloads could read its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_pilot.server.tokens import Authority, Role
from hpo_pilot.steering.server_processes import NetworkOptions, OwnTokens, security_warnings
from hpo_pilot.steering.workdir import WorkDir, nickname


@pytest.fixture
def workdir(tmp_path: Path) -> WorkDir:
    made = WorkDir.make(tmp_path)
    OwnTokens(made.tokens, nickname())
    return made


def test_ones_own_laptop_gets_no_warning(workdir: WorkDir) -> None:
    assert security_warnings(workdir, NetworkOptions(), 4) == []
    Authority(workdir.tokens).issue(nickname(), Role.OPERATOR, 1)
    assert security_warnings(workdir, NetworkOptions(host="localhost"), 4) == []


@pytest.mark.parametrize(
    ("reach", "why"),
    [
        (NetworkOptions(host="0.0.0.0", certificate=Path("c"), key=Path("k")), "reached from elsewhere"),  # noqa: S104
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
