"""The real panda-client against a real server over TLS: each of its functions, and sandboxes."""

from __future__ import annotations

import ast
import gzip
import importlib.util
import io
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import PandaClient, RunningServer, connected, serving
from tests.task_parameters import make_params

#: Functions of pandaclient.Client that ask no server.
_LOCAL = """
build_grid_setup_command bytes_decode decode_special_cases dump_log getDN get_new_token get_token_string
get_user_name_from_token hide_sensitive_info http_request_decorator is_https setCacheServer useDevServer useIntrServer
use_oidc use_x509_no_grid
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(tmp_path_factory.mktemp("server"), tls=True) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PandaClient]:
    with connected(server, tmp_path_factory.mktemp("client")) as started:
        yield started


class Scene:
    """A running task of three jobs, one finished, one failed, one at a pilot; and a second, finished one below it."""

    def __init__(self, server: Any, folder: Path) -> None:
        self.user, self.pilot, self.folder = server.api("me"), server.api("pilot"), folder
        self.task = self.user.submit(make_params("user.me.scene/", 3, site="SCENE", maxAttempt=1))
        one, two, self.running = (job["PandaID"] for job in self.pilot.acquire(3, site_name="SCENE"))
        self.pilot.update(one, "finished", meta_data='{"user_job_metadata": {"loss": 0.0}}')
        self.pilot.update(two, "failed", pilot_error_code=1305)
        self.pilot.update(self.running, "running")
        self.jobs = [one, two, self.running]
        reply = self.user.post(
            "task/submit", task_parameters=make_params("user.me.child/", 1, site="CHILD"), parent_tid=self.task
        )
        self.child = int(reply["data"])
        self.pilot.update(self.pilot.acquire(site_name="CHILD")[0]["PandaID"], "finished")
        self.since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - 60))
        for name in ("sources.scene.tar.gz", "sources.other.tar.gz"):
            (folder / name).write_bytes(b"a sandbox")
        self.user.upload("sources.scene.tar.gz", b"a sandbox")

    def failing(self, name: str) -> int:
        """A task of one job that failed."""
        task_id: int = self.user.submit(make_params(f"user.me.{name}/", 1, site=name, maxAttempt=1))
        self.pilot.update(self.pilot.acquire(site_name=name)[0]["PandaID"], "failed")
        return task_id


@pytest.fixture(scope="module")
def scene(server: Any, client: PandaClient) -> Scene:
    return Scene(server, client.folder)


def is_list_of(key: str) -> Callable[[Any, Scene], bool]:
    return lambda answer, scene: answer[0] == 0 and bool(answer[1]) and all(key in item for item in answer[1])


#: Arguments and answer of each call; callables get the scene, expected ones the answer as well.
CALLS: dict[str, tuple[Callable[[Scene], list[Any]], Any]] = {
    "hello": (lambda s: [], [0, ""]),
    "getTaskStatus": (lambda s: [s.task], [0, "running"]),
    "getTaskParamsMap": (lambda s: [s.task], lambda a, s: a[1]["taskName"] == "user.me.scene/"),
    "getPandaIDsWithTaskID": (lambda s: [s.task], lambda a, s: a == [0, s.jobs]),
    "getUserJobMetadata": (
        lambda s: [s.task],
        lambda a, s: a == [0, {str(s.jobs[0]): {"user_job_metadata": {"loss": 0.0}}}],
    ),
    "get_job_descriptions": (lambda s: [s.task, True], lambda a, s: [job["PandaID"] for job in a[1]] == [s.jobs[1]]),
    "get_task_details_json": (
        lambda s: [s.task],
        lambda a, s: (
            [a[1][1][key] for key in ("nFiles", "nFilesFinished", "nFilesFailed", "pctFinished")] == [3, 1, 1, 33]
        ),
    ),
    "get_tasks_detailed_info_since": (lambda s: [s.since], is_list_of("raw_task_params")),
    "getJobIDsJediTasksInTimeRange": (lambda s: [s.since], lambda a, s: a[1][str(s.task)]["statistics"]),
    "getJediTaskDetails": (
        lambda s: [{"jediTaskID": s.task}, True, True],
        lambda a, s: (
            (a[1]["statistics"], a[1]["outDS"], a[1]["cliParams"], a[1]["PandaID"])
            == ("finished*1,failed*1,running*1", "user.me.scene_outputs/,user.me.scene.log/", "hpo-pilot run", s.jobs)
        ),
    ),
    "getJobStatus": (lambda s: [s.jobs], lambda a, s: [job["jobStatus"] for job in a[1]][2] == "running"),
    "getFullJobStatus": (lambda s: [s.jobs], lambda a, s: [job["PandaID"] for job in a[1]] == s.jobs),
    "get_files_in_datasets": (
        lambda s: [s.task, "output,log"],
        lambda a, s: [file["status"] for file in a[1][0]["files"]] == ["finished", "failed", "running"],
    ),
    "setDebugMode": (lambda s: [s.running, True, False], [0, None]),
    "killJobs": (lambda s: [[s.running, 987654]], [0, [True, False]]),
    "pauseTask": (lambda s: [s.task], [0, [True, 0]]),
    "resumeTask": (lambda s: [s.task], [0, [True, 0]]),
    "retryTask": (lambda s: [s.failing("RETRY")], lambda a, s: a[1][0] == 0),
    "reload_input": (lambda s: [s.failing("RELOAD")], [0, [True, 0]]),
    "finishTask": (lambda s: [s.task, True], [0, [True, 0]]),
    "killTask": (lambda s: [s.user.submit(make_params("user.me.kill/", site="KILL"))], [0, [True, 0]]),
    "insertTaskParams": (
        lambda s: [make_params("user.me.insert/", site="INSERT")],
        lambda a, s: a[1][0] == 0 and a[1][1].startswith("succeeded. new jediTaskID="),
    ),
    "putFile": (lambda s: ["sources.other.tar.gz"], [0, "True"]),
    "getFile": (lambda s: ["sources.scene.tar.gz", str(s.folder / "copy")], [0, True]),
}


#: Functions whose calls this server does not provide, with arguments.
NOT_PROVIDED: dict[str, list[Any]] = {
    **{key: [] for key in ("get_cert_attributes", "get_user_secrets")},
    **{key: [1] for key in ("get_parent_detailed_info", "reactivateTask", "send_file_recovery_request")},
    **{key: [{}] for key in ("send_workflow_request", "submit_workflow", "submit_workflow_tmp")},
    "call_idds_command": ["get_requests"],
    "call_idds_user_workflow_command": ["abort", {"request_id": 7}],
    "get_events_status": [[{"task_id": 1, "panda_id": 1}]],
    "get_workflow_details": [7],
    "increase_attempt_nr": [1, 2],
    "set_user_secret": ["name", "value"],
    "submitJobs": [[]],
    "update_events": [[{"eventRangeID": "1", "eventStatus": "finished"}]],
}


def test_filters_of_lists(client: Any, scene: Scene) -> None:
    assert client.getJobIDsJediTasksInTimeRange(scene.since, dn="you") == [0, {}]
    later = client.getJobIDsJediTasksInTimeRange(scene.since, minTaskID=scene.task)[1]
    assert str(scene.child) in later and str(scene.task) not in later
    found = client.get_tasks_detailed_info_since(scene.since, {"jediTaskID": str(scene.task), "status": "running|done"})
    assert [task["jediTaskID"] for task in found[1]] == [scene.task]
    assert client.get_tasks_detailed_info_since(None, {"status": "broken", "taskName": "user.me.scene/"}) == [0, []]


@pytest.mark.parametrize("name", CALLS)
def test_a_call(client: Any, scene: Scene, name: str) -> None:
    arguments, expected = CALLS[name]
    answer = getattr(client, name)(*arguments(scene))
    if callable(expected):
        assert expected(answer, scene), answer
    else:
        assert answer == expected


@pytest.mark.parametrize("name", NOT_PROVIDED)
def test_a_call_that_is_not_provided(client: Any, name: str) -> None:
    status, answer = getattr(client, name)(*NOT_PROVIDED[name])
    assert status == 255
    assert answer is None or "is not provided by this server" in answer


def test_all_functions_are_tested() -> None:
    spec = importlib.util.find_spec("pandaclient.Client")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}
    # The *_internal functions are how others send what they were given.
    names = {name for name in names if not name.endswith("_internal")}
    assert names == set(_LOCAL.split()) | CALLS.keys() | NOT_PROVIDED.keys() | {"requestEventPicking"}


def test_event_picking_is_refused(server: RunningServer, tmp_path: Path) -> None:
    """panda-client then ends its process, with any server."""
    (tmp_path / "events").write_text("1 2\n")
    arguments = [str(tmp_path / "events"), "AOD", "", "data", "", [], "", "user.me.x/", "me", "", 1, False, None]
    refusal = pytest.raises(AssertionError, match="putEventPickingRequest is not provided by this server")
    with connected(server, tmp_path) as client, refusal:
        client.requestEventPicking(*arguments)


def archive(path: Path, content: bytes) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    path.write_bytes(gzip.compress(buffer.getvalue()))
    return path


def test_sandboxes(client: Any, pilot: Any, tmp_path: Path) -> None:
    """A task waits for its sandbox; a second upload is refused, or found by its checksum where that is asked for."""
    given = make_params("user.me.sandbox/", 1, site="SANDBOX")
    given["jobParameters"].append({"type": "constant", "value": "-a sources.0123.tar.gz"})
    task_id = int(client.insertTaskParams(given)[1][1].split("=")[1])
    assert client.getTaskStatus(task_id)[1] == "pending"
    path = archive(client.folder / "sources.0123.tar.gz", b"print(1)")
    assert client.putFile(path.name) == [0, "True"]
    assert client.getTaskStatus(task_id)[1] == "running"
    assert client.get_task_details_json(task_id)[1][1]["errorDialog"] is None
    assert client.putFile(path.name) == [0, "ERROR: cannot overwrite file"]
    renamed = client.folder / "sources.4567.tar.gz"
    renamed.write_bytes(path.read_bytes())
    assert client.putFile(renamed.name, reuseSandbox=True) == [0, "NewFileName:sources.0123.tar.gz"]
    assert client.putFile(renamed.name, useCacheSrv=True) == [0, "True"]
    other = archive(client.folder / "sources.89.tar.gz", b"print(2)")
    assert client.putFile(other.name, reuseSandbox=True) == [0, "True"]
    copy = tmp_path / "copy"
    assert client.getFile("sources.0123.tar.gz", output_path=str(copy)) == [0, True]
    assert copy.read_bytes() == path.read_bytes()
    got = pilot.session.get(f"{pilot.url}/cache/sources.0123.tar.gz", timeout=600)
    assert got.content == path.read_bytes()
    odd = client.folder / ".hidden"
    odd.write_bytes(b"x")
    assert client.putFile(odd.name)[1].startswith("ERROR: cannot write file")


def test_a_task_does_not_find_a_sandbox_that_was_sent_by_its_path(client: Any, tmp_path: Path) -> None:
    """panda-server 1.0.4 registers the whole path, JEDI looks for the plain name."""
    given = make_params("user.me.path/", 1, site="PATH")
    given["jobParameters"].append({"type": "constant", "value": "-a sources.aaaa.tar.gz"})
    path = archive(tmp_path / "sources.aaaa.tar.gz", b"print(3)")
    assert client.putFile(str(path)) == [0, "True"]
    task_id = int(client.insertTaskParams(given)[1][1].split("=")[1])
    details = client.get_task_details_json(task_id)[1][1]
    assert details["status"] == "pending"
    assert details["errorDialog"].startswith("user sandbox file unavailable")
    assert client.putFile(str(path)) == [0, "ERROR: cannot overwrite file"]
    again = tmp_path / "sources.bbbb.tar.gz"
    again.write_bytes(path.read_bytes())
    assert client.putFile(str(again), reuseSandbox=True) == [0, f"NewFileName:{path}"]
    assert client.getTaskStatus(task_id)[1] == "pending"
