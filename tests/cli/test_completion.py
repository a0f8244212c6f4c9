"""What the shell offers on the tab key."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.rest_api import add_results, store_of, write_search


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from hpo_pilot.web.local_client import LocalClient

    root = tmp_path_factory.mktemp("completion")
    store_of(root / "hpo-pilot").close()
    with LocalClient(root / "hpo-pilot") as client:
        client.submit(write_search(root, "demo-one"))
        client.submit(write_search(root, "demo_two"))
        client.submit(write_search(root, "other"))
    add_results(root / "hpo-pilot", "demo-one")
    return root


def offered(folder, line, **environment):
    words = line.split(" ")
    shell = {
        "_HPO_PILOT_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    kept = {k: v for k, v in os.environ.items() if k not in ("HPO_PILOT_STORE", "HPO_PILOT_SERVICE")}
    code = "import sys; sys.argv = ['hpo-pilot']; import hpo_pilot.cli.__main__"
    if environment.pop("loaded", None):
        code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {code}"
    done = subprocess.run(  # noqa: PLW1510 - what it wrote says more
        [
            sys.executable,
            "-c",
            code.replace("import hpo_pilot.cli.__main__", "from hpo_pilot.cli.main import main; main()"),
        ],
        cwd=folder,
        env={**kept, **shell, **environment},
        capture_output=True,
        text=True,
    )
    assert not done.stderr, done.stderr
    return done.stdout.split()


def test_searches(folder):
    assert offered(folder, "hpo-pilot status ") == ["other", "demo_two", "demo-one"]
    assert offered(folder, "hpo-pilot status demo_") == ["demo_two"]
    assert offered(folder, "hpo-pilot extend --workdir nowhere de") == []
    assert offered(folder, "hpo-pilot status d", HPO_PILOT_SERVICE="https://far.example.org") == []


def test_trials_parameters_forms_and_sites(folder):
    assert offered(folder, "hpo-pilot retry demo-one --trial ") == ["1"]
    assert offered(folder, "hpo-pilot try demo-one ") == ["x=", "kind=a", "kind=b"]
    assert "csv" in offered(folder, "hpo-pilot export other --format c")
    assert offered(folder, "hpo-pilot sites show sum") == ["summit"]
    assert offered(folder, "hpo-pilot fetch b") == ["best"]


def test_a_store_of_another_kind_offers_nothing(folder, tmp_path):
    (tmp_path / "hpo-pilot").mkdir()
    (tmp_path / "hpo-pilot" / "hpo-pilot.db").write_text("this is no database " * 100)
    assert offered(tmp_path, "hpo-pilot status ") == []


def test_nothing_heavy_is_loaded(folder):
    loaded = set(offered(folder, "hpo-pilot status o", loaded="1"))
    assert "other" in loaded
    assert not loaded & {"sqlalchemy", "numpy", "requests", "yaml", "hpo_pilot.search.search", "hpo_pilot.store"}
