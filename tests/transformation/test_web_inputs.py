"""Inputs from a real web server, and the cache that jobs share them by."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpo_pilot.transformation import stage_in
from hpo_pilot.transformation import stage_in as input_fetch
from hpo_pilot.transformation.stage_in import InputCache, StageIn
from tests.certificates import self_signed
from tests.pilot.conftest import in_background

from .conftest import listed, refused
from .web import Web


def test_an_entry_that_another_job_removes_meanwhile_fails_nothing(tmp_path, monkeypatch):
    for name in ("gone", "old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1e9, 1e9 + (name == "new")))
    is_folder = os.path.isdir

    def looks(path: str) -> bool:
        found = is_folder(path)
        if path.endswith("gone"):
            shutil.rmtree(path, ignore_errors=True)
        return found

    monkeypatch.setattr(os.path, "isdir", looks)
    InputCache(str(tmp_path), 150).make_room()
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".lock"} == {"new"}


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
def patient(monkeypatch):
    pause = time.sleep
    monkeypatch.setattr(input_fetch.time, "sleep", lambda seconds: pause(seconds / 20))
    clock = time.monotonic
    monkeypatch.setattr(input_fetch.time, "monotonic", lambda: clock() * 20)


@pytest.mark.parametrize("trouble", ["503", "break", "429"])
def test_temporary_errors_are_retried(web, staging, work, trouble):
    web.files["/a.csv"] = b"y" * 200_000
    web.trouble["/a.csv"] = [trouble, ""]
    folder = work(web.url + "/a.csv")
    staging.bring(str(folder))
    assert (folder / "a.csv").read_bytes() == web.files["/a.csv"]
    assert len(web.asked) == 2


def test_permanent_errors_are_not_retried(web, staging, work):
    refused(staging, work(web.url + "/gone.csv"), r"/gone.csv: the server answered 404")
    assert len(web.asked) == 1


def test_a_download_that_always_breaks_off_is_given_up(web, staging, work, tmp_path, patient):
    web.files["/a.csv"] = b"y" * 200_000
    web.trouble["/a.csv"] = ["break"]
    refused(staging, work(web.url + "/a.csv"), "it broke off after 100000 of 200000 bytes|IncompleteRead")
    assert len(web.asked) == 4
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_file_that_is_too_large_is_not_downloaded(web, staging, work):
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
    made = self_signed(tmp_path / "tls", ["localhost"])
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
    waiting = in_background(staging.bring, str(second))
    time.sleep(0.5)
    assert web.asked == ["/a.csv"], "the second waits for the first"
    first.send_signal(signal.SIGKILL)
    first.wait()
    until(lambda: len(web.asked) == 2)
    web.gate.set()
    waiting.result(600)
    assert (second / "a.csv").read_bytes() == web.files["/a.csv"]
    (entry,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert [path.name for path in entry.rglob("*.csv")] == ["a.csv"]


@pytest.mark.parametrize("name", ["a.csv", "meta.json"])
def test_a_damaged_file_is_fetched_again(web, staging, work, tmp_path, name):
    web.files["/a.csv"] = b"x" * 1000
    staging.bring(str(work(web.url + "/a.csv")))
    (cached,) = (tmp_path / "cache").rglob(name)
    os.truncate(cached, cached.stat().st_size // 2)
    folder = work(web.url + "/a.csv")
    staging.bring(str(folder))
    assert (folder / "a.csv").read_bytes() == web.files["/a.csv"] and len(web.asked) == 2


def test_a_pilot_that_ends_waits_for_no_download(web, work, tmp_path, until):
    web.files["/a.csv"] = b"w" * 4_000_000
    web.gate.clear()
    told = threading.Event()
    in_background(lambda: (until(lambda: web.asked), told.set(), web.gate.set()))
    refused(StageIn(str(tmp_path / "cache"), stop=told.is_set), work(web.url + "/a.csv"), "stopped during the download")


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
