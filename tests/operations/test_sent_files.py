"""What leaves the user's machine: the files that the search file names, and none that a service asks for besides."""

from __future__ import annotations

import os

import pytest

from hpo_pilot import connect
from hpo_pilot.errors import InputError
from tests.rest_api import write_search

from .conftest import Answer, good, search


def examined(files: str | None, *results: str) -> Answer:
    place = {"file": "s.yaml", "line": 1, "column": 1, "path": "payload.files", "message": "", "suggestion": ""}
    named = {
        "files": files,
        "command": "true",
        "files_place": place,
        "command_place": place,
        "results": [
            {"source": source, "place": {**place, "path": f"warm_start[{index}]"}}
            for index, source in enumerate(results)
        ],
    }
    return good({"valid": True, "problems": [], "notes": [], "search": {}, "named_files": named})


@pytest.mark.parametrize("files", ["/", "/etc", ".", "..", "~/.ssh", "train", "ing", "training/..", "command"])
def test_a_service_gets_no_folder_that_the_file_does_not_name(fake, token_file, tmp_path, files):
    path = write_search(tmp_path / "mine", "x")
    fake.answers = [examined(files)]
    with pytest.raises(InputError, match=r"write payload\.files plainly"):
        connect(fake.url, token_file).submit(path)
    assert len(fake.seen) == 1


@pytest.mark.parametrize(
    "form", ["files: training", "files: 'training'", '"files": "training"', "files:   training  # x"]
)
def test_a_folder_is_named_in_many_ways(fake, token_file, tmp_path, form):
    path = write_search(tmp_path / "mine", "x")
    path.write_text(f"search: x\npayload:\n  {form}\n  command: 'true'\n")
    fake.answers = [examined("training"), good({"present": True}), good(search("submitted"))]
    connect(fake.url, token_file).submit(path)
    assert fake.seen[1][1].startswith("/api/v1/payloads/")


@pytest.mark.parametrize("source", ["/etc/passwd", "before", "efore.csv", "x/before.csv", "../before.csv", "true"])
@pytest.mark.parametrize("warm_start", ["warm_start: [before.csv]\n", ""])
def test_a_service_gets_no_results_that_the_file_does_not_name(fake, token_file, tmp_path, source, warm_start):
    path = tmp_path / "search.yaml"
    path.write_text(f"payload: {{command: 'true'}}\n{warm_start}")
    fake.answers = [examined(None, source)]
    with pytest.raises(InputError, match="write it plainly, as in `warm_start:"):
        connect(fake.url, token_file).submit(path)
    assert len(fake.seen) == 1


def test_results_that_the_file_names_are_sent(fake, token_file, tmp_path):
    (tmp_path / "before.csv").write_text("x,value\n1,2\n")
    path = tmp_path / "search.yaml"
    path.write_text("payload: {command: 'true'}\nwarm_start: [old-search, before.csv]\n")
    fake.answers = [examined(None, "before.csv"), good({"present": True}), good(search("submitted"))]
    connect(fake.url, token_file).submit(path)
    digest = fake.seen[1][1].removeprefix("/api/v1/payloads/")
    assert f"results={digest}" in fake.seen[2][1]


def test_a_folder_that_is_too_large_is_refused_before_the_rest_is_read(fake, token_file, tmp_path, monkeypatch):
    monkeypatch.setattr("hpo_pilot.panda.sandbox.SIZE_LIMIT", 50_000)
    path = write_search(tmp_path / "mine", "x")
    folder = tmp_path / "mine" / "training"
    (folder / "a.bin").write_bytes(os.urandom(200_000))
    (folder / "hpo_pilot_runner.py").write_text("refused too, once it is seen")
    fake.answers = [examined("training")]
    with pytest.raises(InputError, match=r"packs to more than .* payload\.inputs"):
        connect(fake.url, token_file).submit(path)
    assert len(fake.seen) == 1


def test_new_payload_from_a_place_that_the_service_names_must_be_here(fake, token_file, tmp_path, monkeypatch):
    elsewhere = write_search(tmp_path / "elsewhere", "x")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    known = {**search("paused"), "source": str(elsewhere), "definition": {"payload": {"files": "training"}}}
    fake.answers = [good(known)]
    with pytest.raises(InputError, match=r"which is not in this folder: .*--file FILE"):
        connect(fake.url, token_file).resume("x", new_payload=True)
    assert len(fake.seen) == 1
