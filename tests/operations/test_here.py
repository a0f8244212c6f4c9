"""Fetched outputs land in their folder alone, and users change their own searches alone."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.here import NotYoursError, User
from hpo_pilot.operations.outputs import unpack_outputs
from tests.archives import archive, member


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(archive(member("model.npz", size=100_000)))
    return path


def test_outputs_go_into_a_folder_per_trial_and_fold(tmp_path: Path, packed: Path) -> None:
    (file,) = unpack_outputs({0: packed}, tmp_path / "out", 7, folds=1)
    assert file == tmp_path / "out" / "trial7" / "model.npz"
    assert file.read_bytes() == bytes(100_000)
    (file,) = unpack_outputs({1: packed}, tmp_path / "out", 7, folds=2)
    assert file == tmp_path / "out" / "trial7" / "fold1" / "model.npz"


@pytest.mark.parametrize(
    "members",
    [
        [member("../escaped")],
        [member("/escaped")],
        [member("l", tarfile.SYMTYPE, "/etc"), member("l/escaped")],
        [member("l", tarfile.LNKTYPE, "l")],
        [member("a", tarfile.DIRTYPE), member("a", tarfile.SYMTYPE, "a")],
        [member("p", tarfile.FIFOTYPE)],
    ],
    ids=["above", "absolute", "through a link", "its own link", "folder becomes link", "pipe"],
)
def test_what_a_malicious_job_packs_stays_in_its_folder(
    tmp_path: Path, packed: Path, members: list[tarfile.TarInfo]
) -> None:
    packed.write_bytes(archive(*members))
    try:
        unpack_outputs({0: packed}, tmp_path / "out", 1, folds=1)
    except GiveUpError as error:
        assert "cannot be unpacked" in str(error)
    inside = tmp_path / "out" / "trial1"
    assert all(path.is_relative_to(inside) for path in tmp_path.rglob("escaped"))
    assert not Path("/escaped").exists() and not Path("/etc/escaped").exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "no archive", "empty"])
def test_a_damaged_archive_is_called_so(tmp_path: Path, packed: Path, damage: str) -> None:
    content = packed.read_bytes()
    damaged = {
        "cut": content[:-20],
        "flipped": content[:40] + bytes(b ^ 255 for b in content[40:60]) + content[60:],
        "no archive": b"<html>",
        "empty": b"",
    }
    packed.write_bytes(damaged[damage])
    with pytest.raises(GiveUpError, match=r"a\.tar\.gz cannot be unpacked"):
        unpack_outputs({0: packed}, tmp_path / "out", 1, folds=1)


def test_a_user_changes_own_searches_alone_and_long_names_stay_apart():
    prefix = "/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN=somebody/CN=123456/CN="
    one, two = User.named(prefix + "One"), User.named(prefix + "Two")
    assert len(one.name) == len(two.name) == 60
    for user, owner in ((User.named("alice"), "alice"), (User.named("op", changes_all=True), "alice"), (one, one.name)):
        user.check("x", owner)
    for user, owner in ((User.named("bob"), "alice"), (one, two.name)):
        with pytest.raises(NotYoursError, match=f"only {owner} or an operator"):
            user.check("x", owner)


def test_without_a_server_clients_that_ask_are_told_no_path(tmp_path: Path) -> None:
    """A service passes the message on to its users."""
    file = tmp_path / "asked.yaml"
    file.write_text("search: asked\nspace: {x: {type: real, low: 0, high: 1}}\npayload: none\n")
    with SearchClient.local(tmp_path / "work") as client:
        client.submit(file)
        with pytest.raises(TryAgainError, match="`hpo-pilot serve`") as raised:
            client.ask("asked")
        assert str(tmp_path) not in str(raised.value)
