"""The parameters in a payload's command, as `{learning_rate}`, and the mistakes in them."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hpo_pilot.search.mistakes import Mistake, closest, did_you_mean, listing
from hpo_pilot.search.parameters import Dimension
from hpo_pilot.search.payload import Payload

if TYPE_CHECKING:
    from hpo_pilot.search.search import Search

#: The word in braces that stands for all active parameters, as overrides of Hydra.
HYDRA = "hydra"

_WORD = r"[A-Za-z_][\w.-]*"
_FLAG = r"--?\w[\w.-]*=?"
#: After `$` a brace is the shell's.
_OPEN = r"(?<![$\\{])\{"
#: Comments, parts in quotes, and escaped characters of a command.
_QUOTED = re.compile(r"""(?s)(?<!\S)#[^\n]*|'[^']*'|"(?:\\.|[^"\\])*"|\\.""")
_VARIABLE = re.compile(rf"\$\{{({_WORD})\}}")
#: Keys of Hydra's overrides: https://hydra.cc/docs/advanced/override_grammar/basic/
_HYDRA_KEY = re.compile(rf"\+{{0,2}}{_WORD}([/@:]{_WORD})*")


def placeholders(command: str, names: Collection[str]) -> str | None:
    """Returns the pattern of the parameters in a command for the runner; None: the command has none.

    Args:
        command: `payload.command`.
        names: keys of the payload's input file.
    """
    known = "|".join(map(re.escape, (*names, HYDRA)))
    pattern = rf"{_OPEN}(?:\{{({known}|{_WORD})\}}|(?:({_FLAG}):)?({known}))\}}"
    return pattern if re.search(pattern, command) else None


@cache
def _runner() -> Mapping[str, Any]:
    return runpy.run_path(str(files("hpo_pilot") / "runner" / "hpo_pilot_command.py"))


def filled_command(search: Search, point: Mapping[str, Any], fold: int = 0, level: float | None = None) -> str:
    """Returns the command of a fold as a shell gets it: the runner's `prepare` makes the same of it."""
    command = search.payload.command.replace("%FOLDS", str(search.folds.k)).replace("%FOLD", str(fold))
    if search.segment:
        command = command.replace("%SEGMENT_NAME", shlex.quote(search.segment))
    if (pattern := placeholders(command, list(search.payload_point(dict.fromkeys(search.space.names))))) is not None:
        command = _runner()["fill"](command, pattern, search.payload_point(point, level))
    return command


def command_mistakes(
    payload: Payload, dimensions: Mapping[str, Dimension], levels: Collection[str] = ()
) -> Iterator[tuple[Mistake, bool]]:
    """Yields mistakes in the parameters of a command, and whether each is an error, not a note.

    Args:
        payload: the payload; the paths of the mistakes start at its keys.
        dimensions: the parameters of the space.
        levels: the name of the levels of the training.
    """
    command = payload.command
    if any(payload.point.mistakes(dimensions)):
        return
    names = [*payload.point.payload_point(dict.fromkeys(dimensions)), *levels]
    quoted = [part.span() for part in _QUOTED.finditer(command) if part[0][0] in "'\""]
    used: set[str | None] = {None}
    words = "|".join([*map(re.escape, names), _WORD])
    likely = rf"{_OPEN}\s*(?:({_FLAG})\s*(?::\s*|(?=\}})))?({words})?\s*([:!][^{{}}\n]*)?\}}"
    for found in re.finditer(likely, command):
        (flag, word, rest), text = found.groups(), found[0]
        is_quoted = any(begin < found.start() < end for begin, end in quoted)
        exact = text in (f"{{{word}}}", f"{{{flag}:{word}}}") and (word in names or (word == HYDRA and not flag))
        used.add(word if exact else None)
        near = closest(word, [*names, HYDRA]) if word else None
        wrong, hint = "", ""
        if exact and is_quoted:
            wrong = "is in quotes, and its value is quoted already"
            hint = f"close the quotes before it, or write {{{text}}} for the text itself"
        elif exact and not flag and word in dimensions and dimensions[word].when:
            wrong = "is not in every point (when)"
            hint = f"write {{--{word}:{word}}}: the flag with its value, or nothing"
        elif exact or (not word and not flag):
            continue
        elif flag and not word:
            wrong, hint = "names no parameter", f"as in {{{flag}:{names[0]}}}"
        elif word == HYDRA and flag:
            wrong, hint = "has no flag: it stands for all parameters", "write {hydra}"
        elif word in names or (word == HYDRA and not is_quoted):
            wrong, hint = "is not written as a parameter", f"write {{{word}}}, or {{--{word}:{word}}} with its flag"
        elif flag:
            wrong, hint = f"{word} is not a parameter of the space", did_you_mean(word, names)
        elif not rest and (near or not is_quoted):
            wrong = f"{word} is not a parameter of the space"
            hint = f"{f'did you mean {{{near}}}? ' if near else ''}{{{text}}} is the text itself"
        if wrong:
            is_error = exact or bool(flag) or (not is_quoted and (bool(near) or word in names))
            yield Mistake(("command",), f"{text}: {wrong}", hint), is_error
    for found in _VARIABLE.finditer(command):
        if found[1] in names:
            hint = f"the parameter is {{{found[1]}}}"
            yield Mistake(("command",), f"{found[0]} is a variable of the shell", hint), False
    if HYDRA in used - set(names):
        bad = [name for name in names if not _HYDRA_KEY.fullmatch(name)]
        if bad:
            yield Mistake(("command",), f"{{hydra}}: {listing(bad)} cannot be a key of Hydra", "rename it"), True
    elif (unused := [n for n in names if (n in dimensions or n in levels) and n not in used]) and len(used) > 1:
        message = f"has some parameters, and not {listing(unused)}"
        yield Mistake(("command",), message, "the training must read them from input.json"), False
