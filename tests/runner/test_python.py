"""Which Python a payload runs in, where the search names one, and what a failed payload is told of it."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

SHOW = """python -c 'import os, sys; print("ran in", sys.prefix, os.getenv("VIRTUAL_ENV"), os.getenv("PYTHONHOME"))'"""
GOOD = """; echo '{"status": 0, "loss": 1}' > output.json"""


@pytest.fixture
def venv(tmp_path):
    """A virtual environment, as far as Python looks for one: a link, and a file beside its folder."""
    folder = tmp_path / "an environment's"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (folder / "bin" / "python-of-it").symlink_to("python")
    (folder / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
    return folder


@pytest.mark.parametrize("called", ["python", "python3"])
@pytest.mark.parametrize("by_name", [False, True])
def test_the_named_python_is_python(bench, venv, called, by_name):
    """Also for scripts that the command calls; what another active environment has set is gone."""
    env = {"VIRTUAL_ENV": "/other", "PYTHONHOME": "/other"}
    if by_name:
        env["PATH"] = f"{os.environ['PATH']}{os.pathsep}{venv / 'bin'}"
    command = SHOW.replace("python", called, 1)
    python = "python-of-it" if by_name else str(venv / "bin" / "python")
    ended = bench.run("sh train.sh" + GOOD, files={"train.sh": command}, python=python, env=env)
    log = (ended.folder / "payload.log").read_text()
    assert ended.message == "" and f"ran in {venv} {venv} None" in log
    assert stat.S_IMODE((ended.folder / "hpo_pilot_python" / "python").stat().st_mode) == 0o700


def test_a_python_that_is_not_there(bench):
    """The reason is said also where PATH is long, as with the modules of a cluster."""
    env = {"PATH": f"{os.environ['PATH']}:/{'module' * 100}"}
    for python in ("/no/such place/python", "python-nowhere"):
        message = bench.run("python train.py", python=python, env=env).message
        assert "exit code 127" in message and "payload.python: there is no " + python in message


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python -c 'import no_such_module'", "No module named 'no_such_module'; python is {bin}/python, by PATH"),
        ("cd . && python3 -m no_such_module", "python3 is {bin}/python3, by PATH; payload.python names another"),
        ("no-such-program train.py", None),
        ("sh -c 'python77 x'", "there is no python77 in PATH={bin}"),
        ("python -c 'raise ValueError'", None),
    ],
)
def test_what_a_payload_misses_is_said_with_its_python(bench, command, said):
    folder = Path(sys.executable).parent
    message = bench.run(command, env={"PATH": f"{folder}:/usr/bin:/bin"}).message
    if said is not None:
        assert said.format(bin=folder) in message
    else:
        assert message and "python" not in message.replace(command, "")
