"""Wrong search files: each mistake with its line, its column, what is wrong and what was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_pilot.errors import Problem, SearchFileError
from hpo_pilot.steering.search_file import examine, load_search

from .conftest import GOOD

Find = Callable[..., list[Problem]]

ONE_MISTAKE = [
    # the document
    ("objective:", "objectiv:", 2, 1, "objectiv: is not a key that is known here", "did you mean objective?"),
    ("objective:", "trails: 3\nobjective:", 2, 1, "trails: is not a key that is known here", "there is search,"),
    ("objective:", "trials: 3\nobjective:", 2, 1, "trials: is not a key that is known here", "it belongs under budget"),
    ("space:", "parameters:", 3, 1, "parameters: is not a key that is known here", "did you mean space?"),
    ("search: digits-mlp\n", "", 1, 1, "search: is missing", ""),
    ("digits-mlp", "digits mlp", 1, 9, "search: must start with a letter", ""),
    ("digits-mlp", "2024", 1, 9, "search: must be text, not 2024", "put it in quotes: '2024'"),
    # objective
    ("goal: minimize", "goal: min", 2, 33, "objective.goal: must be minimize or maximize", "did you mean minimize?"),
    ("{metric: loss, goal: minimize}", "[{metric: a}, {metric: a}]", 2, 35, "objective[1].metric: a is the metric", ""),
    ("{metric: loss, goal: minimize}", "[{metric: a}, {goal: up}]", 2, 33, "objective[1].goal: must be", "maximize?"),
    (
        "{metric: loss, goal: minimize}",
        "[loss, {metric: a}]",
        2,
        13,
        "objective[0]: must be a mapping, not 'loss'",
        "metric",
    ),
    ("{metric: loss, goal: minimize}", "[]", 2, 12, "objective: is empty", "leave the key out"),
    (
        "{metric: loss, goal: minimize}",
        "loss",
        2,
        12,
        "objective: must be a mapping, not 'loss'",
        "as in objective: {metric: loss",
    ),
    (
        "{metric: loss, goal: minimize}",
        "",
        2,
        11,
        "objective: must be a mapping, not empty",
        "as in objective: {metric: loss",
    ),
    # the Python of the payload
    (
        "python train.py",
        "python train.py\n  python: venv/bin/python",
        19,
        11,
        "payload.python: must be an absolute path or a name in PATH, not 'venv/bin/python'",
        "as in /opt/conda/envs/torch/bin/python",
    ),
    (
        "python train.py",
        "python train.py\n  python: /no/such/python",
        19,
        11,
        "payload.python: there is no program /no/such/python on this machine",
        "give the path of an existing Python",
    ),
    # dimensions
    ("type: real, low: 1e-4", "type: float, low: 1e-4", 4, 25, "type: must be real, integer,", "did you mean real?"),
    ("type: integer, low: 1,", "type: int, low: 1,", 5, 18, "layers.type: must be real,", "did you mean integer?"),
    ("type: categorical", "type: choice", 7, 18, "solver.type: must be real,", "did you mean categorical?"),
    ("type: integer, low: 1,", "low: 1,", 5, 3, "space.layers.type: is missing", "did you mean type: integer?"),
    ("low: 1e-4", 'low: "1e-4"', 4, 36, "low: must be a number, not '1e-4'", "remove the quotes: 1e-4"),
    ("low: 1e-4", "low: 0", 4, 36, "low: a log scale needs low above 0, not 0", "use scale: linear"),
    ("low: 1e-4", "lowr: 1e-4", 4, 31, "lowr: is not a key that is known here", "did you mean low?"),
    ("low: 1e-4", "low: 1e-4, lowr: 3", 4, 42, "lowr: is not a key that is known here", "did you mean low? it is"),
    ("low: 1e-4", "min: 1e-4", 4, 31, "min: is not a key that is known here", "did you mean low?"),
    ("low: 1e-4, ", "", 4, 3, "space.learning_rate.low: is missing", ""),
    ("low: 1e-4", "low: .nan", 4, 36, "low: must be a finite number, not .nan", ""),
    ("low: 1e-4", "low: 1e400", 4, 36, "low: 1e400 is larger than the largest number", ""),
    ("low: 1e-4", "low: yes", 4, 36, "low: must be a number, not 'yes'", ""),
    ("minutes: 10", "minutes: 1,5", 19, 51, "resources.5: a key must be text", "a decimal comma?"),
    (
        "scale: log}\n  layers",
        "scale: logarithmic}\n  layers",
        4,
        61,
        "scale: must be linear or log",
        "did you mean log?",
    ),
    ("low: 1, high: 4", "low: 4, high: 1", 5, 32, "layers.low: low (4) must be below high (1)", "swap the two?"),
    ("low: 1, high: 4", "low: 1, high: 4.0", 5, 41, "layers.high: must be a whole number, not 4.0", "write 4"),
    ("low: 1, high: 4", "low: 1, high: 4, step: 9", 5, 50, "layers.step: 9 is larger than high - low", ""),
    ("{type: integer, low: 1, high: 4}", "[1, 4]", 5, 11, "layers: must be a mapping, not a list", ""),
    ("[adam, sgd]", "[adam, sgd, adam]", 7, 52, "choices[2]: 'adam' is listed twice", "remove one"),
    ("choices: [adam, sgd]", "values: [adam, sgd]", 7, 31, "values: is not a key", "did you mean choices?"),
    ("[adam, sgd]", "[adam, [sgd]]", 7, 47, "choices[1]: must be a single value, not a list", ""),
    (
        "when: {solver: sgd}",
        "when: {solver: sdg}",
        8,
        63,
        "can never be true: solver must be 'adam'",
        "did you mean sgd?",
    ),
    ("when: {solver: sgd}", "when: {slover: sgd}", 8, 55, "'slover' is not in the space", "did you mean solver?"),
    ("when: {solver: sgd}", "when: {layers: 2, width: 9}", 8, 73, "can never be true: width must be between 16", ""),
    ("when: {solver: sgd}", "when: {learning_rate: 1}", 8, 70, "is continuous", "give learning_rate a step"),
    ("when: {solver: sgd}", "when: {momentum: 1}", 8, 54, "momentum.when: depends on itself", ""),
    ("when: {solver: sgd}", "when: solver", 8, 54, "momentum.when: must be a mapping, not 'solver'", ""),
    # constraints
    ("<= 1024", "= 1024", 9, 15, "constraints[0]: 'layers * width = 1024' is not a valid expression", ""),
    ("* width <=", "* widht <=", 9, 15, "names widht, which is not in the space", "did you mean width?"),
    ("<= 1024", "<= 2", 9, 15, "constraints[0]: no feasible point: none of the", ""),
    (
        '["layers * width <= 1024"]',
        "layers * width <= 1024",
        9,
        14,
        "constraints: must be a list",
        "put it in brackets",
    ),
    # start points
    ("layers: 2, ", "layers: 9, ", 10, 39, "start[0].layers: must be between 1 and 4, not 9", ""),
    ("layers: 2, ", "layer: 2, layers: 2, ", 10, 31, "start[0].layer: is not a parameter", "did you mean layers?"),
    ("layers: 2, ", "", 10, 9, "start[0].layers: is missing", ""),
    ("solver: adam}", "solver: adam, momentum: 0.6}", 10, 67, "is not active here: it needs solver: 'sgd'", ""),
    ("width: 64", "width: 513", 10, 49, "start[0].width: must be between 16 and 512, not 513", ""),
    ("layers: 2, width: 64", "layers: 4, width: 512", 10, 9, "start[0]: breaks the constraint", ""),
    # the rest
    ("optimizer: random", "optimizer: bayesain", 11, 12, "optimizer: must be auto, random, grid,", "mean bayesian?"),
    ("optimizer: random", "optimizer: {name: rand}", 11, 19, "optimizer.name: must be auto, random", "mean random?"),
    ("optimizer: random", "optimizer: {name: random, colour: 3}", 11, 27, "colour: is not a key", ""),
    ("optimizer: random", "optimizer: {name: random, seed: 3}", 11, 27, "seed: is not a key", "at the top level"),
    ("trials: 64", "trials: 1e2", 12, 18, "budget.trials: must be a whole number, not 100.0", "write 100"),
    ("trials: 64", "trials: 1_000", 12, 18, "budget.trials: must be a whole number, not '1_000'", "write 1000"),
    ("trials: 64", "trials: 0", 12, 18, "budget.trials: must be 1 or more, not 0", ""),
    ("trials: 64", "trials: 64, hours: 12h", 12, 29, "budget.hours: must be a number, not '12h'", "the unit out"),
    ("trials: 64", "trials: 64, queued: many", 12, 30, "queued: must be a whole number or auto, not 'many'", ""),
    ("trials: 64", "trials: 64, queued: atuo", 12, 30, "queued: must be a whole number or auto", "did you mean auto?"),
    ("top: 3", "top: 65", 13, 16, "confirm.top: is 65, and the search has 64 trials", "use 64 or less"),
    ("require: 5", "require: 6", 14, 24, "folds.require: is 6, and a trial has 5 folds", ""),
    ("folds: {k: 5, require: 5}", "folds: five", 14, 8, "folds: must be a mapping, not 'five'", "k and require"),
    ("seed: 7", "seed: -7", 15, 7, "seed: must be 0 or more, not -7", ""),
    ("seed: 7", "early_stopping: {method: hyperband}", 15, 26, "method: must be none, median or asha", ""),
    (
        "seed: 7",
        "early_stopping: {method: median, eta: 3}",
        15,
        39,
        "eta: is not a setting of method median",
        "leave it",
    ),
    ("seed: 7", "early_stopping: {method: asha, folds: 9}", 15, 39, "folds: is 9, and a trial has 5", "use 5"),
    (
        "seed: 7",
        "early_stopping: {method: asha, metric: auc}",
        15,
        40,
        "metric: is 'auc', which is not an objective",
        "loss",
    ),
    ("  command: python train.py\n", "", 16, 1, "payload.command: is missing", ""),
    ("command: python", "comand: python", 18, 3, "payload.comand: is not a key", "did you mean command?"),
    ("files: digits", "files: digts", 17, 10, "payload.files: there is no such folder", "did you mean digits?"),
    ("files: digits", "files: digits/train.py", 17, 10, "payload.files: is a file, not a folder", ""),
    ("files: digits", "outputs: [/a.npz]\n  files: digits", 17, 13, "outputs[0]: must be a path inside", "no '/'"),
    ("cores: 1", "cores: 1000", 19, 20, "resources.cores: this machine has 8 cores, not 1000", "use 8 or fewer"),
    ("memory_mb: 2000", "memory_mb: 2000000", 19, 34, "this machine has 16000 MB of memory, not 2000000", ""),
    ("cores: 1", "gpus_per_node: 1", 19, 28, "this machine has no GPU, not 1", "use 0"),
    ("cores: 1", "nodes: 2", 19, 20, "the local site is one machine, not 2 nodes", "use nodes: 1"),
    ("profile: local", "profile: sumit", 20, 17, "there is no site profile 'sumit'", "did you mean summit?"),
    ("queue: LOCAL", 'queue: "a b"', 20, 31, "site.queue: must consist of letters", ""),
    # YAML
    ("seed: 7", "seed: 7\nseed: 8", 16, 1, "seed: is given twice; the first is at 15:1", "remove one"),
    ("high: 4}", "high: 4, low: 2}", 5, 44, "space.layers.low: is given twice; the first is at 5:27", "remove one"),
    ("seed: 7", "seed: !!python/object/apply:os.getcwd []", 15, 7, "the tag !!python/object/apply:os.getcwd", ""),
    ("seed: 7", "\tseed: 7", 15, 1, "is not YAML", "indent with blanks"),
    ("seed: 7", "seed: [7", 16, 8, "is not YAML", "a comma, bracket or brace missing"),
    ("seed: 7", "seed: 7: 8", 15, 8, "is not YAML", "needs quotes"),
    ("seed: 7", "seed: *a", 15, 7, "undefined alias", "needs quotes"),
    ("seed: 7", "---\nsearch: b", 15, 1, "a second document starts here", "one file has one search"),
    ("seed: 7", "seed: \x07", 15, 7, "the character U+0007 is not allowed", "remove it"),
    (
        "  layers:",
        "  1: {type: integer, low: 0, high: 3}\n  layers:",
        5,
        3,
        "a key must be text, and 1 is not",
        "quotes",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "column", "message", "suggestion"), ONE_MISTAKE)
def test_one_mistake(problems: Find, old: str, new: str, line: int, column: int, message: str, suggestion: str) -> None:
    found = problems(old, new)
    first = found[0]
    assert message in f"{first.path}: {first.message}", [str(problem) for problem in found]
    assert suggestion in first.suggestion
    assert (first.line, first.column) == (line, column)
    assert str(first).startswith(f"{first.file}:{line}:{column}: ")
    if "<= 2" not in new and "  1: {" not in new:  # the start point suffers from these too
        assert len(found) == 1, [str(problem) for problem in found]


def test_ten_mistakes_are_all_told(problems: Find) -> None:
    text = """\
search: ten
objective: {metric: loss, goal: lowest}
space:
  lr: {type: float, low: "1e-4", high: 1e-5, scale: log}
  n: {type: integer, low: 4, high: 1}
  c: {type: categorical, choices: [a, a]}
  m: {type: real, low: 0, hihg: 1, when: {k: 3}}
constraints: ["n < zeta", "n ="]
folds: {k: 3, require: 5}
budgit: {trials: -1}
payload: {command: 5}
"""
    assert [(p.line, p.column, p.path) for p in problems(text)] == [
        (2, 33, "objective.goal"),
        (4, 14, "space.lr.type"),
        (4, 26, "space.lr.low"),
        (5, 27, "space.n.low"),
        (6, 39, "space.c.choices[1]"),
        (7, 27, "space.m.hihg"),
        (7, 43, "space.m.when.k"),
        (8, 15, "constraints[0]"),
        (8, 27, "constraints[1]"),
        (9, 24, "folds.require"),
        (10, 1, "budgit"),
        (10, 18, "budget.trials"),
        (11, 20, "payload.command"),
    ]


def test_a_mistake_behind_a_mistake_is_told(problems: Find) -> None:
    """The type was misspelt; the bounds are checked all the same."""
    found = problems("{type: integer, low: 1, high: 4}", "{type: int, min: 4, high: 1}")
    assert [problem.path for problem in found] == ["space.layers.type", "space.layers.min", "space.layers.low"]
    assert (found[2].line, found[2].column) == (5, 28)


def test_a_wrong_parameter_spoils_nothing_that_names_it(problems: Find) -> None:
    assert len(problems("{type: categorical, choices: [adam, sgd]}", "{type: categorical}")) == 1
    assert len(problems("low: 1, high: 4", "low: one, high: 4")) == 1


def test_a_wrong_item_hides_nothing_in_the_others(problems: Find) -> None:
    text = """\
search: items
space: {x: {type: integer, low: 0, high: 9}}
constraints: [5, "x < y", "x >"]
start: [{x: 3}, 4, {x: 3.0}, {x: 10}]
payload: {command: x}
"""
    assert [str(problem).partition(".yaml:")[2] for problem in problems(text)] == [
        "3:15: constraints[0]: must be text, not 5 — put it in quotes: '5'",
        "3:18: constraints[1]: 'x < y' names y, which is not in the space — there is x",
        "3:27: constraints[2]: 'x >' is not a valid expression: invalid syntax",
        "4:17: start[1]: must be a mapping, not 4",
        "4:20: start[2]: is the same point as start[0] — remove one of the two",
        "4:34: start[3].x: must be between 0 and 9, not 10",
    ]


def test_a_missing_blank_after_a_colon(problems: Find) -> None:
    found = problems("low: 1, high: 4", "low:4, high:1")
    assert [(p.line, p.column, p.path, p.suggestion) for p in found] == [
        (5, 27, "space.layers.low:4", "put a blank after the colon"),
        (5, 32, "space.layers.low", "swap the two?"),
        (5, 34, "space.layers.high:1", "put a blank after the colon"),
    ]


def test_an_empty_file(problems: Find) -> None:
    for text in ("", "\n\n", "# nothing\n", "---\n"):
        (problem,) = problems(text)
        assert (problem.line, problem.column, problem.message) == (1, 1, "the file is empty")


@pytest.mark.parametrize("text", ["just text", "- a\n- b\n", "3", "null"])
def test_not_a_mapping(problems: Find, text: str) -> None:
    (problem,) = problems(text)
    assert "must be a mapping" in problem.message or "is empty" in problem.message


def test_not_utf_8(problems: Find) -> None:
    (problem,) = problems(GOOD.replace("seed: 7", "seed: ä7").encode("latin-1"))
    assert (problem.line, problem.column) == (15, 7)
    assert "is not UTF-8 text: the byte 0xe4" in problem.message


def test_a_byte_order_mark_is_no_mistake(folder: Path) -> None:
    (folder / "search.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_search(folder / "search.yaml").seed == 7


def test_unreadable(folder: Path) -> None:
    (folder / "search.yaml").write_text(GOOD)
    for path, text in (
        (
            folder / "serch.yaml",
            f"{folder / 'serch.yaml'}: cannot be read: No such file or directory — there is search.yaml",
        ),
        (folder, f"{folder}: is a folder, not a file — did you mean {folder / 'search.yaml'}?"),
        (Path("a\0b"), "cannot be read: embedded null"),
    ):
        with pytest.raises(SearchFileError) as caught:
            load_search(path)
        assert text in str(caught.value)


def test_a_huge_file_is_not_read(problems: Find) -> None:
    (problem,) = problems("#" * 2_000_000)
    assert "is larger than 1 MB" in problem.message


def test_alias_bombs_are_stopped(problems: Find) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert any("has more than 100000 values" in problem.message for problem in problems("\n".join(lines)))
    lines = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 12)]
    assert any("has more than 100000 values" in problem.message for problem in problems("\n".join(lines)))


def test_nesting_has_a_limit(problems: Find) -> None:
    assert "levels of nesting" in problems("seed: 7", "seed: " + "[" * 5000)[0].message
    assert "cannot contain itself" in problems("seed: 7", "seed: &a [*a]")[0].message
    assert "<< needs the alias of another" in problems("seed: 7", "early_stopping: &a {<<: *a}")[0].message


def test_a_long_number(problems: Find) -> None:
    (problem,) = problems("seed: 7", "seed: " + "9" * 5000)
    assert problem.message == "a number of 5000 digits is too long"


def test_early_stopping_on_the_grid_is_noted(folder: Path) -> None:
    text = GOOD.replace("seed: 7", "early_stopping: {method: asha}\nsite: {profile: grid}")
    (folder / "search.yaml").write_text(text.replace("\nsite: {profile: local, queue: LOCAL}", ""))
    found = examine(folder / "search.yaml")
    assert found.problems == () and found.search is not None
    assert [(note.path, note.message[:54]) for note in found.notes if note.path == "early_stopping"] == [
        ("early_stopping", "only hpo-pilot's own pilots report intermediate values")
    ]


@pytest.mark.parametrize(
    ("command", "more", "noted"),
    [
        ("python9 train.py", "", "payload.command: there is no python9 in PATH"),
        ("cd x && python9 train.py", "", "payload.command: there is no python9 in PATH"),
        ("python train.py", "python: python9", "payload.python: there is no python9 in PATH"),
        ("./bin/python9 train.py", "", None),  # it comes with the payload
        ("python9 train.py", "container: my.sif", None),
        ("./train.sh python9x", "", None),
    ],
)
def test_a_python_that_is_not_here_is_noted(folder: Path, command: str, more: str, noted: str | None) -> None:
    """Another environment may be active when the search is submitted."""
    (folder / "digits" / "train.sh").write_text("")
    text = GOOD.replace("command: python train.py", f"command: {command}\n  {more}")
    (folder / "search.yaml").write_text(text)
    notes = [str(note) for note in examine(folder / "search.yaml").notes]
    assert [note.partition(": ")[2][: len(noted or "")] for note in notes] == ([noted] if noted else [])
    (folder / "search.yaml").write_text(text.replace("profile: local", "profile: grid"))
    assert not [note for note in examine(folder / "search.yaml").notes if "python" in str(note)]


def test_notes_are_no_problems(folder: Path) -> None:
    text = GOOD.replace("python train.py", "python trian.py")
    space = text[text.index("space:") : text.index("constraints:")]
    text = text.replace(space, "space:\n  x: {type: integer, low: 1, high: 4}\n")
    text = text.replace('constraints: ["layers * width <= 1024"]\n', "").replace(
        text[text.index("start:") : text.index("optimizer:")], ""
    )
    (folder / "search.yaml").write_text(text)
    found = examine(folder / "search.yaml")
    assert found.problems == ()
    assert found.search is not None
    assert [(note.line, note.path, note.message) for note in found.notes] == [
        (4, "space", "the space has 4 points, fewer than 64 trials (budget.trials)"),
        (12, "payload.command", "trian.py is not in digits"),
    ]


def test_mistakes_between_sections_are_told_with_the_others(problems: Find) -> None:
    found = problems("seed: 7", "seed: x\nwarm_start: [digits-mlp]\nknown: [{point: {}, value: [1, 2]}]")
    assert {"seed", "warm_start[0]", "known[0].value"} <= {problem.path for problem in found}
