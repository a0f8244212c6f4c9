"""`hpo-pilot pilots`: what is submitted, what is listed, and what is refused."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from hpo_pilot.cli.pilots import room_for
from hpo_pilot.hpc.allocations import AllocationFile
from hpo_pilot.hpc.batch_system import Allocation, AllocationSpec, BatchState
from hpo_pilot.hpc.site_profile import SiteProfile
from hpo_pilot.jobs import JobNeeds
from tests.cli.conftest import command, printed, refused

SITE = SiteProfile.model_validate({"name": "here", "batch": {"system": "slurm"}})
SERVER = "https://panda.example.org:25443"


@pytest.fixture
def asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options of a submission to Summit."""
    monkeypatch.setenv("MEMBERWORK", "/gpfs/me")
    (folder / "pilot.token").write_text("the-secret-itself")
    return [
        *("--site", "summit", "--walltime", "12:00", "--account", "ABC123"),
        *("--server", SERVER, "--panda-queue", "Q", "--token-file", str(folder / "pilot.token")),
    ]


@pytest.mark.parametrize(("cores", "jobs", "room"), [(None, None, 2), (64, None, 128), (64, 100, 100), (None, 50, 50)])
def test_the_room_that_allocations_are_kept_for(tmp_path: Path, cores: int, jobs: int, room: int) -> None:
    """A profile may not say how many cores a node has."""
    spec = AllocationSpec(SITE, 2, 60, "one", tmp_path, ("true",), node_cores=cores)
    assert room_for(spec, JobNeeds(1, 0, 1, 0, 5), jobs) == room


def test_a_dry_run(asked: list[str], folder: Path) -> None:
    words = ["--nodes", "92", "--dry-run", "--proxy", "http://login1:3128", "--pilot-option=--label"]
    script = command("pilots", "submit", *asked, *words, "--pilot-option", "x y").stdout
    assert "#BSUB -nnodes 92\n#BSUB -W 12:00\n" in script and "export https_proxy=http://login1:3128\n" in script
    (pilot,) = re.findall("^exec .*$", script, re.MULTILINE)
    assert (
        f"--server {SERVER} --queue Q --token-file {folder}/pilot.token --site /gpfs/me/hpo-pilot/allocations/" in pilot
    )
    assert " --allocation " in pilot and "the-secret" not in script
    assert script.rstrip().endswith(" --label 'x y'")
    assert not (folder / "hpo-pilot").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "--nodes", "1"], "give --walltime 2:00 at most, or --nodes 92 or more"),
        (["submit", "--nodes", "4609"], "--nodes 4609: summit has 4608"),
        (["submit", "--nodes", "92", "--walltime", "12"], "give hours and minutes"),
        (["submit", "--nodes", "92", "--walltime", "0:05"], "--walltime 0:05: summit warns pilots 300 s"),
        (["submit", "--nodes", "92", "--ca", "/nowhere.pem"], "--ca /nowhere.pem: there is no such file"),
        (["submit", "--nodes", "92", "--site", "somit"], "summit"),
        (["submit", "--nodes", "92", "--site", "local"], "hpo-pilot pilot"),
        (["keep", "--nodes", "92", "--max-nodes", "91"], "more than --max-nodes 91"),
    ],
)
def test_what_is_refused(words: list[str], said: str, asked: list[str]) -> None:
    dry = ["--dry-run"] if words[0] == "submit" else []
    assert said in refused("pilots", words[0], *asked, *words[1:], *dry)


def test_scratch_that_is_not_set(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMBERWORK")
    wrong = refused("pilots", "submit", *asked, "--nodes", "92", "--dry-run")
    assert "$MEMBERWORK, which is not set here: give --folder" in wrong


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "start `hpo-pilot serve --host"),
        (["--server", SERVER], "--token-file"),
        (["--server", SERVER, "--token-file", "token"], "--panda-queue"),
    ],
)
def test_without_a_service_a_server_a_token_and_a_queue_are_needed(options: list[str], said: str) -> None:
    assert said in refused("pilots", "submit", "--site", "summit", "--nodes", "1", "--walltime", "1:00", *options)


@pytest.fixture
def book(work: Path) -> Path:
    """A work folder with allocations that are over."""
    now = time.time()
    with AllocationFile(work).open() as opened:
        for name, ago, reason in (("hpo-old", 30 * 86400, ""), ("hpo-new", 3700, "Time\x1b[2J")):
            one = Allocation(
                name, "here", "slurm", 2, 90, SERVER, "Q", None, "/f", False, now - ago, job_id=f"id-{name}"
            )
            opened.put(one.now(BatchState.TIMED_OUT, reason, now - ago))
    return work


@pytest.mark.usefixtures("book")
def test_the_list() -> None:
    _, line = command("pilots", "list").stdout.splitlines()
    assert re.split(r"  +", line.strip()) == [
        *("hpo-new", "id-hpo-new", "here", "2", "1:30", "timed out (Time?[2J)", "1:01", "Q")
    ]
    every = json.loads(printed("pilots", "list", "--all", "--json"))
    assert [one["name"] for one in every] == ["hpo-old", "hpo-new"]


def test_the_list_says_why_one_failed_and_where_more_is(book: Path, tmp_path: Path) -> None:
    now = time.time()
    for name in ("hpo-one", "hpo-two"):
        one = Allocation(name, "here", "slurm", 1, 9, SERVER, "Q", None, str(tmp_path / name), False, now, job_id=name)
        with AllocationFile(book).open() as opened:
            opened.put(one.now(BatchState.FAILED, "NonZeroExitCode", now))
    (tmp_path / "hpo-one").mkdir()
    (tmp_path / "hpo-one" / "output.log").write_text("starts\nno such option: --odd\x1b\n")
    said = command("pilots", "list").stdout
    assert f"hpo-one failed: no such option: --odd? (all of it: {tmp_path}/hpo-one/output.log)" in said
    assert f"hpo-two failed: {tmp_path}/hpo-two/output.log: No such file" in said and "hpo-new failed" not in said


@pytest.mark.usefixtures("book")
def test_cancel_wants_to_know_which() -> None:
    for words in ([], ["--all", "hpo-new"]):
        assert "--all" in refused("pilots", "cancel", *words)
    assert printed("pilots", "cancel", "--all") == ""


@pytest.mark.parametrize("words", [["submit", "--nodes", "1"], ["keep", "--max-nodes", "1"]], ids=["submit", "keep"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--site", "summit", "--walltime", "30"], "--walltime '30': give hours and minutes"),
        (["--site", "sumit", "--walltime", "1:00"], "did you mean summit.*~/.config/hpo_pilot/sites.*HPO_PILOT_SITES"),
        (["--site", "local", "--walltime", "1:00"], "start `hpo-pilot pilot` on its nodes directly"),
    ],
)
def test_wrong_options_come_before_a_service_that_is_missing(words: list[str], options: list[str], said: str) -> None:
    assert re.search(said, refused("pilots", *words, *options))
