"""How others on this machine find the embedded server of a work folder, and that they do not once it has ended."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import requests

from hpo_pilot.steering.embedded import EmbeddedPanda
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.web.server_jobs import NoServerError, ServerJobs


def test_while_it_runs_and_after(tmp_path: Path) -> None:
    workdir = WorkDir.make(tmp_path / "work")
    board = ServerJobs(workdir.root)
    panda = EmbeddedPanda(workdir, slots=0)
    panda.start()
    try:
        assert board.url == panda.url and board.jobs().jobs == () and board.pilots() == [] == board.queues()
        for file in (workdir.root / "panda.url", workdir.monitor_address):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        monitor = workdir.monitor_address.read_text().strip()
        assert monitor.startswith(f"{panda.url}/bigmon/")
        assert requests.get(f"{monitor}/tasks/?json", timeout=10).json() == []
    finally:
        panda.stop()
    assert not (workdir.root / "panda.url").exists()
    with pytest.raises(NoServerError):
        board.jobs()
