"""Work folders on machines that others use too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.files import close_to_others, make_private, write_whole

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another account")
STRANGER = 12345


def mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o7777


def test_what_is_made_is_closed_and_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    make_private(tmp_path / "new" / "work")
    assert mode(tmp_path / "new" / "work") == 0o700
    for there in (0o755, 0o750, 0o1777):
        (tmp_path / "new").chmod(there)
        make_private(tmp_path / "new")
        assert mode(tmp_path / "new") == there
    close_to_others(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o700


def test_content_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut leaves an empty file. The real system call runs."""
    path, forced, fsync = tmp_path / "key", [], os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        forced.append(
            (str(Path(f"/proc/self/fd/{descriptor}").readlink()), os.fstat(descriptor).st_size, path.exists())
        )

    monkeypatch.setattr(os, "fsync", noted)
    write_whole(path, "secret")
    (content, size, named), (folder, _, renamed) = forced
    assert Path(content).parent == tmp_path and (size, named) == (6, False)
    assert (folder, renamed) == (str(tmp_path), True)
    write_whole(path, "not needed", scratch=True)
    assert len(forced) == 2 and path.read_text() == "not needed"


def test_a_folder_that_everybody_writes_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(InputError, match="every account can write"):
        make_private(tmp_path)


@ROOT_ONLY
def test_a_stranger_s_folder_is_refused(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    os.chown(work, STRANGER, STRANGER)
    with pytest.raises(InputError, match="belongs to account 12345"):
        make_private(work)
    with pytest.raises(InputError, match="belongs to account 12345"):
        close_to_others(work)


@ROOT_ONLY
def test_a_stranger_s_link_is_refused_and_one_s_own_is_followed(tmp_path: Path) -> None:
    """In /tmp somebody may have put a link where the folder is to be."""
    (tmp_path / "home").mkdir()
    link = tmp_path / "work"
    link.symlink_to(tmp_path / "home")
    make_private(link)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(InputError, match="belongs to account 12345"):
        make_private(link)
