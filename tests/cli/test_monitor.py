"""`hpo-pilot monitor`: pages over a work folder, and links that sign in once."""

from __future__ import annotations

import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from hpo_pilot.operations.client import SearchClient
from tests.command_here import command_here
from tests.rest_api import write_search


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return command_here("monitor", *arguments)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    root: Path = tmp_path_factory.mktemp("shown")
    with SearchClient.local(root / "work") as client:
        client.submit(write_search(root / "files", "shown"))
    command = [sys.executable, "-m", "hpo_pilot.cli", "monitor", "--workdir", str(root / "work")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        yield root / "work", lines, process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(600)
        process.stdout.close()


def test_the_pages_say_where_they_are_and_the_link_signs_in_once(shown):
    work, lines, _ = shown
    url = re.fullmatch(r"the monitor is at (http://127\.0\.0\.1:\d+)\n", lines[0])[1]
    link = re.fullmatch(r"open (\S+) \(good for ten minutes, and once\)\n", lines[1])[1]
    assert link.startswith(f"{url}/login?code=")
    assert lines[2].startswith("from another machine: ssh -N -L ")
    browser = requests.Session()
    assert browser.get(link, timeout=600).status_code == 200
    assert "shown" in browser.get(f"{url}/", headers={"Accept": "text/html"}, timeout=600).text
    assert requests.get(link, timeout=600).status_code == 403
    assert stat.S_IMODE((work / "tokens" / "monitor.json").stat().st_mode) == 0o600
    assert (work / "monitor.url").read_text().strip() == url


def test_another_link_is_a_command_away(shown):
    work, _, _ = shown
    done = run("--link", "--workdir", str(work))
    assert done.returncode == 0, done.stderr
    assert requests.get(done.stdout.strip(), timeout=600).status_code == 200


def test_a_service_is_named_by_its_url(shown):
    work, lines, _ = shown
    url = lines[0].split()[-1]
    assert f"the monitor is at {url}" in run("--service", url).stdout
    signed = run("--service", url, "--token-file", str(work / "tokens" / "user.token"))
    assert f"open {url}/login?code=" in signed.stdout
    pilots = run("--service", url, "--token-file", str(work / "tokens" / "pilot.token"))
    assert pilots.returncode == 2
    assert "a pilot's token" in pilots.stderr.lower()
    refused = run("--service", "http://example.org", "--token-file", str(work / "tokens" / "user.token"))
    assert refused.returncode == 2
    assert "https://" in refused.stderr


def test_without_a_store_or_pages_nothing_is_made(tmp_path):
    missing = run("--workdir", str(tmp_path / "nothing"))
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "there is no store" in missing.stderr
    assert not (tmp_path / "nothing").exists()
    none = run("--link", "--workdir", str(tmp_path / "nothing"))
    assert none.returncode == 2
    assert "no pages run" in none.stderr
