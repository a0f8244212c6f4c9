"""Commands that messages name work as printed: they exist, take the options named, and name the same searches."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

import hpo_pilot
from hpo_pilot.advice import Place, command
from hpo_pilot.cli.main import app
from hpo_pilot.store import SearchState
from tests.command_here import command_here
from tests.rest_api import add_results, set_state, store_of, write_search

PACKAGE = Path(hpo_pilot.__file__).parent
NAMED = re.compile(r"`hpo-pilot ([^`]+)`")
PROGRAM = get_command(app)


@pytest.fixture
def work(folder):
    """A work folder whose name a shell would split."""
    store_of(folder / "my work").close()
    return folder / "my work"


def check(words):
    """Makes sure that a command of these words exists and takes its options."""
    found = PROGRAM
    words = list(words)
    while hasattr(found, "commands") and words and not words[0].startswith("-"):
        assert words[0] in found.commands, words
        found = found.get_command(None, words.pop(0))
    known = {name for parameter in found.params for name in parameter.opts}
    own = words[: words.index("--")] if "--" in words else words  # behind it are another command's
    unknown = {word.partition("=")[0] for word in own if word.startswith("--")} - known - {"--help"}
    # The pilot reads its words itself.
    assert not unknown or found.name == "pilot", (found.name, unknown)


def test_every_command_in_the_sources_exists():
    seen = 0
    for path in PACKAGE.rglob("*.py"):
        for line in path.read_text().splitlines():
            for text in NAMED.findall(re.sub(r"\{[^{}]*\}", "X", line)):
                words = text.replace("COMMAND", "").replace("'", "").split()
                if words and re.fullmatch(r"[a-z]+", words[0]):
                    check(words)
                    seen += 1
    assert seen > 40


def advice(*arguments):
    """The commands that a command names, as a shell reads them."""
    result = command_here(*arguments)
    return [shlex.split(text) for text in NAMED.findall(result.stdout + result.stderr)]


def situations(tmp_path, work):
    """Commands as users give them, in the states that their searches get into."""
    where = ("--workdir", str(work))
    file = str(write_search(tmp_path, "demo"))
    yield ("list", *where)
    yield ("submit", file, *where)
    yield ("submit", file, *where)
    yield ("status", "demo", *where)
    add_results(work, "demo")
    yield ("logs", "demo", "7", *where)
    yield ("pause", "demo", *where)
    yield ("status", "demo", *where)
    yield ("retry", "demo", *where)
    yield ("resume", "demo", *where)
    yield ("extend", "demo", "--trials", "+1", *where)
    yield ("list", *where)
    for state in SearchState:
        set_state(work, "demo", state, "as it is: see `hpo-pilot trials demo`")
        yield ("status", "demo", *where)
    Path(tmp_path, "training", "train.py").write_text("print('mended')\n")
    yield ("run", file, *where)
    yield ("pilots", "list", *where)


def test_advice_names_the_same_work_folder(tmp_path, work):
    found = 0
    for arguments in situations(tmp_path, work):
        for words in advice(*arguments):
            found += 1
            check(words)
            assert words[-2:] == ["--workdir", str(work)], (arguments, words)
            if words[0] in ("status", "trials", "best", "log") and "--watch" not in words:
                result = command_here(*words)
                assert result.returncode == 0, (words, result.stderr)
    assert found > 25


def test_options_are_added_where_they_are_needed():
    text = "`hpo-pilot best x` and `hpo-pilot sites`; `hpo-pilot serve` or `hpo-pilot stop x --workdir other`"
    assert Place().completed(text) == text
    assert Place(workdir="a b").completed(text) == (
        "`hpo-pilot best x --workdir 'a b'` and `hpo-pilot sites`; `hpo-pilot serve --workdir 'a b'` or "
        "`hpo-pilot stop x --workdir other`"
    )
    far = Place(service="https://hpo.example.org", token_file="t")
    assert "`hpo-pilot best x --service https://hpo.example.org --token-file t`" in far.completed(text)
    assert "`hpo-pilot serve`" in far.completed(text), "it is for the service's machine"
    store = Place(store="postgresql+psycopg://me:secret@db/hpo").completed(text)
    assert "secret" not in store
    assert "--store 'postgresql+psycopg://me:***@db/hpo'" in store
    assert command("run", "my file.yaml") == "`hpo-pilot run 'my file.yaml'`"
