"""phpo's options, from its command line and from its `--loadJson` files.

The names, types and defaults are those of panda-client 2.2.0 (`pandaclient/PhpoScript.py`).
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NoReturn

from hpo_pilot.config.foreign.foreign_file import ForeignFile
from hpo_pilot.config.yaml_document import Document, Mark
from hpo_pilot.errors import InputError
from hpo_pilot.search.misfit import Path, closest
from hpo_pilot.search.point import show

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

    def source(self, name: str) -> tuple[ForeignFile, Path]:
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
