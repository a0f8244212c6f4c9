"""The API beside the service: its address, its end, and its being started again."""

from __future__ import annotations

import time

import psutil
import pytest
import requests

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.steering.server_processes import ApiProcess, NetworkOptions, serve_pages
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SteeringStore


def test_it_is_started_again_and_ends_with_the_service(tmp_path):
    workdir = WorkDir.make(tmp_path)
    api = ApiProcess(workdir, store="sqlite:///" + str(tmp_path / "secret.db"), reach=NetworkOptions(), port=None)
    before = set(psutil.Process().children())  # other tests' servers may live as long as the session
    api.start()
    api.wait()
    try:
        assert workdir.api_address.read_text().strip() == api.url
        (child,) = [c for c in psutil.Process().children() if c not in before and "hpo_pilot.web" in c.cmdline()]
        browser = requests.Session()
        browser.get(api.link(), timeout=600)
        assert "secret.db" not in " ".join(child.cmdline())  # it may have a password
        assert (tmp_path / "secret.db").exists()
        child.kill()
        child.wait(600)
        end = time.monotonic() + 600
        while child.is_running() and time.monotonic() < end:
            time.sleep(0.1)
        api.check()
        api.wait()
        assert browser.get(api.url, timeout=600, allow_redirects=False).status_code == 200  # signed in as before
    finally:
        api.stop()
    assert not workdir.api_address.exists()
    # Meanwhile the port may have been another user's, who was given the cookie.
    port = int(api.url.rsplit(":", 1)[1])
    (stolen,) = (cookie.value for cookie in browser.cookies)
    following = ApiProcess(workdir, store="sqlite:///" + str(tmp_path / "secret.db"), reach=NetworkOptions(), port=port)
    following.start()
    try:
        following.wait()
        own = requests.Session()
        own.get(following.link(), timeout=600)
        (name,) = own.cookies.keys()
        answers = [
            requests.get(api.url, cookies={name: value}, headers={"accept": "text/html"}, timeout=600).url
            for value in (own.cookies[name], stolen)
        ]
        assert answers == [f"{api.url}/", f"{api.url}/login"]
    finally:
        following.stop()


def test_the_address_of_another_of_the_same_work_folder_stays(tmp_path):
    workdir = WorkDir.make(tmp_path)
    first, second = (ApiProcess(workdir, store=None, reach=NetworkOptions(), port=port) for port in (8443, 8444))
    workdir.api_address.write_text(f"{second.url}\n")  # as it notes when it answers
    first.stop()
    assert workdir.api_address.read_text().strip() == second.url
    second.stop()
    assert not workdir.api_address.exists()


def test_a_taken_port_is_said(tmp_path):
    first = ApiProcess(WorkDir.make(tmp_path / "one"), store=None, reach=NetworkOptions(), port=None)
    first.start()
    first.wait()
    try:
        port = int(first.url.rsplit(":", 1)[1])
        second = ApiProcess(WorkDir.make(tmp_path / "two"), store=None, reach=NetworkOptions(), port=port)
        second.start()
        with pytest.raises(TryAgainError, match="cannot listen on"):
            second.wait()
        second.stop()
    finally:
        first.stop()


@pytest.mark.parametrize("anew", [False, True])
def test_pages_alone_end_when_their_store_is_removed_or_made_anew(tmp_path, anew):
    workdir = WorkDir.make(tmp_path)
    SteeringStore.open(workdir.store_url()).close()
    file = tmp_path / "hpo-pilot.db"
    assert file.exists()
    asked = []

    def remove(pages):
        asked.append(requests.get(f"{pages.url}/api/v1/health", timeout=600).status_code)
        kept = file.rename(tmp_path / "kept.db")
        if anew:
            file.write_bytes(kept.read_bytes())

    with pytest.raises(InputError, match="was removed or replaced"):
        serve_pages(tmp_path, store=None, reach=NetworkOptions(), on_ready=remove)
    assert asked == [200], "told once, when they answer"
    assert not workdir.pages_address.exists()
