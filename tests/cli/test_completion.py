"""What the shell offers on the tab key."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpo_pilot.operations.client import SearchClient
from tests.command_here import command_here
from tests.rest_api import store_of, write_search


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder whose work folder has three searches."""
    made = tmp_path_factory.mktemp("completion")
    store_of(made / "hpo-pilot").close()
    with SearchClient.local(made / "hpo-pilot") as client:
        for name in ("demo-one", "demo_two", "other"):
            client.submit(write_search(made, name))
    return made


def asked(line):
    """The variables by which a shell asks for the words that may end a line."""
    words = line.split(" ")
    return {"_HPO_PILOT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("status ", ["other", "demo_two", "demo-one"]),
        ("status demo_", ["demo_two"]),
        ("extend --workdir nowhere de", []),
        ("sites show sum", ["summit"]),
    ],
)
def test_what_is_offered(root, line, offered):
    done = command_here(cwd=root, env=asked(f"hpo-pilot {line}"))
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_searches_of_a_service_are_not_asked_for(root):
    far = {"HPO_PILOT_SERVICE": "https://far.example.org"}
    assert command_here(cwd=root, env={**asked("hpo-pilot status d"), **far}).stdout.split() == []


def test_a_store_of_another_kind_offers_nothing(folder):
    (folder / "hpo-pilot").mkdir()
    (folder / "hpo-pilot" / "hpo-pilot.db").write_text("this is no database " * 100)
    done = command_here(env=asked("hpo-pilot status "))
    assert (done.stdout.split(), done.stderr) == ([], "")


def test_nothing_heavy_is_loaded(root):
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); sys.argv = ['hpo-pilot']\n"
    code += "from hpo_pilot.cli.main import main; main()"
    environment = {**os.environ, **asked("hpo-pilot status o")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    loaded = set(done.stdout.split())
    assert "other" in loaded
    assert not loaded & {"sqlalchemy", "numpy", "requests", "yaml", "hpo_pilot.search.search", "hpo_pilot.store"}
