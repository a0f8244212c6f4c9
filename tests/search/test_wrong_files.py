"""Wrong search files: each mistake with its line, its column, what is wrong and what was meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpo_pilot.errors import Problem, SearchFileError
from hpo_pilot.files import payload_notes
from hpo_pilot.steering.search_file import Examination, examine, load_search

from .conftest import GOOD

Find = Callable[..., list[Problem]]

GOAL = "{metric: loss, goal: minimize}"
PARENT = "when: {solver: sgd}"
LAYERS = "low: 1, high: 4"
COMMAND = "python train.py"
SEED = "seed: 7\n"

#: (text of `GOOD`, instead of it, line, column, part of path and message, part of the remedy)
ONE_MISTAKE = [
    # keys and sections
    ("objective:", "objectiv:", 2, 1, "objectiv: is not a key that is known here", "did you mean objective?"),
    ("objective:", "trials: 3\nobjective:", 2, 1, "trials: is not a key that is known here", "it belongs under budget"),
    ("space:", "parameters:", 3, 1, "parameters: is not a key that is known here", "did you mean space?"),
    ("search: digits-mlp\n", "", 1, 1, "search: is missing", ""),
    ("  command: python train.py\n", "", 16, 1, "payload.command: is missing", ""),
    ("optimizer: random", "optimizer: tpe", 11, 12, "not 'tpe'", "{name: optuna, sampler: tpe}, after pip install"),
    ("digits-mlp", "digits mlp", 1, 9, "search: must start with a letter", ""),
    ("digits-mlp", "2024", 1, 9, "search: must be text, not 2024", "put it in quotes: '2024'"),
    # limits
    ("optimizer: random", 'limits: {loss: "<= 1"}', 11, 10, "limits.loss: is an objective", "other figures"),
    # objective
    ("goal: minimize", "goal: min", 2, 33, "objective.goal: must be minimize or maximize", "did you mean minimize?"),
    (GOAL, "[loss, {metric: a}]", 2, 13, "objective[0]: must be a mapping, not 'loss'", "metric"),
    (GOAL, "[]", 2, 12, "objective: is empty", "leave the key out"),
    (GOAL, "loss", 2, 12, "objective: must be a mapping, not 'loss'", "as in objective: {metric: loss"),
    # parameters
    ("type: real, low: 1e-4", "type: float, low: 1e-4", 4, 25, "type: must be real, integer,", "did you mean real?"),
    ("type: integer, low: 1,", "low: 1,", 5, 3, "space.layers.type: is missing", "did you mean type: integer?"),
    ("low: 1e-4", 'low: "1e-4"', 4, 36, "low: must be a number, not '1e-4'", "remove the quotes: 1e-4"),
    ("low: 1e-4", "low: 0", 4, 36, "low: a log scale", "use scale: linear"),
    ("low: 1e-4", "low: 1e-4, lowr: 3", 4, 42, "lowr: is not a key that is known here", "did you mean low? it is"),
    ("low: 1e-4", "min: 1e-4", 4, 31, "min: is not a key that is known here", "did you mean low?"),
    ("scale: log}\n  lay", "scale: logarithmic}\n  lay", 4, 61, "scale: must be linear or log", "did you mean log?"),
    (LAYERS, "low: 4, high: 1", 5, 32, "layers.low: low (4) must be below high (1)", "swap the two?"),
    (
        "{type: integer, low: 1, high: 4}",
        "[1, 4]",
        5,
        11,
        "layers: must be a mapping, not a list",
        "as in {type: integer, low: 1, high: 4}, or {type: ordinal, choices: [1, 4]}",
    ),
    ("[adam, sgd]", "[adam, sgd, adam]", 7, 52, "choices[2]: 'adam' is listed twice", "remove one"),
    ("choices: [adam, sgd]", "values: [adam, sgd]", 7, 31, "values: is not a key", "did you mean choices?"),
    # conditions and constraints
    (PARENT, "when: {solver: sdg}", 8, 63, "can never be true: solver must be 'adam'", "did you mean sgd?"),
    (PARENT, "when: {slover: sgd}", 8, 55, "slover", "did you mean solver?"),
    (PARENT, "when: {layers: 2, width: 9}", 8, 73, "can never be true: width must be between 16", ""),
    (PARENT, "when: {learning_rate: 1}", 8, 70, "is continuous", "give learning_rate a step"),
    ("<= 1024", "= 1024", 9, 15, "constraints[0]: 'layers * width = 1024' is not a valid expression", ""),
    ("* width <=", "* widht <=", 9, 15, "names widht, which is not in the space", "did you mean width?"),
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
    ("solver: adam}", "solver: adam, momentum: 0.6}", 10, 67, "is not active here: it needs solver: 'sgd'", ""),
    ("layers: 2, width: 64", "layers: 4, width: 512", 10, 9, "start[0]: breaks the constraint", ""),
    # optimizer, budget, folds
    ("optimizer: random", "optimizer: bayesain", 11, 12, "optimizer: must be auto, random, grid,", "mean bayesian?"),
    ("optimizer: random", "optimizer: {name: random, seed: 3}", 11, 27, "seed: is not a key", "at the top level"),
    (
        "optimizer: random",
        "optimizer: {name: cma, populaton: 3}",
        11,
        24,
        "populaton: is not a key",
        "mean population?",
    ),
    ("trials: 64", "trials: 1e2", 12, 18, "budget.trials: must be a whole number, not 100.0", "write 100"),
    ("trials: 64", "trials: 64, hours: 12h", 12, 29, "budget.hours: must be a number, not '12h'", "unit is hours"),
    ("trials: 64", "trials: 64, queued: atuo", 12, 30, "queued: must be a whole number or auto", "did you mean auto?"),
    ("top: 3", "top: 65", 13, 16, "confirm.top: is 65, and the search has 64 trials", "use 64 or less"),
    ("require: 5", "require: 6", 14, 24, "folds.require: is 6, and a trial has 5 folds", ""),
    ("seed: 7", "early_stopping: {method: asha, metric: auc}", 15, 40, "metric: is 'auc'", "loss"),
    # levels
    (SEED, "fidelity: {epochs: {low: 9, high: 3}}\n", 15, 26, "epochs.low: is 9, and high is 3", "a smaller number"),
    (SEED, "fidelity: {width: {low: 1, high: 3}}\n", 15, 12, "width: is a parameter of the space too", "rename"),
    (SEED, "fidelity: {'epochs ': {low: 1, high: 3}}\n", 15, 12, "'epochs ' is not a usable name", "remove blanks"),
    (SEED, "fidelity: {epochs: {high: 3}}\n", 15, 12, "fidelity.epochs.low: is missing", ""),
    (SEED, "fidelity: {a: {low: 1, high: 2}, b: {low: 1, high: 2}}\n", 15, 11, "fidelity: must have at most 1", ""),
    (
        SEED,
        "fidelity: {epochs: {low: 1, high: 9}}\nearly_stopping: median\n",
        15,
        1,
        "fidelity: trains every point in parts already",
        "remove early_stopping, or fidelity",
    ),
    ("trials: 64", "trials: 64, fidelity: 99", 12, 32, "budget.fidelity: limits the levels of all", "add fidelity"),
    # notify
    (SEED, "notify: {}\n", 15, 9, "notify: names no receiver", "give it a url or an email"),
    (SEED, "notify: https://a.b/\n", 15, 9, "notify: must be a mapping", "its keys are url"),
    (SEED, "notify: {url: ftp://a.b/}\n", 15, 15, "notify.url: is not a web address", "begin with https://"),
    (SEED, "notify: {url: 'https:///x'}\n", 15, 15, "notify.url: is not a web address", "and a host"),
    (SEED, "notify: {url: 'http://a.b:x/'}\n", 15, 15, "notify.url: is not a web address", "and a host"),
    (SEED, "notify: {url: 'http://a b/'}\n", 15, 15, "notify.url: has a space", "encode it"),
    (SEED, "notify: {url: 'http://u:p@a.b/'}\n", 15, 15, "notify.url: has a user or password", "token"),
    (SEED, "notify: {email: -oQ/tmp@a.b}\n", 15, 17, "notify.email: is not one e-mail address", "jane.doe@"),
    (SEED, 'notify: {email: "a@b.c\\nBcc: d@e.f"}\n', 15, 17, "notify.email: is not one e-mail address", "jane.doe@"),
    (SEED, "notify: {email: a@b.c, on: [ended]}\n", 15, 29, "notify.on[0]: must be done, failed or stalled", ""),
    (SEED, "notify: {email: a@b.c, on: []}\n", 15, 28, "notify.on: ", ""),
    (SEED, "notify: {mail: a@b.c}\n", 15, 10, "notify.mail: is not a key", "did you mean email?"),
    # payload, resources, site
    (COMMAND, "x\n  python: venv/python", 19, 11, "payload.python: must be an absolute path or a name", "as in /opt"),
    (COMMAND, "x\n  python: /no/such", 19, 11, "payload.python: there is no program /no/such", "an existing Python"),
    ("command: python", "comand: python", 18, 3, "payload.comand: is not a key", "did you mean command?"),
    ("files: digits", "files: digts", 17, 10, "payload.files: there is no such folder", "did you mean digits?"),
    ("files: digits", "files: digits/train.py", 17, 10, "payload.files: is a file, not a folder", ""),
    ("files: digits", "outputs: [/a.npz]\n  files: digits", 17, 13, "outputs[0]: must be a path inside", "no '/'"),
    ("cores: 1", "cores: 1000", 19, 20, "resources.cores: this machine has 8 cores, not 1000", "use 8 or fewer"),
    ("cores: 1", "gpus_per_node: 1", 19, 28, "this machine has no GPU, and a job asks for 1", "use 0"),
    ("cores: 1", "nodes: 2", 19, 20, "the local site is one machine, not 2 nodes", "use nodes: 1"),
    ("minutes: 10", "minutes: 1,5", 19, 51, "resources.5: a key must be text", "a decimal comma?"),
    ("profile: local", "profile: sumit", 20, 17, "there is no site profile 'sumit'", "did you mean summit?"),
    ("queue: LOCAL", 'queue: "a b"', 20, 31, "site.queue: must consist of letters", ""),
    # YAML
    ("seed: 7", "seed: 7\nseed: 8", 16, 1, "seed: is given twice; the first is at 15:1", "remove one"),
    ("seed: 7", "seed: !!python/object/apply:os.getcwd []", 15, 7, "the tag !!python/object/apply:os.getcwd", ""),
    ("seed: 7", "\tseed: 7", 15, 1, "is not YAML", "indent with blanks"),
    ("seed: 7", "seed: [7", 16, 8, "is not YAML", "a comma, bracket or brace missing"),
    ("seed: 7", "seed: *a", 15, 7, "undefined alias", "needs quotes"),
    ("seed: 7", "---\nsearch: b", 15, 1, "a second document starts here", "one file has one search"),
    ("seed: 7", "seed: \x07", 15, 7, "the character U+0007 is not allowed", "remove it"),
    ("seed: 7", "seed: " + "9" * 5000, 15, 7, "a number of 5000 digits is too long", ""),
]


@pytest.mark.parametrize(("old", "new", "line", "column", "message", "suggestion"), ONE_MISTAKE)
def test_one_mistake(problems: Find, old: str, new: str, line: int, column: int, message: str, suggestion: str) -> None:
    found = problems(old, new)
    first = found[0]
    assert message in f"{first.path}: {first.message}", [str(problem) for problem in found]
    assert suggestion in first.suggestion
    assert (first.line, first.column) == (line, column)
    assert str(first).startswith(f"{first.file}:{line}:{column}: ")
    assert len(found) == 1


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (
            """\
search: ten
objective: {metric: loss, goal: lowest}
space:
  lr: {type: float, low: "1e-4", high: 1e-5, scale: log}
  n: {type: int, min: 4, high: 1}
  c: {type: categorical, choices: [a, a]}
  m: {type: real, low: 0, hihg: 1, when: {k: 3}}
constraints: ["n < zeta", "n =", 5]
start: [{n: 9}, 4]
warm_start: [ten]
folds: {k: 3, require: 5}
budgit: {trials: -1}
payload: {command: 5}
""",
            [
                (2, 33, "objective.goal"),
                (4, 14, "space.lr.type"),
                (4, 26, "space.lr.low"),
                (5, 13, "space.n.type"),
                (5, 18, "space.n.min"),  # the check goes on with `low`
                (5, 23, "space.n.low"),
                (6, 39, "space.c.choices[1]"),
                (7, 27, "space.m.hihg"),
                (7, 43, "space.m.when.k"),
                (8, 15, "constraints[0]"),
                (8, 27, "constraints[1]"),
                (8, 34, "constraints[2]"),
                (9, 17, "start[1]"),
                (10, 14, "warm_start[0]"),
                (11, 24, "folds.require"),
                (12, 1, "budgit"),
                (12, 18, "budget.trials"),
                (13, 20, "payload.command"),
            ],
        ),
        (
            """\
search: items
space: {x: {type: integer, low: 0, high: 9}}
constraints: ["x < 5"]
start: [{x: 3}, {x: 3.0}, {x: 10}]
known: [{point: {x: 1}, value: [1, 2]}, {point: {y: 1}, value: 1}]
payload: {command: x}
""",
            [
                (4, 17, "start[1]"),
                (4, 31, "start[2].x"),
                (5, 32, "known[0].value"),
                (5, 50, "known[1].point.y"),
                (5, 42, "known[1].point.x"),
            ],
        ),
        (
            """\
search: beliefs
space:
  lr: {type: real, low: 1e-4, high: 1, scale: log}
  n: {type: integer, low: 1, high: 9}
  c: {type: categorical, choices: [a, b]}
  o: {type: ordinal, choices: [1, 2, 4]}
prior:
  lr: {around: 10, within: 0.5}
  n: {around: 3}
  c: {around: d, within: 1}
  o: {around: 3}
  m: {around: 1, within: 1}
payload: {command: x}
""",
            [
                (8, 16, "prior.lr.around"),
                (8, 28, "prior.lr.within"),
                (9, 3, "prior.n.within"),
                (10, 15, "prior.c.around"),
                (10, 26, "prior.c.within"),
                (11, 3, "prior.o.within"),
                (11, 15, "prior.o.around"),
                (12, 3, "prior.m"),
            ],
        ),
        (
            """\
search: limited
objective: {metric: loss}
limits:
  memory_mb: 16000
  latency_ms: below 5
  size: "<="
  'a"b': "<= 1"
  rate: ">= 1e999"
  fine: " >=-1.5e3 "
space: {x: {type: real, low: 0, high: 1}}
payload: {command: x}
""",
            [
                (4, 14, "limits.memory_mb"),
                (5, 15, "limits.latency_ms"),
                (6, 9, "limits.size"),
                (7, 10, 'limits.a"b'),
                (8, 9, "limits.rate"),
            ],
        ),
    ],
)
def test_all_mistakes_are_told_at_once(problems: Find, text: str, places: list[tuple[int, int, str]]) -> None:
    found = [(problem.line, problem.column, problem.path) for problem in problems(text)]
    assert sorted(found) == sorted(places)


def test_a_wrong_parameter_spoils_nothing_that_names_it(problems: Find) -> None:
    assert len(problems("{type: categorical, choices: [adam, sgd]}", "{type: categorical}")) == 1
    assert len(problems(LAYERS, "low: one, high: 4")) == 1


def test_a_missing_blank_after_a_colon(problems: Find) -> None:
    found = problems(LAYERS, "low:4, high:1")
    assert [(p.line, p.column, p.path, p.suggestion) for p in found] == [
        (5, 27, "space.layers.low:4", "put a blank after the colon"),
        (5, 32, "space.layers.low", "swap the two?"),
        (5, 34, "space.layers.high:1", "put a blank after the colon"),
    ]


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("", 1, "the file is empty"),
        ("# nothing\n", 1, "the file is empty"),
        ("just text", 1, "must be a mapping of search, space, payload"),
        ("- a\n- b\n", 1, "must be a mapping"),
        (GOOD.replace("seed: 7", "seed: ä7").encode("latin-1"), 15, "is not UTF-8 text: the byte 0xe4"),
        ("#" * 2_000_000, None, "is larger than 1 MB"),
        (GOOD.replace("seed: 7", "seed: " + "[" * 5000), 15, "more than 40 levels of nesting"),
        (GOOD.replace("seed: 7", "seed: &a [*a]"), 15, "an alias cannot contain itself"),
        (GOOD.replace("seed: 7", "early_stopping: &a {<<: *a}"), 15, "<< needs the alias of another"),
    ],
)
def test_files_that_cannot_be_read(problems: Find, content: str | bytes, line: int | None, message: str) -> None:
    first = problems(content)[0]
    assert message in first.message
    assert first.line == line


def test_a_byte_order_mark_is_no_mistake(folder: Path) -> None:
    (folder / "search.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_search(folder / "search.yaml").seed == 7


def test_paths_that_cannot_be_read(folder: Path) -> None:
    (folder / "search.yaml").write_text(GOOD)
    for path, text in (
        (folder / "serch.yaml", "serch.yaml: cannot be read: No such file or directory — there is search.yaml"),
        (folder, f"{folder}: is a folder, not a file — did you mean {folder / 'search.yaml'}?"),
        (Path("a\0b"), "cannot be read: embedded null"),
    ):
        with pytest.raises(SearchFileError) as caught:
            load_search(path)
        assert text in str(caught.value)


@pytest.mark.parametrize(("first", "item"), [("[x, x]", "[%s]"), ("{x: 1}", "{<<: [%s]}")])
def test_alias_bombs_are_stopped(problems: Find, first: str, item: str) -> None:
    lines = [f"a0: &a0 {first}"] + [f"a{i}: &a{i} {item % ', '.join([f'*a{i - 1}'] * 9)}" for i in range(1, 12)]
    assert any("has more than 100000 values" in problem.message for problem in problems("\n".join(lines)))


def examine_text(folder: Path, text: str) -> Examination:
    """A file without mistakes, with its notes."""
    (folder / "search.yaml").write_text(text)
    found = examine(folder / "search.yaml")
    assert found.problems == () and found.search is not None
    return found


def notes_of(folder: Path, text: str) -> list[tuple[str, str]]:
    """Path and message of the notes on a file without mistakes."""
    return [(note.path, note.message) for note in examine_text(folder, text).notes]


@pytest.mark.parametrize(
    ("command", "more", "noted"),
    [
        ("cd x && python9 train.py", "", "payload.command"),
        ("python train.py", "python: python9", "payload.python"),
        ("./bin/python9 train.py", "", None),  # it comes with the payload
        ("python9 train.py", "container: my.sif", None),
        ("./train.sh python9x", "", None),
    ],
)
def test_a_python_that_is_not_here_is_noted(folder: Path, command: str, more: str, noted: str | None) -> None:
    """Another environment may be active when the search is submitted."""
    (folder / "digits" / "train.sh").write_text("")
    text = GOOD.replace("command: python train.py", f"command: {command}\n  {more}")
    wanted = [(noted, "there is no python9 in PATH on this machine")] if noted else []
    assert notes_of(folder, text) == wanted
    assert notes_of(folder, text.replace("profile: local", "profile: grid")) == []


def test_a_launcher_that_is_not_here_is_noted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the remedy, before the first trial."""
    text = GOOD.replace("minutes: 10", "minutes: 10, ranks_per_node: 1")
    monkeypatch.setenv("PATH", str(folder))
    found = [note for note in examine_text(folder, text).notes if note.path == "resources"]
    assert ["torchrun" in note.message and "`pip install torch`" in str(note) for note in found] == [True]
    (folder / "torchrun").touch(mode=0o755)
    assert not [note for note in examine_text(folder, text).notes if note.path == "resources"]


@pytest.mark.parametrize(
    ("function", "noted"),
    [
        ("train:objective", None),
        ("train:Model.fit", None),
        ("train:loaded", None),
        ("train:tried", None),
        ("package.inner:anything", None),
        ("json:loads", None),
        ("train:objektive", "there is no objektive in train.py"),
        ("trian:objective", "there is no module trian in digits"),
        ("broken:objective", "broken.py cannot be imported: line 2: invalid syntax"),
        ("objective.pkl", "objective.pkl is not in digits"),
    ],
)
def test_a_function_that_is_not_there_is_noted(folder: Path, function: str, noted: str | None) -> None:
    text = "from json import load as loaded\nclass Model:\n    def fit(self, point): pass\ndef objective(point): pass\n"
    (folder / "digits" / "train.py").write_text(text + "try:\n    tried = 1\nexcept ValueError:\n    pass\n")
    (folder / "digits" / "broken.py").write_text("\nx = = 1")
    (folder / "digits" / "package").mkdir()
    (folder / "digits" / "package" / "inner.py").write_text("from os.path import *")
    found = notes_of(folder, GOOD.replace("command: python train.py", f'function: "{function}"'))
    assert [place for place, _ in found] == (["payload.function"] if noted else [])
    assert all(noted in text for _, text in found)


@pytest.mark.parametrize(
    ("old", "new", "path", "message"),
    [
        (COMMAND, "python trian.py", "payload.command", "trian.py is not in digits"),
        (COMMAND, "SEED=1 root9 -b train.C", "payload.command", "there is no root9 in PATH on this machine"),
        (GOAL, "{metric: val_accuracy}", "objective.metric", "the search looks for the smallest val_accuracy"),
        (GOAL, "[{metric: a}, {metric: AUC}]", "objective[1].metric", "the search looks for the smallest AUC"),
        ("1e-1, scale: log}", "1e-1}", "space.learning_rate", "nine of ten trials are above 0.01, because its scale"),
        ("trials: 64", "trials: 1000000", "budget.trials", "10 minutes each, 8 at once, they take 2.38 years"),
        (GOAL, "{metric: m, reference: 2}", "objective.reference", "has an effect only with several objectives"),
        (GOAL, f"[{', '.join(f'{{metric: m{n}}}' for n in range(5))}]", "objective", "5 objectives"),
        ("minutes: 10", "minutes: 10, trials_per_job: 20", "resources.trials_per_job", "at most 8 trials"),
        ("profile: local, queue: LOCAL}", "profile: grid}\nearly_stopping: asha", "early_stopping", "only hpo-pilot's"),
    ],
)
def test_settings_that_are_perhaps_not_intended_are_noted(
    folder: Path, old: str, new: str, path: str, message: str
) -> None:
    ((place, text),) = notes_of(folder, GOOD.replace(old, new))
    assert place == path and message in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (COMMAND, "cd x; sh train.sh"),
        (COMMAND, "$HOME/bin/train"),
        (GOAL, "{metric: accuracy, goal: minimize}"),
        (GOAL, "{metric: accuracy_error}"),
        ("1e-1, scale: log}", "1e-1, scale: linear}"),
        ("low: 16, high: 512, scale: log", "low: 0, high: 5000"),
        ("trials: 64", "trials: 1000000, hours: 24"),
    ],
)
def test_settings_that_are_meant_are_not_noted(folder: Path, old: str, new: str) -> None:
    (folder / "digits" / "train.sh").write_text("")
    assert notes_of(folder, GOOD.replace(old, new).replace('constraints: ["layers * width <= 1024"]\n', "")) == []


def test_a_payload_folder_that_cannot_be_read(problems: Find, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        if path == folder / "digits":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refused)  # root may read everything
    (problem,) = problems(GOOD)
    assert (problem.path, problem.line) == ("payload.files", 17) and "digits: Permission denied" in problem.message
    assert "chmod" in problem.suggestion
    (problem,) = problems("digits\n", "digitz\n")
    assert "there is no such folder" in problem.message


def test_a_space_with_fewer_points_than_trials_is_noted(folder: Path) -> None:
    text = "search: s\nspace: {x: {type: integer, low: 1, high: 4}}\noptimizer: random\npayload: {command: echo}\n"
    points = "the space has 4 points, fewer than 64 trials (budget.trials)"
    assert notes_of(folder, text) == [("space", points)]
    start = text + "start: [{x: 1}, {x: 2}]\nbudget: {trials: 1}\n"
    assert notes_of(folder, start) == [("start", "there are 2 start points, more than 1 trials (budget.trials)")]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("memory_mb: 4GB", "give the number alone; the unit is MB"),
        ("minutes: 2.5 h", "give the number alone; the unit is minutes"),
        ("cores: 4 cores", "leave the unit out"),
    ],
)
def test_a_number_stands_alone(problems: Find, text: str, remedy: str) -> None:
    key = text.partition(":")[0]
    before = {"memory_mb": "memory_mb: 2000", "minutes": "minutes: 10", "cores": "cores: 1"}[key]
    (found,) = problems(before, text)
    assert (found.path, found.suggestion) == (f"resources.{key}", remedy)


def test_choices_are_single_values(problems: Find) -> None:
    """A tuple of Python is two texts in YAML, and a list in it is no value that all optimizers and exports have."""
    found = problems("choices: [adam, sgd]", "choices: [(64, 32), (8, 4)]")[0]
    assert (found.path, found.line, found.column) == ("space.solver.choices[0]", 7, 41) and "quotes" in found.suggestion
    found, other, *_ = problems("choices: [adam, sgd]", "choices: [[64, 32], [8]]")
    assert (found.path, other.path) == ("space.solver.choices[0]", "space.solver.choices[1]")
    assert "as text" in found.suggestion


@pytest.mark.parametrize(
    ("values", "domain"),
    [
        ("[1, 2, 3, 4]", "{type: ordinal, choices: [1, 2, 3, 4]}"),
        ("[relu, 'on', a b]", "{type: categorical, choices: [relu, on, a b]}"),
        ("[1, big]", "{type: categorical, choices: [1, big]}"),
        ("[true, false]", "{type: categorical, choices: [true, false]}"),
        ("[0.1, 10]", "{type: real, low: 0.1, high: 10}, or {type: ordinal, choices: [0.1, 10]}"),
        ("(1, 4)", "{type: integer, low: 1, high: 4}, or {type: ordinal, choices: [1, 4]}"),
        ("(1, 2, 3)", "{type: ordinal, choices: [1, 2, 3]}"),
    ],
)
def test_bare_values_of_a_parameter_are_shown_as_its_domain(problems: Find, values: str, domain: str) -> None:
    assert [found.suggestion for found in problems("{type: integer, low: 1, high: 4}", values)][:1] == [
        f"as in {domain}"
    ]


#: (lines of a search without payload, place, part of the remedy)
WITHOUT_PAYLOAD = [
    ("payload: {command: none, outputs: [a]}", "payload.outputs", "remove it"),
    ("payload: {command: none, files: f, container: x.sif}", "payload.files", "remove it"),
    ("resources: {cores: 2}", "resources.cores", "remove it"),
    ("resources: {trials_per_job: 4}", "resources.trials_per_job", "remove it"),
    ("folds: 3", "folds", "remove it"),
    ("site: {profile: grid}", "site.profile", "remove it"),
    ("site: {profile: frontier}", "site.profile", "remove it"),
    ("site: {queue: ANALY}", "site.queue", "remove it"),
    ("budget: {gpu_hours: 3}", "budget.gpu_hours", "remove it"),
    ("segments: {a: {inputs: [b]}}", "segments.a.inputs", "remove it"),
    ("payload: nothing", "payload", "files, command"),
    ("payload: null", "payload", "files, command"),
]


@pytest.mark.parametrize(("line", "place", "hint"), WITHOUT_PAYLOAD, ids=[line for line, *_ in WITHOUT_PAYLOAD])
def test_what_has_no_meaning_without_a_payload(tmp_path: Path, line: str, place: str, hint: str) -> None:
    whole = "search: a\nspace: {x: {type: real, low: 0, high: 1}}\n"
    whole += line if line.startswith("payload") else f"payload: none\n{line}"
    (tmp_path / "a.yaml").write_text(whole)
    problems = examine(tmp_path / "a.yaml").problems
    assert any(problem.path.startswith(place) and hint in problem.suggestion for problem in problems)
    (tmp_path / "a.yaml").write_text(whole.replace(line, "payload: none" if line.startswith("payload") else ""))
    assert load_search(tmp_path / "a.yaml").payload.is_none


def test_links_to_folders_are_named(tmp_path):
    """They are not packed."""
    (tmp_path / "p").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "p" / "common").symlink_to(tmp_path / "shared")
    (tmp_path / "p" / "gone").symlink_to(tmp_path / "nowhere")
    assert [said for said, _ in payload_notes("p", "true", tmp_path)] == [
        "common in p is a link to a folder, and is not packed"
    ]
