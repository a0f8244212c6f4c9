"""Imports phpo tasks: from a command line or a `--loadJson` file."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NoReturn

from hpo_pilot.errors import InputError
from hpo_pilot.migrate.draft import (
    Draft,
    ImportOptions,
    for_steering,
    goal_of_steering,
    put_name,
    put_sites,
    rucio_name,
    subject_of,
)
from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.spaces import ForeignSpace, read_space
from hpo_pilot.search.mistakes import FieldPath, closest
from hpo_pilot.search.values import show
from hpo_pilot.search.yaml_document import Document, Mark

#: phpo's names for the payload's files, and those of a search file.
FILE_NAMES = {
    "evaluationInput": "point",
    "evaluationOutput": "result",
    "evaluationTrainingData": "inputs",
    "evaluationMeta": "metadata",
    "evaluationMetrics": "metrics",
}

#: Options without a meaning here, and why.
_UNUSED = {
    "steeringContainer": "the optimizer runs in the service, in no container",
    "nPointsPerIteration": "points are not made in rounds here: each free slot gets the next one",
    "checkPointToLoad": "checkpoints are put back in their places; no tarball is made of them",
    "checkPointInterval": "checkpoints are kept as they are written",
    "alrbArgs": "containers are not started through ALRB here",
    "official": "a search makes no official data sets",
    "vomsRoles": "the search uses the proxy or token that it is submitted with",
    "noEmail": "nobody is sent mail",
    "intrSrv": "the server is named when the search is run: --server",
    "dumpJson": "it is about the command's own output",
    "noSubmit": "it is about the command's own output",
    "verbose": "it is about the command's own output",
    "version": "it is about the command's own output",
    "python3": "it is about the command's own output",
}


def import_phpo(task: PhpoTask, options: ImportOptions) -> Draft:
    """The search of a task; what is wrong with it is noted in the task's files."""
    draft = Draft()
    if any(file.problems for file in task.files()):
        return draft
    _put_name(draft, task)
    _put_payload(draft, task, options)
    _put_budget(draft, task)
    _put_panda(draft, task)
    steering = task.get("steeringExec")
    if steering is not None:
        found = for_steering(steering)
        origin = "what steeringExec does" if found else "nobody can see what steeringExec does"
        draft.put("optimizer", found or "bayesian", origin=origin)
        task.warn("steeringExec", f"the optimizer runs in the service instead: {found or 'bayesian'}")
    draft.put("objective", {"metric": "loss", "goal": goal_of_steering(steering or "") or "minimize"})
    for name, reason in _UNUSED.items():
        if task.get(name):
            task.warn(name, reason)
    spaces = _spaces(task)
    if spaces:
        draft.put_space(spaces[0])
    if "segmentSpecFile" in task.options:
        _put_segments(draft, task, spaces)
    return draft


def _put_name(draft: Draft, task: PhpoTask) -> None:
    file, path = task.source("outDS")
    subject = subject_of(task.get("outDS", ""))
    if subject:
        put_name(draft, file, path, subject, "phpo")
        task.warn("outDS", "the search's tasks get names of their own; its subject is the search's name")
    else:
        here = FilePath(file.name).stem if file.name != "command line" else "phpo-search"
        put_name(draft, file, (), here, "phpo")


def _put_payload(draft: Draft, task: PhpoTask, options: ImportOptions) -> None:
    draft.put("payload", "files", options.relative(task.folder), origin="phpo sends the files of its folder")
    if task.get("evaluationExec"):
        draft.put("payload", "command", task.get("evaluationExec"), origin="evaluationExec")
    elif options.command is None:
        task.wrong("evaluationExec", "is missing: nothing says what evaluates a point")
    if task.get("evaluationContainer"):
        draft.put("payload", "container", task.get("evaluationContainer"), origin="evaluationContainer")
    if task.get("trainingDS"):
        names = [rucio_name(name) for name in task.get("trainingDS").split(",")]
        draft.put("payload", "inputs", names, origin="trainingDS")
    kept = task.get("checkPointToSave")
    if kept:
        names = [name.strip().rstrip("/") for name in kept.split(",") if name.strip()]
        draft.put("payload", "checkpoint", names, origin="checkPointToSave")
    files: dict[str, str] = {}
    for option, key in FILE_NAMES.items():
        if not task.get(option):
            continue
        name = task.get(option).removeprefix("./")
        if "/" in name:
            task.wrong(option, f"must be a plain file name, not {show(name)}")
        files[key] = name
    if files:
        draft.put("payload", "file_names", files, origin="evaluationInput and the like")


def _number(task: PhpoTask, name: str, least: int) -> int | None:
    value = task.get(name, NUMBERS[name])
    if value is not None and value < least:
        task.wrong(name, f"must be {least} or more, not {value}")
        return None
    return value  # type: ignore[no-any-return]  # numbers were checked when they were read


def _put_budget(draft: Draft, task: PhpoTask) -> None:
    trials, parallel = _number(task, "maxPoints", 1), _number(task, "nParallelEvaluation", 1)
    draft.put("budget", "trials", trials, origin="maxPoints" if "maxPoints" in task.options else "phpo's default")
    given = "nParallelEvaluation" in task.options
    draft.put("budget", "parallel", parallel, origin="nParallelEvaluation" if given else "phpo's default")
    if (waiting := _number(task, "minUnevaluatedPoints", 0)) and parallel:
        draft.put("budget", "queued", max(0, waiting - parallel), origin="minUnevaluatedPoints beyond those that run")
    if per_job := _number(task, "maxPointsPerEvaluationJob", 0):
        draft.put("resources", "trials_per_job", per_job, origin="maxPointsPerEvaluationJob")
    if (jobs := _number(task, "maxEvaluationJobs", 1)) is not None and trials:
        attempts = max(1, math.ceil(jobs * (per_job or 1) / trials))
        draft.put("panda", "attempts", attempts, origin="maxEvaluationJobs, as attempts of each job")
        message = f"phpo counts the jobs of all points together; here each job has {attempts} attempts"
        task.warn("maxEvaluationJobs", message)


def _put_panda(draft: Draft, task: PhpoTask) -> None:
    if task.get("architecture"):
        draft.put("site", "architecture", task.get("architecture"), origin="architecture")
    if task.get("site"):
        file, path = task.source("site")
        put_sites(draft, file, path, [site.strip() for site in task.get("site").split(",")], "site")
    if task.get("workingGroup"):
        draft.put("panda", "working_group", task.get("workingGroup"), origin="workingGroup")


def _named_file(task: PhpoTask, option: str) -> ForeignFile | None:
    """The file that an option names, beside the task's or where we are; what is wrong with it is noted."""
    name = FilePath(task.get(option)).expanduser()
    path = task.folder / name
    if not path.exists() and name.exists():
        path = name
    if not path.exists():
        task.wrong(option, f"there is no file {path}")
        return None
    return ForeignFile.read(path)


def _spaces(task: PhpoTask) -> list[ForeignSpace]:
    """The search space, or those of all segments in their order."""
    if not task.get("searchSpaceFile"):
        task.wrong("searchSpaceFile", "is missing: nothing says what is searched")
        return []
    file = _named_file(task, "searchSpaceFile")
    if file is None:
        return []
    spaces: list[ForeignSpace] = []
    if not file.problems:
        if not isinstance(file.value, list):
            spaces.append(read_space(file, (), file.value))
        elif "segmentSpecFile" not in task.options:
            file.wrong((), "is a list of spaces, which needs segments: segmentSpecFile")
        else:
            spaces = _listed_spaces(file, file.value)
    task.source("searchSpaceFile")[0].join(file)
    return spaces if not file.problems else []


def _listed_spaces(file: ForeignFile, items: list[Any]) -> list[ForeignSpace]:
    found: dict[int, ForeignSpace] = {}
    for index, item in enumerate(items):
        path: FieldPath = (index,)
        if isinstance(item, dict) and "search_space" in item:
            number = item.get("model_id", index)
            if isinstance(number, bool) or not isinstance(number, int) or number in found:
                file.wrong((*path, "model_id"), f"must be a number that no other has, not {show(number)}")
                continue
            found[number] = read_space(file, (*path, "search_space"), item["search_space"])
        else:
            found[index] = read_space(file, path, item)
    return [found[number] for number in sorted(found)]


def _put_segments(draft: Draft, task: PhpoTask, spaces: list[ForeignSpace]) -> None:
    file = _named_file(task, "segmentSpecFile")
    if file is None:
        return
    if not file.problems and not (isinstance(file.value, list) and file.value):
        file.wrong((), "must be a list of segments, each with name and files")
    segments: dict[str, dict[str, Any]] = {}
    for index, item in enumerate(file.value if not file.problems else []):
        found = file.mapping((index,), item)
        name = None if found is None else file.text((index, "name"), found.get("name"))
        if found is None or name is None:
            continue
        if name in segments:
            file.wrong((index, "name"), f"{name!r} is the name of another segment too")
        segments[name] = _inputs(file, index, found, task.get("trainingDS"))
    if len(spaces) > 1 and not file.problems:
        if len(spaces) != len(segments):
            file.wrong((), f"there are {len(segments)} segments and {len(spaces)} search spaces")
        elif any(space.shape != spaces[0].shape for space in spaces):
            file.wrong((), "the spaces of the segments have different constants, arrays or nested choices")
        else:
            for segment, space in zip(segments.values(), spaces, strict=True):
                if space.dimensions != spaces[0].dimensions:
                    segment["space"] = space.dimensions
    task.source("segmentSpecFile")[0].join(file)
    if not file.problems:
        draft.put("segments", segments, origin="segmentSpecFile; the budget is for each of them")


def _inputs(file: ForeignFile, index: int, segment: dict[str, Any], training: str | None) -> dict[str, Any]:
    """A segment's own inputs: files of the training data set, or whole data sets of it."""
    for key in segment.keys() - {"name", "files", "datasets", "id"}:
        file.warn((index, key), "is not known to phpo")
    for key in ("files", "datasets"):
        names = segment.get(key)
        if names is None:
            continue
        if not (isinstance(names, list) and all(isinstance(name, str) and name for name in names)):
            file.wrong((index, key), f"must be a list of names, not {show(names)}")
            return {}
        if key == "datasets":
            return {"inputs": [rucio_name(name) for name in names]}
        scope = rucio_name(training).split(":")[0] if training else None
        return {"inputs": [name if ":" in name or "/" in name or not scope else f"{scope}:{name}" for name in names]}
    return {}


# phpo's options, from its command line and from its `--loadJson` files.
#
# The names, types and defaults are those of panda-client 2.2.0 (`pandaclient/PhpoScript.py`).

#: Options that are numbers, with their defaults.
NUMBERS: dict[str, int | None] = {
    "nParallelEvaluation": 1,
    "maxPoints": 10,
    "maxEvaluationJobs": None,
    "maxPointsPerEvaluationJob": None,
    "nPointsPerIteration": 2,
    "minUnevaluatedPoints": None,
    "checkPointInterval": None,
}

#: Options that are text.
TEXTS = (
    *("loadJson", "dumpJson", "steeringContainer", "steeringExec", "searchSpaceFile", "segmentSpecFile"),
    *("evaluationContainer", "evaluationExec", "evaluationInput", "evaluationOutput", "evaluationTrainingData"),
    *("evaluationMeta", "evaluationMetrics", "checkPointToSave", "checkPointToLoad", "alrbArgs", "architecture"),
    *("trainingDS", "outDS", "site", "workingGroup", "vomsRoles"),
)

#: Options that stand alone.
FLAGS = ("version", "verbose", "official", "noSubmit", "python3", "noEmail", "intrSrv")

#: How options are spelt that are not spelt as they are called.
_SPELT = {"verbose": ("-v",), "python3": ("-3",), "vomsRoles": ("--voms",)}


@dataclass
class PhpoTask:
    """What phpo was told.

    Attributes:
        options: by name; only those that were given.
        folder: where file names start.
    """

    folder: FilePath
    options: dict[str, Any] = field(default_factory=dict)
    _files: dict[str, ForeignFile] = field(default_factory=dict)
    _own: ForeignFile | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an option."""
        return self.options.get(name, default)

    def source(self, name: str) -> tuple[ForeignFile, FieldPath]:
        """The file that an option stands in, and the place."""
        file = self._files.get(name) or self._own
        assert file is not None
        return file, (name,) if name in self._files else ()

    def take(self, file: ForeignFile, values: dict[str, Any]) -> None:
        """Takes options from a file; they stand above those taken before, as phpo has it."""
        self._own = self._own or file
        for name, value in values.items():
            if name in self.options and self.options[name] != value:
                before = show(self.options[name])
                file.warn((name,), f"is used, as phpo does it, and not {before}, which the command line has")
            self.options[name] = value
            self._files[name] = file

    def wrong(self, name: str, message: str, hint: str = "") -> None:
        """Notes a mistake at an option."""
        file, path = self.source(name)
        file.wrong(path, message if path else f"{name}: {message}", hint)

    def warn(self, name: str, message: str, hint: str = "") -> None:
        """Notes what cannot be carried over of an option."""
        file, path = self.source(name)
        file.warn(path, message if path else f"{name}: {message}", hint)

    def files(self) -> list[ForeignFile]:
        """All files that options came from."""
        found = [self._own, *self._files.values()]
        return list({id(file): file for file in found if file is not None}.values())


def read_phpo(path: FilePath | None, arguments: Sequence[str]) -> PhpoTask:
    """What phpo was told: by a file of its options, by a file that holds a command, or by the words of a command.

    Raises:
        InputError: there is neither a file nor a word, or the command is not one of phpo's.
    """
    if path is None and not arguments:
        raise InputError("which task? Give a --loadJson file, a file with the phpo command, or the command after --")
    folder = path.parent if path else FilePath()
    task = PhpoTask(folder)
    if path is not None:
        command = _command_in(path)
        if command is None:
            file = ForeignFile.read(path)
            task.take(file, _checked(file, file.value))
        else:
            _take_command(task, command.words, ForeignFile(command.document(), folder))
    if arguments:
        words = list(arguments[1:] if FilePath(arguments[0]).name == "phpo" else arguments)
        _take_command(task, words, ForeignFile.of({}, "command line", folder))
    return task


def _take_command(task: PhpoTask, words: Sequence[str], file: ForeignFile) -> None:
    given = _parsed(words, file.name)
    load = given.pop("loadJson", None)
    task.take(file, given)
    if load is None:
        return
    path = task.folder / FilePath(load).expanduser()
    loaded = ForeignFile.read(path)
    task.take(loaded, _checked(loaded, loaded.value))
    task.folder = path.parent if path.parent != FilePath() else task.folder


def _checked(file: ForeignFile, value: Any) -> dict[str, Any]:
    """The options of a `--loadJson` file; unknown ones are passed over, as phpo does it, with a warning."""
    if file.problems or (found := file.mapping((), value, "must be a mapping: phpo's options")) is None:
        return {}
    known, options = [*NUMBERS, *TEXTS, *FLAGS], {}
    for name, given in found.items():
        item = given
        if name not in known:
            near = closest(name, [option for option in known if option not in found])
            file.warn(
                (name,), "is not an option of phpo, which passes it over", f"did you mean {near}?" if near else ""
            )
            continue
        if item is None:
            continue
        if isinstance(item, str) and name in NUMBERS and re.fullmatch(r"\s*[-+]?\d+\s*", item):
            item = int(item)
        if name in NUMBERS:
            item = file.count((name,), item, least=0)
        elif name in TEXTS and item != "":
            item = str(item) if isinstance(item, int) and not isinstance(item, bool) else file.text((name,), item)
        elif name in FLAGS and not isinstance(item, bool):
            file.wrong((name,), f"must be true or false, not {show(item)}")
            continue
        if item is not None:
            options[name] = item
    return options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: not a command of phpo: {message}")


def _parsed(words: Sequence[str], place: str) -> dict[str, Any]:
    parser = _Parser(prog=place, add_help=False, argument_default=argparse.SUPPRESS)
    for name in NUMBERS:
        parser.add_argument(f"--{name}", type=int)
    for name in TEXTS:
        parser.add_argument(*_SPELT.get(name, (f"--{name}",)), dest=name)
    for name in FLAGS:
        parser.add_argument(*_SPELT.get(name, (f"--{name}",)), dest=name, action="store_true")
    return vars(parser.parse_args(list(words)))


@dataclass(frozen=True)
class _Command:
    """A phpo command found in a file, which may hold other lines of a script."""

    file: str
    text: str
    words: list[str]

    def document(self) -> Document:
        """The options' places in the file."""
        document = Document(self.file, {})
        for name in (*NUMBERS, *TEXTS, *FLAGS):
            spelt = _SPELT.get(name, (f"--{name}",))[0]
            found = re.search(rf"(?<!\S){re.escape(spelt)}(?=[\s=]|$)", self.text)
            if found:
                before = self.text[: found.start()].split("\n")
                document.values[(name,)] = Mark(len(before), len(before[-1]) + 1)
        document.values[()] = Mark(1, 1)
        return document


def _command_in(path: FilePath) -> _Command | None:
    """The phpo command of a file; None where it is a file of options, or cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return None
    if text.lstrip()[:1] in ("{", "["):
        return None
    for line in _lines(text):
        try:
            words = shlex.split(_SUBSTITUTION.sub(_one_word, line), comments=True)
        except ValueError:
            continue
        for index, word in enumerate(words):
            if FilePath(word).name == "phpo":
                return _Command(str(path), text, words[index + 1 :])
    return None


#: What a shell takes as a whole: quoted text, a comment, and (the group) a command in whose place its output stands.
_SUBSTITUTION = re.compile(
    r"""'[^']*'|"(?:\\.|[^"\\])*"|(?<!\S)\#[^\n]*|\\.|(?P<command>\$\([^()]*\)|`[^`]*`)""", re.DOTALL
)


def _one_word(found: re.Match[str]) -> str:
    """A command such as `$(date +%s)` is a part of a word for us, its blanks included: nobody runs it."""
    command = found["command"]
    return shlex.quote(command) if command else found[0]


def _lines(text: str) -> Iterator[str]:
    """The lines of a shell script that may hold a command: continued and quoted ones are one."""
    line = ""
    for part in text.replace("\\\n", " ").split("\n"):
        line = f"{line}\n{part}" if line else part
        try:
            shlex.split(line, comments=True)
        except ValueError:
            continue  # a quote is open
        yield line
        line = ""
