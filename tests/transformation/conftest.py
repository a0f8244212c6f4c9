"""The server and the waiting of the pilot's tests; jobs with inputs, and what brings them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpo_pilot.transformation.job import ExitCode, TransformationFailure
from hpo_pilot.transformation.stage_in import StageIn
from tests.pilot.conftest import alive, panda, until
from tests.transformation.web import Web

__all__ = ["alive", "panda", "until"]


@pytest.fixture
def web():
    served = Web()
    yield served
    served.gate.set()
    served.server.shutdown()
    served.server.server_close()


@pytest.fixture
def work(tmp_path):
    """Makes a job's folder whose document names these inputs."""
    count = 0

    def make(*inputs: str) -> Path:
        nonlocal count
        count += 1
        folder = tmp_path / f"job{count}"
        folder.mkdir()
        (folder / "hpo_pilot_payload.json").write_text(json.dumps({"command": "true", "inputs": inputs}))
        return folder

    return make


@pytest.fixture
def staging(tmp_path):
    return StageIn(str(tmp_path / "cache"), 10 << 20)


def listed(folder: Path) -> list[str]:
    return list(json.loads((folder / "hpo_pilot_inputs.json").read_text()))


def refused(staging: StageIn, folder: Path, message: str) -> None:
    with pytest.raises(TransformationFailure, match=message) as caught:
        staging.bring(str(folder))
    assert caught.value.code == ExitCode.NO_INPUT
    assert not (folder / "hpo_pilot_inputs.json").exists()
