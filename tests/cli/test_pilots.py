from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpo_pilot.cli.main import app
from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.hpc.allocations import AllocationFile
from hpo_pilot.hpc.batch_system import Allocation, BatchState

SERVER = "https://panda.example.org:25443"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options of a submission to Summit."""
    monkeypatch.setenv("MEMBERWORK", "/gpfs/me")
    monkeypatch.delenv("PANDA_AUTH", raising=False)
    (tmp_path / "pilot.token").write_text("the-secret-itself")
    return [
        *("--site", "summit", "--walltime", "12:00", "--account", "ABC123", "--workdir", str(tmp_path / "work")),
        *("--server", SERVER, "--panda-queue", "Q", "--token-file", str(tmp_path / "pilot.token")),
    ]


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["pilots", *words])
    if isinstance(done.exception, HpoPilotError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_dry_run(asked: list[str], tmp_path: Path) -> None:
    script = run("submit", *asked, "--nodes", "92", "--dry-run", "--proxy", "http://login1:3128")
    assert "#BSUB -nnodes 92\n#BSUB -W 12:00\n" in script and "export https_proxy=http://login1:3128\n" in script
    (pilot,) = re.findall("^exec .*$", script, re.MULTILINE)
    assert (
        f"--server {SERVER} --queue Q --token-file {tmp_path}/pilot.token --site /gpfs/me/hpo-pilot/allocations/"
        in pilot
    )
    assert " --allocation " in pilot and "the-secret" not in script
    assert not (tmp_path / "work").exists()


def test_an_option_more_for_the_pilot(asked: list[str]) -> None:
    script = run("submit", *asked, "--nodes", "92", "--dry-run", "--pilot-option=--label", "--pilot-option", "x y")
    assert script.rstrip().endswith(" --label 'x y'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "--nodes", "1"], "give --walltime 2:00 at most, or --nodes 92 or more"),
        (["submit", "--nodes", "4609"], "--nodes 4609: summit has 4608"),
        (["submit", "--nodes", "92", "--walltime", "12"], "give hours and minutes"),
        (["submit", "--nodes", "92", "--ca", "/nowhere.pem"], "--ca /nowhere.pem: there is no such file"),
        (["submit", "--nodes", "92", "--site", "somit"], "summit"),
        (["submit", "--nodes", "92", "--site", "local"], "hpo-pilot pilot"),
        (["keep", "--nodes", "92", "--max-nodes", "91"], "more than --max-nodes 91"),
    ],
)
def test_what_is_refused(words: list[str], said: str, asked: list[str]) -> None:
    dry = ["--dry-run"] if words[0] == "submit" else []
    with pytest.raises(InputError, match=re.escape(said)):
        run(words[0], *asked, *words[1:], *dry)


def test_scratch_that_is_not_set(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMBERWORK")
    with pytest.raises(InputError, match=r"\$MEMBERWORK, which is not set here: give --folder"):
        run("submit", *asked, "--nodes", "92", "--dry-run")


def test_a_server_wants_a_token_and_a_queue(tmp_path: Path) -> None:
    words = ["submit", "--site", "summit", "--nodes", "1", "--walltime", "1:00", "--server", SERVER]
    with pytest.raises(InputError, match="--token-file"):
        run(*words)
    with pytest.raises(InputError, match="--panda-queue"):
        run(*words, "--token-file", str(tmp_path))


def test_no_service_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no service runs in .*: start `hpo-pilot serve --host"):
        run("submit", "--site", "summit", "--nodes", "1", "--walltime", "1:00", "--workdir", str(tmp_path))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A work folder with allocations that are over."""
    now = time.time()
    with AllocationFile(tmp_path).open() as opened:
        for name, ago, reason in (("hpo-old", 30 * 86400, ""), ("hpo-new", 3700, "Time\x1b[2J")):
            one = Allocation(
                name, "here", "slurm", 2, 90, SERVER, "Q", None, "/f", False, now - ago, job_id=f"id-{name}"
            )
            opened.put(one.now(BatchState.TIMED_OUT, reason, now - ago))
    return tmp_path


def test_the_list(book: Path) -> None:
    _, line = run("list", "--workdir", str(book)).splitlines()
    assert re.split(r"  +", line.strip()) == [
        *("hpo-new", "id-hpo-new", "here", "2", "1:30", "timed out (Time?[2J)", "1:01", "Q")
    ]
    assert [one["name"] for one in json.loads(run("list", "--all", "--json", "--workdir", str(book)))] == [
        "hpo-old",
        "hpo-new",
    ]


def test_the_list_says_why_one_failed_and_where_more_is(book: Path, tmp_path: Path) -> None:
    now = time.time()
    for name in ("hpo-one", "hpo-two"):
        one = Allocation(name, "here", "slurm", 1, 9, SERVER, "Q", None, str(tmp_path / name), False, now, job_id=name)
        with AllocationFile(book).open() as opened:
            opened.put(one.now(BatchState.FAILED, "NonZeroExitCode", now))
    (tmp_path / "hpo-one").mkdir()
    (tmp_path / "hpo-one" / "output.log").write_text("starts\nno such option: --odd\x1b\n")
    said = run("list", "--workdir", str(book))
    assert f"hpo-one failed: no such option: --odd? (all of it: {tmp_path}/hpo-one/output.log)" in said
    assert f"hpo-two failed: {tmp_path}/hpo-two/output.log: No such file" in said and "hpo-new failed" not in said


def test_cancel_wants_to_know_which(book: Path) -> None:
    for words in ([], ["--all", "hpo-new"]):
        with pytest.raises(InputError, match="--all"):
            run("cancel", *words, "--workdir", str(book))
    assert run("cancel", "--all", "--workdir", str(book)) == ""


@pytest.mark.parametrize("command", [["submit", "--nodes", "1"], ["keep", "--max-nodes", "1"]])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--site", "summit", "--walltime", "30"], "--walltime '30': give hours and minutes"),
        (["--site", "sumit", "--walltime", "1:00"], "did you mean summit.*~/.config/hpo_pilot/sites.*HPO_PILOT_SITES"),
        (["--site", "local", "--walltime", "1:00"], "start `hpo-pilot pilot` on its nodes directly"),
    ],
)
def test_wrong_options_come_before_a_service_that_is_missing(
    command: list[str], options: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        run(*command, *options, "--workdir", str(tmp_path))
