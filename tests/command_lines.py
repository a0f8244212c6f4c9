"""Compares a launcher's command line with one that a facility's document prints.

Words are compared as sets of options with their values, however they are spelt (-n4, -n 4). Where a document has a
batch script, the words of its `#SBATCH` lines that make the shape, and `SLURM_CPU_BIND`, stand on the line as options
of srun, which takes them from there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from hpo_pilot.hpc.launchers import Launcher, Placement, make_launcher
from hpo_pilot.hpc.site_files import load_site

SITES = Path(__file__).parents[1] / "deploy" / "sites"

#: Options without a value.
_FLAGS = {"--exact", "--exclusive", "--no-python", "--standalone", "--unbuffered", "--label"}
_TWO_VALUES = {"-mca"}
_SYNONYMS = {
    "--cpus-per-task": "-c",
    "--tasks-per-node": "--ntasks-per-node",
    "--ppn": "-ppn",
    "-u": "--unbuffered",
    "-l": "--label",
    "-bind-to": "--bind-to",
    "-map-by": "--map-by",
}


def options(words: Sequence[str]) -> set[str]:
    """Each option with its value as one text: "-n 4", "--bind-to none"."""
    found, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        assert word.startswith("-"), f"{word} is no option"
        name, _, value = word.partition("=")
        if attached := re.fullmatch(r"(-[abcdgnrNX])(\d+|packed.*)", word):
            name, value = attached[1], attached[2]
        name = _SYNONYMS.get(name, name)
        if name not in _FLAGS and not value:
            value = " ".join(rest.pop(0) for _ in range(1 + (name in _TWO_VALUES)))
        found.append(f"{name} {value}".strip())
    assert len(set(found)) == len(found), f"an option stands twice: {found}"
    return set(found)


def compare(
    launcher: Launcher | str, where: Placement, document: str, program: str, ours: str = "", theirs: str = ""
) -> None:
    """Asserts that our line for a placement differs from a document's in the words given, and in no other.

    Args:
        launcher: or the name of the site profile that has it.
        where: the document's shape.
        document: its line, with the program at its end.
        program: that program with its arguments.
        ours: what only our line has.
        theirs: what only the document's has.
    """
    if isinstance(launcher, str):
        profile = load_site(SITES / f"{launcher}.yaml")
        launcher = make_launcher(profile.launcher.model_dump(), profile.node.threads_per_core)
    argv = shlex.split(program)
    mine, printed = launcher.command(argv, where), shlex.split(document)
    assert mine[0] == printed[0] == launcher.name
    assert mine[-len(argv) :] == printed[-len(argv) :] == argv
    own, other = options(mine[1 : -len(argv)]), options(printed[1 : -len(argv)])
    assert (own - other, other - own) == (options(shlex.split(ours)), options(shlex.split(theirs)))


def nodes(count: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(1, count + 1))
