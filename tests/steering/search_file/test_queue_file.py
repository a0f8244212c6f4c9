"""Queue files: what is read, and what is said of mistakes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import jsonschema
import pytest

from hpo_pilot.cli.schemas import schema_of
from hpo_pilot.search.yaml_document import read_document
from hpo_pilot.server.queues import Queues
from hpo_pilot.steering.embedded import QueueFileError, load_queues, write_queues

EXAMPLE = Path(__file__).parents[3] / "deploy" / "queues.yaml"


def test_the_example_is_sound_and_reaches_the_server(tmp_path: Path) -> None:
    found = load_queues(EXAMPLE)
    assert set(found.queues) == {"LOCAL", "CLUSTER_GPU", "CLUSTER_OLD"}
    jsonschema.validate(read_document(EXAMPLE).value, schema_of("queues.json"))
    target = tmp_path / "queues.json"
    write_queues(found, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert Queues(target, tmp_path).described == found.queues
    assert json.loads(target.read_text())["queues"]["CLUSTER_OLD"]["status"] == "brokeroff"


def test_every_mistake_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(
        "queues:\n"
        '  "bad name": {}\n'
        "  A: {core: 3, minutes: -1, status: offlin}\n"
        "  B: 3\n"
        "  C: {gpu: {modell: x}, storage: shared, cores: 1.5}\n"
        "other: 1\n"
    )
    with pytest.raises(QueueFileError) as caught:
        load_queues(file)
    told = [str(problem).removeprefix(f"{file}:") for problem in caught.value.problems]
    assert [line.split(": ")[:2] for line in told] == [
        ["2:15", "queues.bad name"],
        ["3:7", "queues.A.core"],
        ["3:25", "queues.A.minutes"],
        ["3:37", "queues.A.status"],
        ["4:6", "queues.B"],
        ["5:13", "queues.C.gpu.modell"],
        ["5:34", "queues.C.storage"],
        ["5:49", "queues.C.cores"],
        ["6:1", "other"],
    ]
    assert "did you mean cores?" in told[1]
    assert "must be a full path" in told[6]


@pytest.mark.parametrize("text", ["", "[1]", "queues: {}\n", "queues: [A]\n", "queues:\n\tA: 1\n"])
def test_no_queues_at_all(tmp_path: Path, text: str) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(text)
    with pytest.raises(QueueFileError, match=r"queues\.yaml"):
        load_queues(file)
