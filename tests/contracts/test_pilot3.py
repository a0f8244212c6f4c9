"""What the server tells a Pilot 3, held to what its releases read; `tests/real/test_pilot3.py` runs real ones.

PyPI's newest is 3.7.0.36, so this table stands for later ones where their source is not at hand. Each fact names the
file where it was read, in the sources of Pilot 3 (PanDAWMS/pilot3, tags 3.7.0.36 to 3.11.5.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import pytest
import requests

from tests.server.conftest import RunningServer, bearer
from tests.task_parameters import make_params


@dataclass(frozen=True)
class Release:
    """What a release of Pilot 3 reads; its plugin is `generic`.

    Attributes:
        places: of a transformation, `get_valid_base_urls` in `pilot/user/generic/setup.py`; else error 1149.
        output: activities of outputs, `_stage_out_new` in `pilot/control/data.py`; of a log, pl and then these.
        unified: the same at a queue whose type is unified.
        inputs: activities of inputs, `_stage_in` and `get_stagein_client` in `pilot/control/data.py`.
        fails_images: fails a job that names an image with error 1384 where the queue's container_type names nothing for
            pilots, `validate` in `pilot/control/job.py`.
        runs_steps: runs preprocess and postprocess around the payload, `get_utility_commands` in
            `pilot/user/generic/common.py`.
    """

    version: str
    places: tuple[str, ...]
    output: tuple[str, ...]
    unified: tuple[str, ...]
    inputs: tuple[str, ...]
    fails_images: bool
    runs_steps: bool


_GOOGLE = "https://storage.googleapis.com/drp-us-central1-containers"
_OLD_DOMA = "http://pandaserver-doma.cern.ch:25080/trf/user"
_DOMA = "https://pandaserver-doma.cern.ch/trf/user"
_OLD = ("pw", "w")
_NEW = ("write_lan", "w")
_UNIFIED = ("write_lan_analysis", *_NEW)

RELEASES = [
    Release("3.7.0.36", (_GOOGLE, _OLD_DOMA), _OLD, _OLD, ("pr",), fails_images=False, runs_steps=False),
    Release("3.7.9.1", (_GOOGLE, _DOMA), _OLD, _OLD, ("pr",), fails_images=False, runs_steps=False),
    Release("3.9.4.15", (_GOOGLE, _DOMA), _NEW, _UNIFIED, ("pr",), fails_images=False, runs_steps=False),
    Release("3.10.5.57", (_GOOGLE, _DOMA), _NEW, _UNIFIED, ("read_lan",), fails_images=True, runs_steps=True),
    Release("3.11.5.1", (_GOOGLE, _DOMA), _NEW, _UNIFIED, ("read_lan",), fails_images=True, runs_steps=True),
]


@pytest.fixture(params=RELEASES, ids=lambda release: release.version)
def release(request: pytest.FixtureRequest) -> Release:
    found: Release = request.param
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("pilot3")
    queues = {"PLAIN": {}, "UNIFIED": {"pilot": {"type": "unified"}}, "OWN": {"storage": str(folder / "own")}}
    (folder / "queues.json").write_text(json.dumps({"queues": queues}))
    running = RunningServer(folder, options=["--queues", str(folder / "queues.json")])
    yield running
    assert running.stop() == 0


def cached(server: RunningServer, path: str) -> dict[str, Any]:
    answer = requests.get(f"{server.url}/cache/{path}", timeout=600)
    assert answer.ok
    found: dict[str, Any] = answer.json()
    return found


def get_job(server: RunningServer, release: Release, queue: str) -> dict[str, str]:
    """Asks for a job as `get_dispatcher_dictionary` in `pilot/control/job.py` and `pilot/util/https.py` do."""
    headers = {"Authorization": f"Bearer {bearer('token-of-pilot')}", "Origin": "hpo_pilot"}
    headers["User-Agent"] = f"pilot/{release.version} (Python 3.11.2; Linux x86_64)"
    given = {"siteName": queue, "computingElement": queue, "prodSourceLabel": "user", "diskSpace": 75662, "node": "wn"}
    given |= {"workingGroup": "", "cpu": 2599.998, "mem": 24105.55, "allowOtherCountry": "False"}
    answer = requests.post(f"{server.url}/server/panda/getJob", data=given, headers=headers, timeout=600)
    job = dict(parse_qsl(answer.text, keep_blank_values=True))
    assert job["StatusCode"] == "0", answer.text
    return job


@pytest.mark.parametrize("queue", ["PLAIN", "UNIFIED", "OWN"])
def test_copy_tools_and_storages_of_all_transfers(server: RunningServer, release: Release, queue: str) -> None:
    """`StagingClient.transfer` and `prepare_destinations` in `pilot/api/data.py` take the first activity that is there.

    Without a copy tool for one of a transfer's activities "default" counts, which is rucio unless the queue says it.
    """
    told = cached(server, f"schedconfig/{queue}.all.json")
    output = release.unified if told["type"] == "unified" else release.output
    for activities in (output, ("pl", *output), release.inputs):
        tools = [told["acopytools"].get(activity) for activity in activities]
        assert next(filter(None, tools), None) == ["mv"], activities
    assert told["acopytools"]["default"] == ["mv"]
    stores = cached(server, "ddmendpoints.json")
    for activities in (output, ("pl", *output)):
        named = [told["astorages"].get(activity) for activity in activities]
        (endpoint,) = next(filter(None, named), ())
        # `resolve_protocols` there: of an output's storage write_lan, else write_wan; of an input's read_lan, read_wan.
        protocols = stores[endpoint]["arprotocols"]
        assert all(protocols[activity] for activity in ("write_lan", "write_wan", "read_lan", "read_wan"))
    # `pilot/copytool/mv.py`: outputs go where the storage says only with this word in `catchall`.
    assert "mv_final_destination" in told["catchall"]


def test_a_job_as_it_is_read(server: RunningServer, release: Release) -> None:
    """`JobData` in `pilot/info/jobdata.py`, whose keys are the same in all of these releases."""
    queue, user = "PLAIN", server.api("me")
    task_id = user.submit(make_params(f"user.me.{release.version}/", 1, site=queue))
    job = get_job(server, release, queue)
    place, _, name = job["transformation"].rpartition("/")
    assert place in release.places, "error 1149"
    assert (name, job["transformation"][:4]) == ("runGen-00-00-02", "http")  # `is_analysis`: its name is a URL
    assert (job["taskID"], job["attemptNr"], job["prodSourceLabel"]) == (str(task_id), "1", "user")
    assert re.fullmatch(r"\d+", job["PandaID"]) and job["jobPars"] and job["logGUID"]
    # `prepare_outfiles`: lists of the same length, the log among the outputs.
    outputs = job["outFiles"].split(",")
    assert job["logFile"] in outputs
    for key in ("destinationDblock", "realDatasets", "ddmEndPointOut", "fileDestinationSE"):
        assert len(job[key].split(",")) == len(outputs), key
    assert len(job["scopeOut"].split(",")) == len(outputs) - 1 or len(outputs) == 1
    assert job["scopeLog"]


@pytest.mark.parametrize("queue", ["PLAIN", "UNIFIED"])
def test_a_job_with_an_image(server: RunningServer, release: Release, queue: str) -> None:
    """Our transformation starts its container, which it finds in the sandbox."""
    steps = {"preprocess": {"command": "${TRF}", "args": "--preprocess ${TRF_ARGS}"}}
    steps |= {"postprocess": {"command": "${TRF}", "args": "--postprocess ${TRF_ARGS}"}}
    params = make_params(f"user.me.image-{queue}-{release.version}/", 1, site=queue, processingType="hpo-pilot")
    image = "docker://example.org/x:1"
    server.api("me").submit(params | {"container_name": image, "multiStepExec": steps})
    job = get_job(server, release, queue)
    told = cached(server, f"schedconfig/{queue}.all.json")
    if release.fails_images:
        assert "container_name" not in job or "pilot" in told["container_type"], "error 1384"
    if release.runs_steps:
        assert "preprocess" not in job and "postprocess" not in job
    # `alrb_wrapper` in `pilot/user/generic/container.py`: with a container program for pilots it wants CVMFS.
    assert ":pilot" not in told["container_type"]
