"""The queue file of `hpo-pilot serve --queues`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import jsonschema
import pytest
import requests

from hpo_pilot.cli.schemas import schema_of
from hpo_pilot.errors import InputError
from hpo_pilot.search.yaml_document import read_document
from hpo_pilot.server.queues import Queues
from hpo_pilot.steering.embedded import EmbeddedPanda, QueueFileError, load_queues, write_queues
from hpo_pilot.steering.workdir import WorkDir

EXAMPLE = Path(__file__).parents[2] / "deploy" / "queues.yaml"


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


def test_the_example_is_right_and_the_server_can_read_it(tmp_path: Path) -> None:
    found = load_queues(EXAMPLE)
    assert set(found.queues) == {"LOCAL", "CLUSTER_GPU", "CLUSTER_OLD"}
    jsonschema.validate(read_document(EXAMPLE).value, schema_of("queues.json"))
    target = tmp_path / "queues.json"
    write_queues(found, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert Queues(target, tmp_path).described == found.queues


def test_every_mistake_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("""\
queues:
  "bad name": {}
  A: {core: 3, minutes: -1, status: offlin}
  B: 3
  C: {gpu: {modell: x}, storage: shared, cores: 1.5}
other: 1
""")
    with pytest.raises(QueueFileError) as caught:
        load_queues(file)
    assert [(problem.line, problem.column, problem.path) for problem in caught.value.problems] == [
        (2, 15, "queues.bad name"),
        (3, 7, "queues.A.core"),
        (3, 25, "queues.A.minutes"),
        (3, 37, "queues.A.status"),
        (4, 6, "queues.B"),
        (5, 13, "queues.C.gpu.modell"),
        (5, 34, "queues.C.storage"),
        (5, 49, "queues.C.cores"),
        (6, 1, "other"),
    ]
    assert "did you mean cores?" in caught.value.problems[1].suggestion


@pytest.mark.parametrize("text", ["", "[1]", "queues: {}\n", "queues: [A]\n", "queues:\n\tA: 1\n"])
def test_files_without_queues(tmp_path: Path, text: str) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(text)
    with pytest.raises(QueueFileError, match=r"queues\.yaml"):
        load_queues(file)
