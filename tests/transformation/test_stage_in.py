"""Inputs by path, from a real web server, and through stand-ins for xrdcp and rucio."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.transformation import input_fetch, stage_in
from hpo_pilot.transformation.failure import ExitCode, TransformationFailure
from hpo_pilot.transformation.stage_in import StageIn


class Web:
    """Files by path, and ways to misbehave."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.trouble: dict[str, list[str]] = {}
        self.etag = '"1"'
        self.gate = threading.Event()
        self.gate.set()
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                web.answer(self)

            def log_message(self, *_: Any) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.asked.append(path)
        self.headers.append(dict(request.headers.items()))
        trouble = self.trouble.get(path) or [""]
        now = trouble.pop(0) if len(trouble) > 1 else trouble[0]
        if now.isdigit():
            request.send_error(int(now))
        elif now.startswith("to "):
            request.send_response(302)
            request.send_header("Location", now[3:])
            request.send_header("Content-Length", "0")
            request.end_headers()
        elif path not in self.files:
            request.send_error(404)
        elif request.headers.get("If-None-Match") == self.etag:
            request.send_response(304)
            request.end_headers()
        else:
            content = self.files[path]
            request.send_response(200)
            request.send_header("ETag", self.etag)
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            half = len(content) // 2
            request.wfile.write(content[:half])
            request.wfile.flush()
            self.gate.wait(20)
            if now == "break":
                request.close_connection = True
                return
            request.wfile.write(content[half:])


@pytest.fixture
def web() -> Iterator[Web]:
    served = Web()
    yield served
    served.gate.set()
    served.server.shutdown()
    served.server.server_close()


@pytest.fixture
def work(tmp_path: Path) -> Any:
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
def staging(tmp_path: Path) -> StageIn:
    return StageIn(str(tmp_path / "cache"), 10 << 20)


def listed(folder: Path) -> list[str]:
    return list(json.loads((folder / "hpo_pilot_inputs.json").read_text()))


def refused(staging: StageIn, folder: Path, message: str) -> None:
    with pytest.raises(TransformationFailure, match=message) as caught:
        staging.bring(str(folder))
    assert caught.value.code == ExitCode.NO_INPUT
    assert not (folder / "hpo_pilot_inputs.json").exists()


def test_a_job_without_inputs_or_document_is_left_alone(tmp_path, staging, work):
    (tmp_path / "bare").mkdir()
    assert staging.bring(str(tmp_path / "bare")) == [] and not list((tmp_path / "bare").iterdir())
    folder = work()
    assert staging.bring(str(folder)) == []
    assert [path.name for path in folder.iterdir()] == ["hpo_pilot_payload.json"]
    assert not (tmp_path / "cache").exists()


# --- paths ---


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


# --- the web ---


def test_a_file_of_the_web_comes_once_for_many_jobs(web, staging, work):
    web.files["/a.csv"] = b"x" * 3_000_000
    folders = [work(web.url + "/a.csv?token=1") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda folder: staging.bring(str(folder)), folders)) == [[]] * 8
    for folder in folders:
        assert listed(folder) == ["a.csv"] and (folder / "a.csv").read_bytes() == web.files["/a.csv"]
    assert web.asked == ["/a.csv"]
    assert len({(folder / "a.csv").stat().st_ino for folder in folders}) == 1
    assert (folders[0] / "a.csv").stat().st_mode & 0o222 == 0, "it is shared: nobody may write to it"


def test_without_a_cache_each_job_fetches_its_own(web, work):
    web.files["/a.csv"] = b"1,2"
    for folder in (work(web.url + "/a.csv"), work(web.url + "/a.csv")):
        StageIn("").bring(str(folder))
        assert (folder / "a.csv").read_bytes() == b"1,2"
    assert len(web.asked) == 2


def test_after_a_while_it_is_asked_whether_it_changed(web, staging, work, monkeypatch):
    web.files["/a.csv"] = b"old"
    staging.bring(str(work(web.url + "/a.csv")))
    monkeypatch.setattr(stage_in, "_FRESH", -1.0)
    same = work(web.url + "/a.csv")
    staging.bring(str(same))
    assert web.headers[-1]["If-None-Match"] == '"1"' and (same / "a.csv").read_bytes() == b"old"
    web.files["/a.csv"], web.etag = b"newer", '"2"'
    changed = work(web.url + "/a.csv")
    staging.bring(str(changed))
    assert (changed / "a.csv").read_bytes() == b"newer" and (same / "a.csv").read_bytes() == b"old"
    web.trouble["/a.csv"] = ["404"]
    away = work(web.url + "/a.csv")
    staging.bring(str(away))
    assert (away / "a.csv").read_bytes() == b"newer", "what is there is better than nothing"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    pause = time.sleep
    monkeypatch.setattr(input_fetch.time, "sleep", lambda seconds: pause(seconds / 20))
    clock = time.monotonic
    monkeypatch.setattr(input_fetch.time, "monotonic", lambda: clock() * 20)


@pytest.mark.parametrize("trouble", ["503", "break", "429"])
def test_what_may_go_by_is_tried_again(web, staging, work, trouble):
    web.files["/a.csv"] = b"y" * 200_000
    web.trouble["/a.csv"] = [trouble, ""]
    folder = work(web.url + "/a.csv")
    staging.bring(str(folder))
    assert (folder / "a.csv").read_bytes() == web.files["/a.csv"]
    assert len(web.asked) == 2


def test_what_will_not_go_by_is_not_tried_again(web, staging, work):
    refused(staging, work(web.url + "/gone.csv"), r"/gone.csv: the server answered 404")
    assert len(web.asked) == 1


def test_one_that_always_breaks_off_is_given_up(web, staging, work, tmp_path, patient):
    web.files["/a.csv"] = b"y" * 200_000
    web.trouble["/a.csv"] = ["break"]
    refused(staging, work(web.url + "/a.csv"), "it broke off after 100000 of 200000 bytes|IncompleteRead")
    assert len(web.asked) == 4
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_one_that_is_too_large_is_not_even_begun(web, staging, work):
    web.files["/a.csv"] = b"z" * (11 << 20)
    web.gate.clear()
    refused(staging, work(web.url + "/a.csv"), "it has 11 MB, and a worker keeps at most 10 MB")


def test_redirects_stay_on_the_web_and_carry_no_credentials(web, staging, work, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password geheim\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    other = Web()
    other.files["/b.csv"] = b"b"
    web.trouble["/a.csv"] = [f"to {other.url}/b.csv"]
    folder = work(web.url + "/a.csv")
    staging.bring(str(folder))
    assert (folder / "a.csv").read_bytes() == b"b"
    assert not {"authorization", "cookie"} & {
        name.lower() for headers in web.headers + other.headers for name in headers
    }
    for target in ("file:///etc/passwd", "ftp://127.0.0.1/x"):
        web.trouble["/c.csv"] = [f"to {target}"]
        refused(staging, work(web.url + "/c.csv"), "is not allowed|another protocol is not followed")
    other.server.shutdown()
    other.server.server_close()


def test_an_unknown_certificate_is_refused(staging, work, tmp_path, patient):
    from hpo_pilot.server.access.tls import self_made

    made = self_made(tmp_path / "tls", ["localhost"])
    import ssl

    secure = Web()
    secure.files["/a.csv"] = b"1"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.chain, made.key)
    secure.server.socket = context.wrap_socket(secure.server.socket, server_side=True)
    refused(staging, work(f"https://localhost:{secure.server.server_port}/a.csv"), "CERTIFICATE_VERIFY_FAILED")
    assert secure.asked == []
    secure.server.shutdown()
    secure.server.server_close()


FETCHER = """
import sys
from hpo_pilot.transformation.stage_in import StageIn
StageIn(sys.argv[1]).bring(sys.argv[2])
"""


def test_killed_in_the_middle_it_leaves_nothing_that_is_taken_for_whole(web, staging, work, tmp_path, until):
    web.files["/a.csv"] = b"w" * 2_000_000
    web.gate.clear()
    first = subprocess.Popen([sys.executable, "-c", FETCHER, tmp_path / "cache", work(web.url + "/a.csv")])
    until(lambda: web.asked)
    second = work(web.url + "/a.csv")
    waiting = threading.Thread(target=staging.bring, args=[str(second)])
    waiting.start()
    time.sleep(0.5)
    assert web.asked == ["/a.csv"], "the second waits for the first"
    first.send_signal(signal.SIGKILL)
    first.wait()
    until(lambda: len(web.asked) == 2)
    web.gate.set()
    waiting.join(20)
    assert (second / "a.csv").read_bytes() == web.files["/a.csv"]
    (entry,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert [path.name for path in entry.rglob("*.csv")] == ["a.csv"]


def test_a_pilot_that_ends_waits_for_no_download(web, work, tmp_path):
    web.files["/a.csv"] = b"w" * 4_000_000
    web.gate.clear()
    told = threading.Event()
    threading.Timer(0.5, lambda: (told.set(), web.gate.set())).start()
    refused(StageIn(str(tmp_path / "cache"), stop=told.is_set), work(web.url + "/a.csv"), "told to stop")


def test_the_cache_keeps_the_newest(web, work, tmp_path):
    staging = StageIn(str(tmp_path / "cache"), 2_500_000)
    for name in "abc":
        web.files[f"/{name}.csv"] = name.encode() * 1_000_000
        folder = work(f"{web.url}/{name}.csv")
        staging.bring(str(folder))
        time.sleep(0.02)
    for name in "cba":
        staging.bring(str(work(f"{web.url}/{name}.csv")))
    assert web.asked == ["/a.csv", "/b.csv", "/c.csv", "/a.csv"]


# --- tools ---


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of PATH; there is nothing but what a test puts there and the shell's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "env", "cat", "sleep", "mkdir", "echo"):
        found = next(path for place in ("/bin", "/usr/bin") if (path := Path(place, name)).exists())
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


def test_xrdcp_brings_root_urls(tools, staging, work, tmp_path):
    tool(tools, "xrdcp", f'echo "$@" >> {tmp_path}/called\necho content > "$4"\n')
    url = "root://eos.example.org//eos/user/x.root"
    for folder in (work(url), work(url)):
        staging.bring(str(folder))
        assert listed(folder) == ["x.root"] and (folder / "x.root").read_text() == "content\n"
    (line,) = (tmp_path / "called").read_text().splitlines()
    assert line.startswith(f"--nopbar --force {url} {tmp_path}/cache/") and line.endswith("/x.root")


def test_rucio_brings_all_files_of_a_dataset(tools, staging, work, tmp_path):
    tool(
        tools,
        "rucio",
        f'echo "$@" >> {tmp_path}/called\nmkdir -p "$4/sub"; echo 2 > "$4/sub/b.root"; echo 1 > "$4/a.root"\n',
    )
    (tmp_path / "extra.txt").write_text("x")
    folder = work("user.me:user.me.data.v1", str(tmp_path / "extra.txt"))
    staging.bring(str(folder))
    assert listed(folder) == ["a.root", "b.root", "extra.txt"] and (folder / "b.root").read_text() == "2\n"
    (line,) = (tmp_path / "called").read_text().splitlines()
    assert line.startswith("download --no-subdir --dir ") and line.endswith(" user.me:user.me.data.v1")


def test_datasets_that_the_pilot_brought_are_not_brought_again(tools, staging, work, tmp_path):
    (tmp_path / "extra.txt").write_text("x")
    folder = work("user.me:user.me.data.v1", str(tmp_path / "extra.txt"))
    staging.bring(str(folder), ["a.root", "b.root"])
    assert listed(folder) == ["a.root", "b.root", "extra.txt"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root://h//x.root", "this worker has no xrdcp: install xrootd-client there, or"),
        ("user.me:data", "this worker has no rucio: install rucio-clients there"),
    ],
)
def test_a_missing_tool_is_named_with_its_remedy(tools, staging, work, text, message):
    refused(staging, work(text), message)


def test_a_tool_that_fails_says_why(tools, staging, work, tmp_path):
    tool(tools, "xrdcp", 'echo "[ERROR] no such file" >&2\nexit 54\n')
    refused(staging, work("root://h//x.root"), r"xrdcp ended with 54: \[ERROR\] no such file")
    tool(tools, "rucio", "exit 0\n")
    refused(staging, work("user.me:data"), "it has no files")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_tool_that_hangs_is_ended(tools, work, tmp_path, monkeypatch):
    monkeypatch.setattr(stage_in, "PATIENCE", 0.5)
    tool(tools, "xrdcp", f"echo $$ > {tmp_path}/pid\nexec sleep 60\n")
    begun = time.monotonic()
    refused(StageIn(str(tmp_path / "cache")), work("root://h//x.root"), "it did not come in time")
    assert time.monotonic() - begun < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_one_that_cannot_be_fetched_says_so(staging, work):
    refused(staging, work("s3://bucket/x"), "the input s3://bucket/x: s3:// cannot be fetched")
