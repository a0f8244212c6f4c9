"""Imports phpo tasks from a command line or a `--loadJson` file.

Names, types and defaults of the options are those of panda-client 2.2.0 (`pandaclient/PhpoScript.py`).
"""

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
    library_of_steering,
    put_name,
    put_sites,
    rucio_name,
)
from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.spaces import ForeignSpace, read_space
from hpo_pilot.search.mistakes import FieldPath, closest
from hpo_pilot.search.values import show
from hpo_pilot.search.yaml_document import Document, Mark

#: phpo's options for the names of the payload's files, and the keys of `payload.file_names`.
_FILE_NAMES = {
    "evaluationInput": "point",
    "evaluationOutput": "result",
    "evaluationTrainingData": "inputs",
    "evaluationMeta": "metadata",
    "evaluationMetrics": "metrics",
}

#: Options whose values are taken as they are, and their keys in a search file.
_TAKEN = {
    "evaluationExec": ("payload", "command"),
    "evaluationContainer": ("payload", "container"),
    "architecture": ("site", "architecture"),
    "workingGroup": ("panda", "working_group"),
}

#: Options that are dropped, with the reason.
_UNUSED = {
    "steeringContainer": "the optimizer runs in the service, without a container",
    "nPointsPerIteration": "there are no rounds here: a new point starts as soon as a slot is free",
    "checkPointToLoad": "checkpoints are restored in their places, without a tarball",
    "checkPointInterval": "checkpoints are stored as soon as they are written",
    "alrbArgs": "containers are not started through ALRB here",
    "official": "write panda.official and panda.working_group into the search file for official data sets",
    "vomsRoles": "the search uses the proxy or token of its submission",
    "noEmail": "no mail is sent",
    "intrSrv": "give the server to the command that runs the search: --server",
    **dict.fromkeys(
        ("dumpJson", "noSubmit", "verbose", "version", "python3"), "it concerns only the output of the phpo command"
    ),
}


def import_phpo(task: PhpoTask, options: ImportOptions) -> Draft:
    """Returns the search of a task; mistakes are recorded in the task's files."""
    draft = Draft()
    if any(file.problems for file in task.files()):
        return draft
    _put_name(draft, task)
    _put_payload(draft, task, options)
    _put_budget(draft, task)
    _put_site(draft, task)
    steering = task.get("steeringExec")
    if steering is not None:
        found = for_steering(steering)
        origin = "as in steeringExec" if found else "steeringExec does not name an optimizer"
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


#: The owner at the start of a data set's name, as `user.nickname.`.
_OWNER = re.compile(r"^(?:user|group)\.[^.]+\.")

#: Parts of a name that a shell replaces.
_SHELL = re.compile(r"`[^`]*`|\$\([^)]*\)|\$\{[^}]*\}|\$\w+|\{\w+\}")


def _put_name(draft: Draft, task: PhpoTask) -> None:
    file, path = task.source("outDS")
    subject = _subject(task.get("outDS", ""))
    if subject:
        put_name(draft, file, path, subject, "phpo")
        task.warn("outDS", "the search is named after it; the tasks and data sets get other names")
    else:
        here = FilePath(file.name).stem if file.name != "command line" else "phpo-search"
        put_name(draft, file, (), here, "phpo")


def _subject(dataset: str) -> str:
    """Returns the name of an output data set without its owner and without variables of the shell."""
    return _OWNER.sub("", _SHELL.sub("", dataset).rstrip("/")).strip(".-_ ")


def _put_payload(draft: Draft, task: PhpoTask, options: ImportOptions) -> None:
    draft.put("payload", "files", options.relative(task.folder), origin="phpo sends the files in its folder")
    for option, place in _TAKEN.items():
        if task.get(option):
            draft.put(*place, task.get(option), origin=option)
    if not task.get("evaluationExec") and options.command is None:
        task.wrong("evaluationExec", "is missing: it is the command that evaluates a point")
    if task.get("trainingDS"):
        names = [rucio_name(name) for name in task.get("trainingDS").split(",")]
        draft.put("payload", "inputs", names, origin="trainingDS")
    kept = task.get("checkPointToSave")
    if kept:
        names = [name.strip().rstrip("/") for name in kept.split(",") if name.strip()]
        draft.put("payload", "checkpoint", names, origin="checkPointToSave")
    files: dict[str, str] = {}
    for option, key in _FILE_NAMES.items():
        if not task.get(option):
            continue
        name = task.get(option).removeprefix("./")
        if "/" in name:
            task.wrong(option, f"must be a plain file name, not {show(name)}")
        files[key] = name
    if files:
        draft.put("payload", "file_names", files, origin="evaluationInput and similar options")


def _number(task: PhpoTask, name: str, least: int) -> int | None:
    value = task.get(name, NUMBERS[name])
    if value is not None and value < least:
        task.wrong(name, f"must be {least} or more, not {value}")
        return None
    return value  # type: ignore[no-any-return]  # numbers are checked when the options are read


def _put_budget(draft: Draft, task: PhpoTask) -> None:
    trials, parallel = _number(task, "maxPoints", 1), _number(task, "nParallelEvaluation", 1)
    draft.put("budget", "trials", trials, origin="maxPoints" if "maxPoints" in task.options else "phpo's default")
    given = "nParallelEvaluation" in task.options
    draft.put("budget", "parallel", parallel, origin="nParallelEvaluation" if given else "phpo's default")
    if (waiting := _number(task, "minUnevaluatedPoints", 0)) and parallel:
        draft.put(
            "budget", "queued", max(0, waiting - parallel), origin="minUnevaluatedPoints minus the points that run"
        )
    if per_job := _number(task, "maxPointsPerEvaluationJob", 0):
        draft.put("resources", "trials_per_job", per_job, origin="maxPointsPerEvaluationJob")
    if (jobs := _number(task, "maxEvaluationJobs", 1)) is not None and trials:
        attempts = max(1, math.ceil(jobs * (per_job or 1) / trials))
        draft.put("panda", "attempts", attempts, origin="maxEvaluationJobs as attempts of each job")
        message = f"phpo limits the jobs of all points together; here each job has {attempts} attempts"
        task.warn("maxEvaluationJobs", message)


def _put_site(draft: Draft, task: PhpoTask) -> None:
    if task.get("site"):
        file, path = task.source("site")
        put_sites(draft, file, path, [site.strip() for site in task.get("site").split(",")], "site")


def _named_file(task: PhpoTask, option: str) -> ForeignFile | None:
    """Returns the file that an option names, relative to the task or the working directory; None if missing."""
    try:
        name = FilePath(task.get(option)).expanduser()
        path = task.folder / name
        if not path.exists() and name.exists():
            path = name
        if path.exists():
            return ForeignFile.read(path)
        reason = f"there is no file {path}"
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, no such user's home
        reason = f"cannot be a file: {getattr(error, 'strerror', None) or error}: {show(task.get(option))}"
    task.wrong(option, reason)
    return None


def _spaces(task: PhpoTask) -> list[ForeignSpace]:
    """Returns the search space, or the spaces of all segments in their order."""
    if not task.get("searchSpaceFile"):
        task.wrong("searchSpaceFile", "is missing: it names the file with the search space")
        return []
    file = _named_file(task, "searchSpaceFile")
    if file is None:
        return []
    spaces: list[ForeignSpace] = []
    library = library_of_steering(task.get("steeringExec", ""))
    if not file.problems:
        if not isinstance(file.value, list):
            spaces.append(read_space(file, (), file.value, library))
        elif "segmentSpecFile" not in task.options:
            file.wrong((), "is a list of spaces, which needs segments: segmentSpecFile")
        else:
            spaces = _listed_spaces(file, file.value, library)
    task.source("searchSpaceFile")[0].join(file)
    return spaces if not file.problems else []


def _listed_spaces(file: ForeignFile, items: list[Any], library: str | None) -> list[ForeignSpace]:
    found: dict[int, ForeignSpace] = {}
    for index, item in enumerate(items):
        path: FieldPath = (index,)
        if isinstance(item, dict) and "search_space" in item:
            number = item.get("model_id", index)
            if isinstance(number, bool) or not isinstance(number, int) or number in found:
                file.wrong((*path, "model_id"), f"must be a number that no other space has, not {show(number)}")
                continue
            found[number] = read_space(file, (*path, "search_space"), item["search_space"], library)
        else:
            found[index] = read_space(file, path, item, library)
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
            file.wrong((index, "name"), f"{name!r} is also the name of another segment")
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
        draft.put("segments", segments, origin="segmentSpecFile; the budget counts for each of them")


def _inputs(file: ForeignFile, index: int, segment: dict[str, Any], training: str | None) -> dict[str, Any]:
    """Returns the inputs of a segment: files or whole data sets of the training data set."""
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


#: Options with a number, and their defaults.
NUMBERS: dict[str, int | None] = {
    "nParallelEvaluation": 1,
    "maxPoints": 10,
    "maxEvaluationJobs": None,
    "maxPointsPerEvaluationJob": None,
    "nPointsPerIteration": 2,
    "minUnevaluatedPoints": None,
    "checkPointInterval": None,
}

#: Options with a text.
TEXTS = (
    *("loadJson", "dumpJson", "steeringContainer", "steeringExec", "searchSpaceFile", "segmentSpecFile"),
    *("evaluationContainer", "evaluationExec", "evaluationInput", "evaluationOutput", "evaluationTrainingData"),
    *("evaluationMeta", "evaluationMetrics", "checkPointToSave", "checkPointToLoad", "alrbArgs", "architecture"),
    *("trainingDS", "outDS", "site", "workingGroup", "vomsRoles"),
)

#: Options without a value.
FLAGS = ("version", "verbose", "official", "noSubmit", "python3", "noEmail", "intrSrv")

#: Options whose spelling on the command line differs from their name.
_SPELT = {"verbose": ("-v",), "python3": ("-3",), "vomsRoles": ("--voms",)}


@dataclass
class PhpoTask:
    """The options of a phpo task, with the place of each.

    Attributes:
        options: the given options by name.
        folder: relative file names start here.
    """

    folder: FilePath
    options: dict[str, Any] = field(default_factory=dict)
    _files: dict[str, ForeignFile] = field(default_factory=dict)
    _own: ForeignFile | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of an option."""
        return self.options.get(name, default)

    def source(self, name: str) -> tuple[ForeignFile, FieldPath]:
        """Returns the file that has the option, and its place there."""
        file = self._files.get(name) or self._own
        assert file is not None
        return file, (name,) if name in self._files else ()

    def take(self, file: ForeignFile, values: dict[str, Any]) -> None:
        """Adds the options of a file; they replace options added before, as in phpo."""
        self._own = self._own or file
        for name, value in values.items():
            if name in self.options and self.options[name] != value:
                before = show(self.options[name])
                file.warn((name,), f"replaces {before} of the command line, as in phpo: it is not {before}")
            self.options[name] = value
            self._files[name] = file

    def wrong(self, name: str, message: str, hint: str = "") -> None:
        """Records a mistake of an option."""
        file, path = self.source(name)
        file.wrong(path, message if path else f"{name}: {message}", hint)

    def warn(self, name: str, message: str, hint: str = "") -> None:
        """Records that an option is dropped or changed."""
        file, path = self.source(name)
        file.warn(path, message if path else f"{name}: {message}", hint)

    def files(self) -> list[ForeignFile]:
        """Returns all files with options."""
        found = [self._own, *self._files.values()]
        return list({id(file): file for file in found if file is not None}.values())


def read_phpo(path: FilePath | None, arguments: Sequence[str]) -> PhpoTask:
    """Reads a phpo task from a file of its options, a file with a command, or the words of a command.

    Raises:
        InputError: there is neither a file nor a command, or the command is not a valid phpo command.
    """
    if path is None and not arguments:
        raise InputError(
            "no task is given: name a --loadJson file or a file with the phpo command, or give the command after --"
        )
    folder = path.parent if path else FilePath()
    task = PhpoTask(folder)
    if path is not None:
        command = _command_in(path)
        if command is None:
            file = ForeignFile.read(path)
            task.take(file, _checked(file, file.value))
        else:
            words, places = command
            _take_command(task, words, ForeignFile(places, folder))
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
    """Returns the options of a `--loadJson` file; unknown ones are ignored with a warning, as in phpo."""
    if file.problems or (found := file.mapping((), value, "must be a mapping: phpo's options")) is None:
        return {}
    known, options = [*NUMBERS, *TEXTS, *FLAGS], {}
    for name, given in found.items():
        item = given
        if name not in known:
            near = closest(name, [option for option in known if option not in found])
            file.warn((name,), "is not an option of phpo, and phpo ignores it", f"did you mean {near}?" if near else "")
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


def _places(file: str, text: str) -> Document:
    """Returns the places of the options in a file with a phpo command, which may be a script with other lines."""
    document = Document(file, {})
    for name in (*NUMBERS, *TEXTS, *FLAGS):
        spelt = _SPELT.get(name, (f"--{name}",))[0]
        if found := re.search(rf"(?<!\S){re.escape(spelt)}(?=[\s=]|$)", text):
            before = text[: found.start()].split("\n")
            document.values[(name,)] = Mark(len(before), len(before[-1]) + 1)
    document.values[()] = Mark(1, 1)
    return document


def _command_in(path: FilePath) -> tuple[list[str], Document] | None:
    """Returns the words of the phpo command in a file and the places of its options; None: there is no command."""
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
                return words[index + 1 :], _places(str(path), text)
    return None


#: Units of the shell's syntax: quoted text, a comment, or (the group) a command substitution.
_SUBSTITUTION = re.compile(
    r"""'[^']*'|"(?:\\.|[^"\\])*"|(?<!\S)\#[^\n]*|\\.|(?P<command>\$\([^()]*\)|`[^`]*`)""", re.DOTALL
)


def _one_word(found: re.Match[str]) -> str:
    """Quotes a command substitution such as `$(date +%s)`, so that it stays one word; it is never run."""
    command = found["command"]
    return shlex.quote(command) if command else found[0]


def _lines(text: str) -> Iterator[str]:
    """Yields the lines of a shell script; continued and quoted lines are joined."""
    line = ""
    for part in text.replace("\\\n", " ").split("\n"):
        line = f"{line}\n{part}" if line else part
        try:
            shlex.split(line, comments=True)
        except ValueError:
            continue  # a quote is open
        yield line
        line = ""
