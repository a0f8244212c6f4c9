"""What every client of searches does, whatever is behind it: a store in process, a service, a service over TLS."""

from __future__ import annotations

import json
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpo_pilot.client.documents import OVER_SEARCHES, OVER_TRIALS
from hpo_pilot.client.local_client import LocalClient
from hpo_pilot.client.ownership import User
from hpo_pilot.client.search_client import SearchClient
from hpo_pilot.errors import InputError
from hpo_pilot.search import TrialState
from hpo_pilot.server.access.auth import Role
from hpo_pilot.store import SearchState
from tests.rest_api import RunningApi, add_results, set_state, start_api, store_of, write_search


@dataclass
class Place:
    """Searches, and how to get at them; `folder` is the user's own."""

    folder: Path
    workdir: Path
    api: RunningApi | None

    def client(self, name: str = "alice", *, operator: bool = False) -> SearchClient:
        if self.api is None:
            return LocalClient(self.workdir, user=User.named(name, changes_all=operator))
        return self.api.client(name, Role.OPERATOR if operator else Role.USER)


@pytest.fixture(scope="module", params=["local", "rest", "rest over TLS"])
def world(request, tmp_path_factory) -> Iterator[tuple[Path, RunningApi | None]]:
    root = tmp_path_factory.mktemp("world")
    if request.param == "local":
        (root / "work").mkdir()
        store_of(root / "work").close()
        yield root / "work", None
        return
    api = start_api(root, tls="TLS" in request.param)
    yield api.workdir, api
    api.stop()


@pytest.fixture
def place(world, tmp_path, monkeypatch) -> Place:
    monkeypatch.delenv("HPO_PILOT_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, *world)


@pytest.fixture
def client(place) -> Iterator[SearchClient]:
    with place.client() as opened:
        yield opened


@pytest.fixture
def name(request) -> str:
    """A search's name that no other test has."""
    return "s" + str(abs(hash(request.node.nodeid)) % 10**9)


@pytest.fixture
def searched(place, client, name) -> str:
    """A search with results, as its service left it."""
    client.submit(write_search(place.folder, name))
    add_results(place.workdir, name)
    return name


def sandbox_names(place: Place, name: str) -> dict[str, int]:
    """The user's files in a search's sandbox, with their modes."""
    store = store_of(place.workdir)
    try:
        archive = store.search(name).sandbox
    finally:
        store.close()
    assert archive is not None
    with tarfile.open(archive) as packed:
        modes = {member.name: member.mode for member in packed.getmembers()}
    ours = {name for name in modes if name.startswith("hpo_pilot_")}
    assert {"hpo_pilot_runner.py", "hpo_pilot_payload.json"} <= ours
    return {name: mode for name, mode in modes.items() if name not in ours}


# --- search files ---


def test_a_good_file_is_valid(place, client, name):
    found = client.validate(write_search(place.folder, name))
    assert found["valid"]
    assert found["problems"] == found["notes"] == []
    assert found["search"]["search"] == name
    assert found["search"]["budget"]["failures"] == 10
    assert set(found) == {"valid", "problems", "notes", "search"}


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


def test_a_script_that_is_not_there_is_noted(place, client, name):
    path = write_search(place.folder, name, payload={"files": "training", "command": "python3 tarin.py"})
    found = client.validate(path)
    assert found["valid"]
    assert "tarin.py is not in training" in found["notes"][0]["message"]


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
    assert [note["path"] for note in found["notes"]] == ([] if place.api else ["warm_start[1]"])
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


def test_a_search_without_files_is_submitted(place, client, name):
    client.submit(write_search(place.folder, name, payload={"command": "true"}))
    assert sandbox_names(place, name) == {}


def test_a_second_search_of_a_name_is_refused(place, client, name):
    path = write_search(place.folder, name)
    client.submit(path)
    with pytest.raises(InputError, match=f"already has a search '{name}'"):
        client.submit(path)


def test_a_file_that_the_runner_needs_is_refused_by_its_own_name(place, client, name):
    path = write_search(place.folder, name)
    (place.folder / "training" / "hpo_pilot_runner.py").write_text("evil")
    with pytest.raises(InputError, match=f"{place.folder}/training/hpo_pilot_runner.py has a name"):
        client.submit(path)


def test_a_link_that_leads_out_is_refused(place, client, name):
    path = write_search(place.folder, name)
    (place.folder / "training" / "data").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="leads out of the folder"):
        client.submit(path)


# --- looking ---


def test_the_list_has_every_search(client, searched):
    mine = next(search for search in client.searches() if search["name"] == searched)
    assert mine["trials"] == {"failed": 1, "finished": 2}
    assert mine["objective"] == {"metric": "loss", "goal": "minimize"}
    assert mine["best"]["number"] == 2
    assert "log_tail" not in mine["best"]["folds"][0]


def test_status_is_the_list_s_document_and_more(client, searched):
    status = client.status(searched)
    listed = next(search for search in client.searches() if search["name"] == searched)
    assert {key: status[key] for key in listed} == listed
    assert status["job_seconds"] == 12.0
    assert status["gpu_hours"] == 0.0
    assert set(status) - set(listed) == {"job_seconds", "gpu_hours", "source", "definition"}


def test_trials_have_their_folds_and_logs(client, searched):
    trials = client.trials(searched)
    assert [trial["number"] for trial in trials] == [1, 2, 3]
    assert trials[0]["state"] == "failed"
    assert trials[0]["error"] == "fold 0: exit status 1"
    assert trials[0]["folds"][0]["log_tail"] == "Traceback"
    assert trials[1]["point"] == {"x": 0.0002, "kind": "a"}
    assert (trials[1]["value"], trials[1]["std"]) == (2.5, 0.7)
    assert [fold["value"] for fold in trials[1]["folds"]] == [2.0, 3.0]
    assert trials[1]["ended"].endswith("+00:00")
    json.dumps(trials, allow_nan=False)  # a payload's NaN is none of ours
    assert "log_tail" not in client.trials(searched, logs=False)[0]["folds"][0]


def test_many_trials_come_whole_and_in_order(place, client, name):
    client.submit(write_search(place.folder, name, budget={"trials": 1300}))
    add_results(place.workdir, name, 1200, log="x" * 60_000)
    trials = client.trials(name)
    assert [trial["number"] for trial in trials] == list(range(1, 1201))
    assert client.best(name)["number"] == 2


def test_best(place, client, name, searched):
    found = client.best(searched)
    assert found["number"] == 2
    assert found["folds"][0]["panda_id"] == 102
    client.submit(write_search(place.folder, f"{name}-new"))
    assert client.best(f"{name}-new") is None


def test_the_best_of_confirmed_trials(place, client, name):
    client.submit(write_search(place.folder, name, confirm={"top": 1, "repeats": 1}))
    add_results(place.workdir, name)
    assert client.best(name)["number"] == 2


def test_report_and_exports(client, searched):
    report = client.report(searched)
    assert report.lower().startswith("<!doctype html")
    assert searched in report
    rows = client.export(searched, "csv").splitlines()
    assert rows[0] == "number,generation,state,value,std,x,kind,fold_0,fold_1,error,submitted,started,ended"
    assert len(rows) == 4
    exported = json.loads(client.export(searched, "json"))
    assert exported["trials"] == client.trials(searched)
    assert exported["search"] == client.status(searched)["definition"]
    with pytest.raises(InputError, match="there is no export to 'xml'; there is csv, json"):
        client.export(searched, "xml")


@pytest.mark.parametrize("identity", ["nope", "99999999", "²", "..", "a/b", "%2e%2e", "?"])
def test_an_unknown_search_is_your_input(client, searched, identity):
    calls = [client.status, client.trials, client.best, client.report, client.events, client.pause, client.stop]
    for call in calls:
        with pytest.raises(InputError, match=r"no search|no name"):
            call(identity)


def test_watching_shows_every_change_and_ends(place, client, searched):
    seen = []

    def move():
        time.sleep(1.0)
        set_state(place.workdir, searched, SearchState.PAUSED)
        time.sleep(1.5)
        set_state(place.workdir, searched, SearchState.DONE, "enough")

    mover = threading.Thread(target=move)
    mover.start()
    begun = time.monotonic()
    for now in client.watch(searched):
        seen.append(now)
    took = time.monotonic() - begun
    mover.join()
    assert [now["state"] for now in seen] == ["running", "paused", "done"]
    assert seen[0]["trials"] == {"failed": 1, "finished": 2}
    assert seen[0]["best"] == {"number": 2, "value": 2.5, "std": 0.7}
    assert seen[0]["total"] == 4
    assert seen[-1]["message"] == "enough"
    assert took < 6


def test_what_is_not_kept_cannot_be_fetched(place, client, searched):
    for which, message in [("best", "no kept outputs"), ("17", "no trial 17"), ("worst", "fetch what")]:
        with pytest.raises(InputError, match=message):
            client.fetch(searched, which, place.folder / "out")


def test_a_doctor_finds_something(client):
    findings = client.doctor()
    assert all(finding["ok"] for finding in findings if finding["needed"])
    assert {"what", "ok", "detail", "needed"} == set(findings[0])


# --- changing ---


def test_pause_resume_stop(client, searched):
    assert client.pause(searched)["state"] == "paused"
    with pytest.raises(InputError, match="is paused, so it cannot be paused"):
        client.pause(searched)
    assert client.resume(searched)["state"] == "running"
    with pytest.raises(InputError, match="is running already"):
        client.resume(searched)
    assert client.stop(searched)["state"] == "stopping"
    with pytest.raises(InputError, match="is stopping already"):
        client.stop(searched)
    done = [(event["who"], event["what"]) for event in client.events(searched)]
    assert done[-3:] == [("alice", "paused"), ("alice", "resumed"), ("alice", "stopping")]


def test_extend(place, client, searched):
    assert client.extend(searched, {"trials": 10, "hours": 0.5})["budget"]["trials"] == 14
    assert client.status(searched)["budget"]["hours"] == 5.5
    set_state(place.workdir, searched, SearchState.DONE)
    assert client.extend(searched, {"trials": 1})["state"] == "running"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "may only grow"),
        ({"trials": -3}, "may only grow"),
        ({"trials": 1.5}, "no whole number"),
        ({"gpu_hours": 1}, "no limit on gpu_hours"),
        ({"parallel": 1}, "no such limit"),
    ],
)
def test_wrong_extensions(client, searched, changes, message):
    before = client.status(searched)["budget"]
    with pytest.raises(InputError, match=message):
        client.extend(searched, changes)
    assert client.status(searched)["budget"] == before


def test_a_budget_beyond_all_numbers(client, searched):
    with pytest.raises(InputError, match="does not extend the budget, which holds less"):
        client.extend(searched, {"hours": 1e308})


def test_a_mended_payload_goes_along(place, client, searched):
    (place.folder / "training" / "train.py").write_text("mended")
    (place.folder / "training" / "more.py").write_text("new")
    client.resume(searched, new_payload=True)
    assert "more.py" in sandbox_names(place, searched)
    assert client.events(searched)[-1]["what"] == "resumed with new payload files"


def test_a_mended_payload_elsewhere_is_named(place, client, searched, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    path = write_search(elsewhere, searched)
    (elsewhere / "training" / "other.py").write_text("new")
    client.resume(searched, new_payload=True, file=path)
    assert "other.py" in sandbox_names(place, searched)


def test_everybody_sees_and_the_owner_changes(place, client, searched):
    with place.client("bob") as bob:
        assert bob.status(searched) == client.status(searched)
        assert bob.trials(searched)
        calls = [
            lambda: bob.pause(searched),
            lambda: bob.stop(searched),
            lambda: bob.extend(searched, {"trials": 1}),
            lambda: bob.resume(searched),
            lambda: bob.resume(searched, new_payload=True, file=place.folder / f"{searched}.yaml"),
        ]
        for call in calls:
            with pytest.raises(InputError, match=f"search '{searched}' is alice's"):
                call()
    assert client.status(searched)["state"] == "running"
    with place.client("carol", operator=True) as carol:
        assert carol.pause(searched)["state"] == "paused"
    assert client.events(searched)[-1]["who"] == "carol"


def test_the_words_for_being_over_are_the_store_s():
    assert {state.value for state in SearchState if state.is_over} == set(OVER_SEARCHES)
    assert {state.value for state in TrialState if state.is_over} == set(OVER_TRIALS)


# --- families: the searches of a file's segments ---


SEGMENTS = {"arm": {"inputs": ["mc23:arms"]}, "leg": {}}


@pytest.fixture
def family(place, client, name) -> str:
    """A family of two, submitted."""
    submitted = client.submit(write_search(place.folder, name, segments=SEGMENTS))
    assert [one["name"] for one in submitted["segments"]] == [f"{name}-arm", f"{name}-leg"]
    return name


def test_a_family_is_submitted_whole(place, client, name, family):
    (arm, leg) = (client.status(f"{family}-{segment}") for segment in ("arm", "leg"))
    assert arm["family"] == leg["family"] == family
    assert arm["definition"]["payload"]["inputs"] == ["mc23:arms"]
    assert list(leg["definition"]["segments"]) == ["leg"]
    assert sandbox_names(place, arm["name"]) == sandbox_names(place, leg["name"])
    shown = client.status(family)
    assert (shown["id"], shown["state"], len(shown["segments"])) == (0, "submitted", 2)
    assert shown["budget"]["trials"] == 2 * arm["budget"]["trials"]
    with pytest.raises(InputError, match=f"already has a search '{name}-arm'"):
        client.submit(write_search(place.folder, name, segments=SEGMENTS))


def test_a_family_is_changed_by_its_name(client, family):
    assert client.pause(family)["state"] == "paused"
    assert client.status(f"{family}-leg")["state"] == "paused"
    client.resume(f"{family}-leg")
    assert client.status(family)["state"] == "running"
    assert client.resume(family)["state"] == "running"
    before = client.status(family)["budget"]["trials"]
    assert client.extend(family, {"trials": 2})["budget"]["trials"] == before + 4
    assert client.stop(family)["state"] == "stopping"
    with pytest.raises(InputError, match="name one of"):
        client.trials(family)


def test_a_family_is_others_to_see_only(place, client, family):
    with place.client("bob") as bob:
        assert bob.status(family)["state"] == "submitted"
        with pytest.raises(InputError, match="alice's"):
            bob.stop(family)
    assert client.status(family)["state"] == "submitted"


def test_a_watched_family_is_over_when_all_of_it_is(place, client, family):
    for segment in ("arm", "leg"):
        add_results(place.workdir, f"{family}-{segment}")
        set_state(place.workdir, f"{family}-{segment}", SearchState.DONE)
    (last,) = client.watch(family)
    assert (last["name"], last["state"], last["best"]) == (family, "done", None)
    assert last["trials"] == client.status(family)["trials"]
