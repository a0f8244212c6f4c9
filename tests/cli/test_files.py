"""The files that commands are asked for."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from hpo_pilot.cli.output import write_text
from hpo_pilot.errors import InputError


def test_a_file_is_made_with_its_folders_and_replaced(tmp_path):
    for text in ("a", "é\n"):
        write_text(tmp_path / "new" / "file", text)
        assert (tmp_path / "new" / "file").read_text(encoding="utf-8") == text
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["file"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed(tmp_path, there):
    (tmp_path / "link").symlink_to("target")
    if there:
        (tmp_path / "target").write_text("old")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_what_is_no_file_is_written_to_and_stays(tmp_path):
    """As /dev/null is, which a rename by root would make a file."""
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    write_text(tmp_path / "pipe", "text")
    reader.join(600)
    assert read == ["text"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("link", [False, True])
def test_a_folder_is_left_alone(tmp_path, link):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with pytest.raises(InputError, match=r"cannot write .*: Is a directory"):
        write_text(tmp_path / ("link" if link else "folder"), "text")
    assert (tmp_path / "folder").is_dir()
    assert (tmp_path / "link").is_symlink()
