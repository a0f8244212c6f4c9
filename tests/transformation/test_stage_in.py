"""Inputs by path, and jobs that have none."""

from __future__ import annotations

import pytest

from .conftest import listed, refused


def test_a_job_without_inputs_or_document_is_left_alone(tmp_path, staging, work):
    (tmp_path / "bare").mkdir()
    assert staging.bring(str(tmp_path / "bare")) == [] and not list((tmp_path / "bare").iterdir())
    folder = work()
    assert staging.bring(str(folder)) == []
    assert [path.name for path in folder.iterdir()] == ["hpo_pilot_payload.json"]
    assert not (tmp_path / "cache").exists()


def test_paths_are_linked_and_listed_in_their_order(tmp_path, staging, work):
    data = tmp_path / "data"
    (data / "set").mkdir(parents=True)
    for name in ("b.h5", "a.h5", "set/x"):
        (data / name).write_text(name)
    folder = work(str(data / "set"), str(data / "*.h5"))
    elsewhere = staging.bring(str(folder))
    assert listed(folder) == ["set", "a.h5", "b.h5"]
    assert (folder / "set" / "x").read_text() == "set/x" and (folder / "a.h5").read_text() == "a.h5"
    assert elsewhere == [str(data / "set"), str(data / "a.h5"), str(data / "b.h5")]


@pytest.mark.parametrize(("name", "message"), [("gone.h5", "it is not there on"), ("*.root", "no file matches it on")])
def test_a_path_that_is_not_there_is_for_the_infrastructure(tmp_path, staging, work, name, message):
    refused(staging, work(str(tmp_path / name)), message)


def test_names_must_differ(tmp_path, staging, work):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.h5").write_text(name)
    refused(
        staging, work(str(tmp_path / "one" / "x.h5"), str(tmp_path / "two" / "x.h5")), "two inputs have the name x.h5"
    )
    folder = work(str(tmp_path / "one" / "x.h5"))
    (folder / "x.h5").write_text("the payload's own")
    refused(staging, folder, "the payload's files and an input have the name x.h5")
    assert (folder / "x.h5").read_text() == "the payload's own"
