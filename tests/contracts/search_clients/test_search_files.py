"""What every client of searches does with search files: it checks, rehearses and submits them."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import InputError
from tests.rest_api import add_results, store_of, write_search

from .conftest import sandbox_names


def test_a_good_file_is_valid_and_a_script_that_is_not_there_is_noted(place, client, name):
    found = client.validate(write_search(place.folder, name))
    assert found["valid"]
    assert found["problems"] == found["notes"] == []
    assert found["search"]["search"] == name
    assert found["search"]["budget"]["failures"] == 10
    assert set(found) == {"valid", "problems", "notes", "search", "python"}
    payload = {"files": "training", "command": "python3 tarin.py"}
    found = client.validate(write_search(place.folder, name, payload=payload))
    assert found["valid"]
    assert "tarin.py is not in training" in found["notes"][0]["message"]


@pytest.mark.parametrize(
    ("handling", "noted"),
    [
        ("json.dump({'status': 0, 'loss': 1e10}, file)", True),
        ("loss = -9999", True),
        ("return 1e300", True),
        ("loss = float('nan')", False),
        ("json.dump({'status': 1, 'message': 'failed'}, file)", False),
        ("raise", False),
    ],
)
@pytest.mark.parametrize("runs", [{"command": "python3 train.py"}, {"function": "train:f"}])
def test_a_penalty_for_failures_is_noted(place, client, name, runs, handling, noted):
    path = write_search(place.folder, name, payload={"files": "penalty", **runs})
    (place.folder / "penalty").mkdir(exist_ok=True)
    code = f"def f():\n    try:\n        train(1e5)\n    except ValueError:\n        {handling}\n"
    (place.folder / "penalty" / "train.py").write_text(code)
    notes = [note for note in client.validate(path)["notes"] if "line 5 of train.py" in note["message"]]
    assert ["NaN" in note["suggestion"] for note in notes] == [True] * noted


def test_every_mistake_is_found_with_its_place(place, client, name):
    path = write_search(place.folder, name, budget={"trails": 4}, seed="x")
    found = client.validate(path)
    assert not found["valid"]
    assert found["search"] is None
    lines = path.read_text().splitlines()
    places = {problem["path"]: problem for problem in found["problems"]}
    assert set(places) == {"budget.trails", "seed"}
    for problem in places.values():
        assert problem["file"] == str(path)
        key = problem["path"].rsplit(".")[-1]
        assert key in lines[problem["line"] - 1]
    assert "did you mean trials" in places["budget.trails"]["suggestion"]


def test_a_missing_folder_is_a_mistake_with_its_place_and_a_suggestion(place, client, name):
    path = write_search(place.folder, name, payload={"files": "trianing", "command": "true"}, seed=-1)
    found = client.validate(path)
    assert [problem["path"] for problem in found["problems"]] == ["payload.files", "seed"]
    problem = found["problems"][0]
    assert "trianing" in path.read_text().splitlines()[problem["line"] - 1]
    assert "no such folder" in problem["message"]
    assert problem["suggestion"] == "did you mean training?"


@pytest.mark.parametrize(
    "content", [None, b"search: [", b"\xff\xfe", b"a" * 1_100_000], ids=["missing", "yaml", "bytes", "large"]
)
def test_what_is_no_search_file_is_said_without_an_error(place, client, content):
    path = place.folder / "strange.yaml"
    if content is not None:
        path.write_bytes(content)
    found = client.validate(path)
    assert not found["valid"]
    assert found["problems"][0]["file"] == str(path)


def test_a_wrong_file_is_not_submitted(place, client, name):
    path = write_search(place.folder, name, budget={"trails": 4})
    with pytest.raises(InputError) as caught:
        client.submit(path)
    assert str(caught.value).startswith(f"{path}:")
    assert "budget.trails" in str(caught.value)
    with pytest.raises(InputError, match=r"budget\.trails"):
        client.rehearse(path)
    with pytest.raises(InputError, match="no search"):
        client.status(name)


def test_a_rehearsal_registers_nothing(place, client, name):
    task = client.rehearse(write_search(place.folder, name))
    assert task["nEvents"] == 4  # two points of two folds
    assert name in task["taskName"]
    with pytest.raises(InputError, match="no search"):
        client.status(name)


def test_a_search_starts_from_an_earlier_one_and_from_a_file(place, client, searched):
    """What it has from them is its own from then on: kept with it, and said in its log."""
    (place.folder / "before.csv").write_text("value,x,depth\n0.5,0.25,1\n0.125,0.75,2\n")
    path = write_search(place.folder, f"{searched}-next", warm_start=[searched, "before.csv"])
    found = client.validate(path)
    assert found["valid"]
    ignored, *notes = found["notes"]
    assert ignored["message"] == "the optimizer random learns nothing from earlier searches"
    taken = "it does not name its figures of merit or their goals: they are used as 'loss' (to minimize)"
    kind = "results without kind get random values for it"
    assert [note["message"] for note in notes] == ([] if place.api else [taken, kind])
    assert client.rehearse(path)["nEvents"] == 4
    client.submit(path)
    store = store_of(place.workdir)
    record = store.search(f"{searched}-next")
    add_results(place.workdir, searched + "-next")
    of_search, of_file = store.earlier_results(record.id)
    store.close()
    assert of_search.source == searched
    assert [(point["kind"], values) for point, values, *_ in of_search.results] == [
        ("a", None),
        ("a", (2.5,)),
        ("a", (3.5,)),
    ]
    assert of_search.results[1][2] == (pytest.approx(0.7 / 2**0.5),)
    assert [(point["x"], values) for point, values, *_ in of_file.results] == [(0.25, (0.5,)), (0.75, (0.125,))]
    log = [event["what"] for event in client.events(record.name)]
    assert log[:2] == ["submitted", f"starts from 3 results of {searched}"]
    assert log[2].startswith("starts from 2 results of before.csv (")
    (place.folder / "before.csv").unlink()
    assert client.status(record.name)["definition"]["warm_start"] == [searched, "before.csv"]


@pytest.mark.parametrize(
    ("source", "said"),
    [("nothing-of-the-kind", "no search 'nothing-of-the-kind'"), ("gone.json", "there is no such file")],
)
def test_an_earlier_search_that_is_not_there_is_a_mistake(place, client, name, source, said):
    path = write_search(place.folder, name, warm_start=[source])
    [problem] = client.validate(path)["problems"]
    assert problem["path"] == "warm_start[0]"
    assert source in path.read_text().splitlines()[problem["line"] - 1]
    assert said in problem["message"]
    for call in (client.submit, client.rehearse):
        with pytest.raises(InputError, match=said):
            call(path)
    with pytest.raises(InputError, match="no search"):
        client.status(name)


def test_submitted_is_registered_whole(place, client, name):
    path = write_search(place.folder, name)
    document = client.submit(path)
    assert (document["name"], document["state"], document["owner"]) == (name, "submitted", "alice")
    assert sandbox_names(place, name) == {"train.py": 0o644, "run.sh": 0o755}
    path.unlink()
    status = client.status(str(document["id"]))
    assert status["name"] == name
    assert status["source"] == str(path)
    assert status["definition"]["payload"]["command"] == "python3 train.py"
    assert [(event["who"], event["what"]) for event in client.events(name)] == [("alice", "submitted")]


def test_a_search_without_files_is_submitted_once(place, client, name):
    path = write_search(place.folder, name, payload={"command": "true"})
    client.submit(path)
    assert sandbox_names(place, name) == {}
    with pytest.raises(InputError, match=f"already has a search '{name}'"):
        client.submit(path)


def test_files_that_a_payload_may_not_have_are_refused_by_name(place, client, name):
    path = write_search(place.folder, name)
    runner, data = (place.folder / "training" / one for one in ("hpo_pilot_runner.py", "data"))
    runner.write_text("evil")
    with pytest.raises(InputError, match=f"{runner} has a name"):
        client.submit(path)
    runner.unlink()
    data.symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="leads out of the folder"):
        client.submit(path)
