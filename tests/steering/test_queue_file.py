"""The queue file of `hpo-pilot serve --queues`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import requests

from hpo_pilot.errors import InputError
from hpo_pilot.steering.embedded import EmbeddedPanda
from hpo_pilot.steering.workdir import WorkDir


def test_the_server_gets_the_queues(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("queues:\n  LOCAL: {}\n  BIG: {cores: 64}\n")
    panda = EmbeddedPanda(WorkDir.make(tmp_path / "work"), slots=0, queues=file)
    panda.start()
    try:
        described = requests.get(f"{panda.url}/cache/pandaqueues.json", timeout=10).json()
    finally:
        panda.stop()
    assert {name: queue["corecount"] for name, queue in described.items()} == {"LOCAL": 1, "BIG": 64}
    assert json.loads((tmp_path / "work" / "queues.json").read_text())["queues"]["BIG"] == {"cores": 64}


def test_the_local_pilot_needs_its_queue(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("queues: {BIG: {cores: 64}}\n")
    folder = WorkDir.make(tmp_path / "work")
    with pytest.raises(InputError, match="has no queue LOCAL"):
        EmbeddedPanda(folder, slots=1, queues=file)
    EmbeddedPanda(folder, slots=0, queues=file)
