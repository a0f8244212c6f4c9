"""What a machine can put in the way: each ends with one clear line, status 2 or 3, and nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stdout
    return lines[0]


def test_a_port_that_is_taken(scan):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = one_line(scan("serve", "--port", str(port), status=3))
    assert str(port) in line
    assert "in use" in line or "taken" in line


def test_options_of_the_server_that_are_wrong_stay_wrong(scan, tmp_path):
    line = one_line(scan("serve", "--issuers", str(tmp_path / "nosuch.json"), status=2))
    assert "nosuch.json" in line


@pytest.mark.parametrize("command", ["list", "run search.yaml", "serve", "submit search.yaml"])
def test_a_work_folder_that_is_a_file(scan, command):
    scan.write({})
    scan.workdir.write_text("this is a file")
    line = one_line(scan.here(*command.split(), status=2))
    assert (f"{scan.workdir} is a file" if command == "list" else "cannot make the work folder") in line
    assert "--workdir" in line
    assert scan.workdir.read_text() == "this is a file"


def test_a_search_file_that_is_not_there(scan):
    assert "nosuch.yaml" in one_line(scan("run", "nosuch.yaml", status=2))


def test_a_damaged_payload_at_the_server_is_sent_again(scan):
    """As after a power cut between two runs: no trial fails for it."""
    scan.write({"budget": {"trials": 2, "parallel": 1}})
    scan("run", "search.yaml")
    (packed,) = (scan.workdir / "panda-files" / "cache").glob("sources.*")
    os.truncate(packed, packed.stat().st_size // 2)
    shutil.rmtree(scan.workdir / "pilots")
    scan("extend", "demo", "--trials", "+2")
    scan("run", "search.yaml")
    assert [trial["state"] for trial in scan.trials()] == ["finished"] * 4


FULL_DISK = """
set -e
mount -t tmpfs -o size=300m tmpfs "$2"
cp -r "$1"/search.yaml "$1"/payload "$2"
cd "$2"
"$0" -m hpo_pilot.cli run search.yaml --slots 2 > out 2> err & run=$!
for i in $(seq 100); do "$0" -m hpo_pilot.cli best demo > /dev/null 2>&1 && break; sleep 0.2; done
fallocate -l 150M filler
status=0; wait $run || status=$?
echo "status $status"; tail -n 1 err
rm filler
"$0" -m hpo_pilot.cli trials demo --json > "$1/trials.json"
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root to mount a small disk of its own"
)
def test_a_full_disk(scan, tmp_path):
    scan.write({"budget": {"trials": 2000, "parallel": 2}})
    disk = tmp_path / "disk"
    disk.mkdir()
    script = tmp_path / "full.sh"
    script.write_text(FULL_DISK)
    # bash's $0 is the interpreter, $1 the folder with the search, $2 where the disk is mounted, in a namespace that
    # takes the mount with it.
    result = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script.read_text(), sys.executable, str(scan.root), str(disk)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "status 3" in result.stdout, (result.stdout, result.stderr)
    assert "of disk are free" in result.stdout
    assert "nothing is lost" in result.stdout
    trials = json.loads(Path(scan.root, "trials.json").read_text())
    assert [t for t in trials if t["state"] == "finished"]
    assert not [t for t in trials if t["state"] == "failed"]


def test_the_profile_of_a_machine_without_batch_system_runs_here(scan, tmp_path):
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    (profiles / "mine.yaml").write_text("name: mine\nlauncher: {name: torchrun}\n")
    scan.write({"site": {"profile": "mine"}, "budget": {"trials": 2, "parallel": 1}})
    scan("--sites", str(profiles), "run", "search.yaml")
    assert [trial["state"] for trial in scan.trials()] == ["finished"] * 2
