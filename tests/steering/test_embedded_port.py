"""Where the embedded server listens from one start to the next: pilots in allocations outlive it."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hpo_pilot.steering import embedded
from hpo_pilot.steering.embedded import EmbeddedPanda
from hpo_pilot.steering.workdir import WorkDir


def test_the_port_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(embedded, "_PORT_SECONDS", 0.2)
    workdir = WorkDir.make(tmp_path / "work")
    first = EmbeddedPanda(workdir, slots=0).url
    (workdir.tokens / "address").write_text(f"{first}\n")
    assert EmbeddedPanda(workdir, slots=0).url == first
    with socket.create_server(("127.0.0.1", urlsplit(first).port or 0)):
        other = EmbeddedPanda(workdir, slots=0).url
    assert other != first and "on which earlier pilots expect this server, is taken" in caplog.text
    (workdir.tokens / "address").write_text("nonsense")
    assert EmbeddedPanda(workdir, slots=0).url.startswith("http://127.0.0.1:")
