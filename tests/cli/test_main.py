"""What the command line itself promises: one clear line, the right status, and a light start for pilots."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hpo_pilot.cli import main, searches
from hpo_pilot.errors import TryAgainError
from tests.cli.conftest import command, refused


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)


def command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpo_pilot.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_it_is_a_program():
    assert "status" in command_line("status", "--help").stdout
    assert command_line("nosuch").returncode == 2


def test_a_reader_that_has_seen_enough_is_no_failure():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "hpo_pilot.cli", "manual"]
    for output, closes in ((writing, None), (None, partial(os.close, 1))):
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, preexec_fn=closes, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
    os.close(writing)


def test_the_help_text_groups_the_commands():
    said = command_line("--help").stdout
    for part, name in (("Searching", "plan"), ("Seeing", "best"), ("Changing", "pause"), ("Service", "token")):
        assert f" {name} " in said.split(f"─ {part}")[1].split("╰")[0]
    assert "─ Commands" not in said, "every command is in a part"


@pytest.mark.parametrize("words", ["nosuch", "run", "run x.yaml --slots many", "status --nosuch", "statsu"])
def test_a_wrong_command_line_is_status_2(words):
    said = refused(*words.split())
    assert words != "statsu" or "status" in said, "a near miss is named"


def test_a_full_disk_is_a_reason_to_try_again():
    def write() -> None:
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")

    with pytest.raises(TryAgainError, match="No space left on device; nothing is lost"):
        main._with_advice(write)()


def test_an_installation_for_pilots_names_what_is_missing():
    words = "sys.argv = ['hpo-pilot', 'list']"
    result = python(f"import sys; sys.modules['sqlalchemy'] = None; {words}; import hpo_pilot.cli.__main__")
    assert result.returncode == 2
    assert result.stderr.strip().splitlines() == [
        "hpo-pilot: this command needs sqlalchemy, which a pilot's installation does not have: "
        "pip install 'hpo-pilot[service]'"
    ]


def test_a_pilot_loads_nothing_heavy():
    code = (
        "import sys, hpo_pilot.cli.main as cli, hpo_pilot.pilot.__main__; from typer.main import get_command\n"
        "group = get_command(cli.app); assert all(group.get_command(None, name) for name in list(group.commands))\n"
        "print(*sys.modules)"
    )
    loaded = {name.split(".")[0] for name in python(code).stdout.split()}
    assert "typer" in loaded
    heavy = "numpy scipy skopt sklearn deap sqlalchemy pandaclient starlette plotly"
    assert not loaded & set(heavy.split())


def test_validate_loads_no_library_that_takes_long(tmp_path):
    file = tmp_path / "search.yaml"
    file.write_text(
        "search: demo\nspace: {x: {type: real, low: 0, high: 1}}\npayload: {command: echo}\noptimizer: auto\n"
    )
    words = f"['hpo-pilot', 'validate', {str(file)!r}]"
    code = f"import sys; sys.argv = {words}; import hpo_pilot.cli.main as command\n"
    result = python(code + "try: command.main()\nfinally: print(*sys.modules)")
    loaded = {name.split(".")[0] for name in result.stdout.split()}
    assert "is valid" in result.stdout and "pydantic" in loaded
    heavy = "scipy skopt sklearn deap sqlalchemy pandaclient starlette plotly cryptography prometheus_client"
    assert not loaded & set(heavy.split())


def test_looking_loads_neither_numpy_nor_what_draws_reports(tmp_path):
    file = tmp_path / "search.yaml"
    file.write_text('search: demo\nspace: {x: {type: real, low: 0, high: 1}}\npayload: {command: "true"}\n')
    command("submit", str(file))
    code = "import sys; sys.argv = ['hpo-pilot', 'status', 'demo']; import hpo_pilot.cli.main as command\n"
    done = python(code + "try: command.main()\nfinally: print('loaded', *sys.modules)")
    shown, _, loaded = done.stdout.partition("loaded ")
    assert "demo" in shown
    assert "hpo_pilot.store" in loaded.split()
    assert not set(loaded.split()) & {"numpy", "scipy", "jinja2", "plotly", "hpo_pilot.report.html", "requests"}


def test_a_pilot_says_what_it_does_and_debug_says_more(tmp_path):
    token = tmp_path / "token"
    token.write_text("x")
    pilot = ["pilot", "--server", "http://127.0.0.1:9", "--queue", "Q", "--token-file", str(token), "--lifetime", "0.5"]
    said = command_line(*pilot, "--workdir", str(tmp_path / "work")).stderr
    assert " INFO " in said
    assert " DEBUG " not in said
    assert " DEBUG " in command_line(*pilot, "--debug", "--workdir", str(tmp_path / "work")).stderr


def test_names_of_parameters_do_not_steer_the_terminal(capsys):
    """A bidirectional override in a name would turn the rest of the line around."""
    best = {"number": 1, "value": 0.5, "std": None, "point": {"lr\u202e\x1b[31m": "\u202e"}}
    search = {"name": "s", "state": "done", "trials": {"finished": 1}, "over": 1, "message": "", "best": best}
    searches._show({**search, "report": "r.html", "objective": {"metric": "loss", "goal": "minimize"}})
    printed = capsys.readouterr().out
    assert "lr??[31m:" in printed
    assert all(c.isprintable() or c == "\n" for c in printed)


def test_ctrl_c_in_any_command_means_try_again(monkeypatch, work):
    def interrupted(*_given, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr("hpo_pilot.operations.client.SearchClient.searches", interrupted)
    assert command("list", status=3).stderr == "hpo-pilot: interrupted; the same command continues\n"
