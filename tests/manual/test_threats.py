"""Each line of the page on threats names tests that exist; and what no other room shows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hpo_pilot import load_search
from hpo_pilot.errors import InputError
from hpo_pilot.manual import page_named
from tests.manual.pages import REPOSITORY

SEARCH = """
search: s
space:
  x: {type: real, low: 0, high: 1}
constraints: [CONSTRAINT]
objective: {metric: loss, goal: minimize}
optimizer: random
budget: {trials: 2}
payload: {command: "true"}
"""


def rows() -> list[str]:
    lines = page_named("threats").text().splitlines()
    return [line for line in lines if line.startswith("|") and line.count("|") == 5 and not line.startswith("|---")]


def test_every_line_names_tests_that_exist() -> None:
    found = [row for row in rows() if "| test |" not in row]
    assert len(found) > 40
    for row in found:
        tests = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row.rsplit("|", 2)[1])
        assert tests, row
        for file, name in tests:
            tree = ast.parse((REPOSITORY / file).read_text())
            there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in there if name else any(each.startswith("test_") for each in there), (file, name)


ATTACKS = {
    "!!python/object/apply:os.system ['touch hit']": "the tag .* is not allowed",
    "\"__import__('os').system('touch hit') == 0\"": "which is not a function here",
    '"x.__class__.__base__.__subclasses__() == 0"': "which is not a function here",
    "\"[open('hit', 'w') for _ in [1]] == 0\"": "which a constraint cannot",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_that_others_send_is_run(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "search.yaml"
    file.write_text(SEARCH.replace("CONSTRAINT", "x < 1"))
    assert load_search(file).name == "s"
    file.write_text(SEARCH.replace("CONSTRAINT", attack))
    with pytest.raises(InputError, match=ATTACKS[attack]):
        load_search(file)
    assert not (tmp_path / "hit").exists()


def test_no_module_unpickles_or_evaluates_what_others_send() -> None:
    """The runner does, with the payload's own files in its job; the figure worker reads its own process."""
    package, found = REPOSITORY / "hpo_pilot", set()
    runs = re.compile(
        r"eval|exec|(pickle|cloudpickle|marshal|dill|joblib|torch)\.loads?|yaml\.(load|\w+_load_all|full_load)"
    )
    for path in package.rglob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        if any(runs.fullmatch(ast.unparse(call.func)) for call in calls):
            found.add(path.relative_to(package).as_posix())
    assert {name for name in found if not name.startswith("runner/")} == {"web/figure_worker.py"}
