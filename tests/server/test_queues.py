"""Queues of a queue file, and their data for Pilot 3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import ASKED_QUEUE
from hpo_pilot.search import mistakes
from hpo_pilot.server import queues as queue
from hpo_pilot.server.descriptions import TRANSFORMATION
from hpo_pilot.server.queues import Queues, place_of
from hpo_pilot.transformation.executable import build
from tests.server.conftest import Api, RunningServer, send, serving
from tests.task_parameters import make_params


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("queues")
    queues = {
        "LOCAL": {},
        "OFF": {"status": "offline"},
        "HIDDEN": {"status": "brokeroff"},
        "GPU": {"gpus": 2, "gpu": {"model": "A100"}, "cores": 8, "minutes": 90, "memory_mb": 4000, "disk_mb": 70},
        "SHARED": {"storage": str(folder / "shared"), "site": "HERE", "pilot": {"timefloor": 15}},
    }
    (folder / "queues.json").write_text(json.dumps({"queues": queues}))
    with serving(folder, options=["--queues", str(folder / "queues.json")]) as running:
        yield running


def get(server: Any, path: str) -> Any:
    """A file of the caches, as Pilot 3 fetches it: without a token."""
    return requests.get(f"{server.url}/cache/{path}", timeout=600)


def test_names_of_queues_are_those_of_search_files() -> None:
    assert queue.QUEUE_PATTERN == mistakes.QUEUE_PATTERN


def test_queuedata_without_a_token(server: RunningServer) -> None:
    flat = get(server, "schedconfig/GPU.all.json").json()
    assert (flat["nickname"], flat["panda_resource"]) == ("GPU", "GPU")
    assert (flat["state"], flat["status"]) == ("ACTIVE", "online")
    assert (flat["corecount"], flat["maxtime"], flat["maxrss"], flat["maxwdir"]) == (8, 5400, 4000, 70)
    assert (flat["copytools"], flat["acopytools"]["pw"], flat["catchall"]) == (
        {"mv": {"setup": ""}},
        ["mv"],
        "mv_final_destination",
    )
    assert {"type": "gpu", "vendor": ["NVIDIA"], "model": ["A100"]} in flat["architectures"]
    assert get(server, "schedconfig/GPU.json").json() == {"GPU": flat}
    every = get(server, "cric_pandaqueues.json").json()
    assert set(every) == {"LOCAL", "OFF", "HIDDEN", "GPU", "SHARED"}
    assert every["GPU"] == flat
    assert every == get(server, "schedconfig/pandaqueues.json").json()
    assert (every["SHARED"]["timefloor"], every["SHARED"]["atlas_site"]) == (15, "HERE")
    missing = get(server, "schedconfig/NONE.all.json")
    assert (missing.status_code, missing.json()) == (404, {"error": "no queue NONE here"})
    # Sandboxes beside them stay behind a token.
    assert get(server, "sources.x.tar.gz").status_code == 401


def test_the_transformation_without_a_token(server: RunningServer) -> None:
    address = f"{server.url}/trf/user"
    answer = requests.get(f"{address}/{TRANSFORMATION}", timeout=600)
    assert answer.ok and answer.content == build()
    again = requests.get(f"{address}/{TRANSFORMATION}", headers={"If-None-Match": answer.headers["ETag"]}, timeout=600)
    assert again.status_code == 304 and not again.content
    for name in ("runGen", "..%2f..%2fpyproject.toml", "executable.py"):
        assert requests.get(f"{address}/{name}", timeout=600).status_code == 404


def test_storages(server: RunningServer) -> None:
    stores = get(server, "ddmendpoints.json").json()
    assert stores == get(server, "cric_ddmendpoints.json").json()
    queues = get(server, "pandaqueues.json").json()
    for name, folder in (("LOCAL", server.folder / "files" / "grid"), ("SHARED", server.folder / "shared")):
        (endpoint,) = queues[name]["astorages"]["pl"]
        assert stores[endpoint]["arprotocols"]["write_wan"][0]["endpoint"] == "file://localhost"
        assert stores[endpoint]["arprotocols"]["write_wan"][0]["path"] == f"{folder}/"
        assert (stores[endpoint]["is_deterministic"], stores[endpoint]["state"]) == (True, "ACTIVE")
    assert len({store["id"] for store in stores.values()}) == len(stores)


def test_outputs_that_a_pilot3_moved(server: RunningServer) -> None:
    name = "user.me.12._000001.outputs.tar.gz"
    # Rucio's place: scope, and the first four digits of the MD5 of scope and name.
    assert place_of(name).parts[:2] == ("user", "me")
    path = server.folder / "shared" / place_of(name)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"content")
    assert send(server, "GET", f"/storage/{name}", "token-of-me").content == b"content"
    assert send(server, "DELETE", f"/storage/{name}", "token-of-you").status_code == 403
    assert send(server, "DELETE", f"/storage/{name}", "token-of-me").status_code == 200
    assert not path.exists()
    assert send(server, "DELETE", f"/storage/{name}", "token-of-me").status_code == 404


def test_jobs_of_described_queues(user: Api, pilot: Api, server: RunningServer) -> None:
    anywhere = user.submit(make_params("user.me.any/", 1, site=None))
    hidden = user.submit(make_params("user.me.hidden/", 1, site="HIDDEN"))
    user.submit(make_params("user.me.off/", 1, site="OFF"))
    gpu = user.submit(make_params("user.me.gpu/", 1, site=None, architecture="&nvidia-A100", taskPriority=900))
    assert pilot.acquire(5, site_name="OFF") == []
    assert [job["taskID"] for job in pilot.acquire(5, site_name="HIDDEN")] == [hidden]
    assert [job["taskID"] for job in pilot.acquire(5, site_name="GPU", target_architecture={"gpus": []})] == [anywhere]
    assert pilot.legacy("getJob", siteName="GPU", prodSourceLabel="user")["taskID"] == gpu
    reply = pilot.post("pilot/acquire_jobs", site_name="GPU", target_architecture={"gpus": 3})
    assert (reply["success"], reply["message"]) == (False, "target_architecture: gpus must be a list of objects")


def test_trials_for_clients_need_no_queue_of_the_file(user: Api) -> None:
    task_id = user.submit(make_params("user.me.asked/", 1, site=f"{ASKED_QUEUE}12345678"))
    details = user.get("task/get_detailed_info", task_id=task_id)["data"]
    assert details["status"] != "broken", details["errorDialog"]


def test_an_unknown_queue_is_refused(user: Api, pilot: Api, server: RunningServer) -> None:
    reply = pilot.post("pilot/acquire_jobs", site_name="ODD")
    told = "no queue ODD here: the queue file has GPU, HIDDEN, LOCAL, OFF, SHARED"
    assert (reply["success"], reply["message"]) == (False, told)
    assert pilot.legacy("getJob", siteName="ODD") == {"StatusCode": 20, "errorDialog": told}
    for more in ({"site": "ODD"}, {"site": None, "includedSite": ["ODD"]}):
        task_id = user.submit(make_params(f"user.me.odd{len(more)}/", 1, **more))
        details = user.get("task/get_detailed_info", task_id=task_id)["data"]
        assert (details["status"], details["errorDialog"]) == ("broken", told)
    given = make_params("user.me.elsewhere/", 1, site="LOCAL")
    task_id = user.submit(given)
    assert user.post("task/retry", task_id=task_id, new_parameters={"site": "ODD"})["data"] == 1
    user.post("task/kill", task_id=task_id)
    reply = user.post("task/submit", task_parameters=given | {"site": "ODD"})
    assert (reply["success"], reply["data"]) == (False, 1)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "queues.json"
    file.write_text('{"queues": {"A": {}}}')
    queues = Queues(file, tmp_path)
    assert queues.find("A") is not None
    assert queues.find("B") is None
    replaced = tmp_path / "new"
    replaced.write_text('{"queues": {"B": {"cores": 3}}}')
    replaced.replace(file)
    found = queues.find("B")
    assert found is not None
    assert found.cores == 3
    assert queues.find("A") is None
    file.write_text("nonsense")
    assert queues.find("B") is not None  # what was read last stays in force


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"queues": {}}', '{"queues": {"a b": {}}}', '{"queues": {"A": {"core": 1}}}']
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "queues.json"
    file.write_text(text)
    with pytest.raises(InputError, match="queue file"):
        Queues(file, tmp_path)


def test_one_known_queue_of_a_task_is_enough(tmp_path: Path) -> None:
    (tmp_path / "queues.json").write_text('{"queues": {"A": {}}}')
    queues = Queues(tmp_path / "queues.json", tmp_path)
    assert queues.unknown(("ODD", "A")) == ""
    assert "ODD" in queues.unknown(("ODD",))


def test_without_a_file_every_name_is_a_queue(tmp_path: Path) -> None:
    queues = Queues(None, tmp_path)
    assert queues.find("ANYTHING") is not None
    assert queues.unknown(("ANYTHING",)) == ""
    assert queues.described == {}


def test_site_specs(server: RunningServer) -> None:
    specs = server.api("me").get("metaconfig/get_site_specs")["data"]
    assert specs.keys() == {"LOCAL", "OFF", "HIDDEN", "GPU", "SHARED"}
    assert (specs["GPU"]["coreCount"], specs["GPU"]["maxtime"], specs["SHARED"]["pandasite"]) == (8, 5400, "HERE")
    assert server.api("me").get("metaconfig/get_site_specs", type="production")["data"] == {}
