"""``python -m tests.performance optimizers``: runs what is missing, then the tables and the figures.

A run that is stored already, of the same version of its runner and of its problem, is not done again; so the suite may
be stopped at any time and called again. Results are made in build/bench/optimizers/; those of slow peers come with the
repository (see `store`). By default five seeds of both batch settings; the whole table is

    python -m tests.performance optimizers --seeds 20 --setting 8x12 --setting 64x8 --setting async

The public problems are many: ``--suite public --seeds 20 --share 0.05`` takes a stated part of them. There the peers
that cost more than seconds a run take part too, with five seeds at most, if they are installed (the extra bench-peers).

Constraints: this product's optimizers read them and propose nothing else; Optuna's samplers are told what each point
measured; the other peers rank infeasible points last. Nobody is told that a problem is free of noise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.performance.optimizers.problem import SETTINGS
from tests.performance.optimizers.problems import SUITES, problem
from tests.performance.optimizers.public import share_of
from tests.performance.optimizers.run import run
from tests.performance.optimizers.runners import OURS, PEERS, runner_class
from tests.performance.optimizers.store import COMMITTED, FRESH, Store, StoredRun, environment, runner_version
from tests.performance.optimizers.tables import print_setting, write_page

_PAGES = Path("build/bench/optimizers")

#: Runs of these take seconds to minutes each: only their stored results are shown, unless they are named; of public
#: problems they have a few seeds.
_SLOW = ("optuna-gp", "optuna-auto", "smac", "ax", "skopt")
_SLOW_SEEDS = 5

#: Who takes part in the public problems.
_PUBLIC = ("auto", "random", "optuna-tpe", "optuna-gp", "optuna-auto", "smac", "ax", "cmaes")

_QUICK_PROBLEMS = ("branin", "hartmann6", "mixed7", "naval_propulsion")
_SEEDS, _QUICK_SEEDS = 5, 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    group = parser.add_argument_group("optimizers", "what to run and show; each may be given several times")
    group.add_argument("--runner", action="append", metavar="NAME", help=f"of {', '.join((*OURS, *PEERS))}")
    group.add_argument("--problem", action="append", metavar="NAME", help="of the suite, or dev:KIND:INSTANCE")
    group.add_argument("--suite", choices=SUITES, default="table", help="the problems (default: table)")
    group.add_argument("--share", type=float, default=1.0, metavar="PART", help="of each group of the public problems")
    group.add_argument("--setting", action="append", choices=[*SETTINGS, "async"], help="async: both of them")
    group.add_argument("--seeds", type=int, metavar="N", help=f"default {_SEEDS}")
    group.add_argument("--first-seed", type=int, default=0, metavar="N")
    group.add_argument("--against", metavar="NAME", help="compare with this runner (default: auto)")
    group.add_argument("--show", action="store_true", help="run nothing, show what is stored")
    group.add_argument("--keep", action="store_true", help="store with the repository's results")


def measure(*, quick: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing and prints the tables, a setting at a time."""
    chosen = _Choice(quick, options)
    store = Store((FRESH, COMMITTED) if options.keep else (COMMITTED, FRESH))
    if not options.show:
        _run_missing(store, chosen)
    console = Console(width=170, highlight=False)
    figures = {}
    for name in chosen.settings:
        runs = [stored for stored in _current(store, chosen) if stored.setting == name]
        if runs:
            present = [p for p in chosen.problems if any(stored.problem == p for stored in runs)]
            figures[name] = print_setting(console, name, runs, present, chosen.against)
            page = _PAGES / f"{name}.html"
            write_page(page, SETTINGS[name], runs, present)
            console.print(f"figures: {page}")
    _print_origins(console, store, chosen)
    return figures


class _Choice:
    """What the options come to."""

    def __init__(self, quick: bool, options: argparse.Namespace) -> None:
        self.problems: Sequence[str] = options.problem or (
            _QUICK_PROBLEMS if quick and options.suite == "table" else SUITES[options.suite]
        )
        is_public = options.suite == "public"
        if is_public and not options.problem:
            self.problems = share_of(self.problems, 0.01 if quick else options.share)
        asked = options.setting or (["8x12"] if quick or is_public else ["8x12", "64x8"])
        self.settings = [s for s in SETTINGS if s in asked or ("async" in asked and SETTINGS[s].asynchronous)]
        self.seeds = range(
            options.first_seed, options.first_seed + (options.seeds or (_QUICK_SEEDS if quick else _SEEDS))
        )
        self.named: Sequence[str] = options.runner or ()
        self.shown: Sequence[str] = options.runner or (_PUBLIC if is_public else (*OURS, *PEERS))
        self.run: Sequence[str] = options.runner or [r for r in self.shown if is_public or r not in _SLOW]
        self.slow_seeds = _SLOW_SEEDS if is_public else len(self.seeds)
        self.against = options.against or ("auto" if "auto" in OURS else "bayesian")


def _wanted(chosen: _Choice) -> Iterator[tuple[str, str, str, int]]:
    """Seed after seed, so that every problem has some runs before any has all."""
    for seed in chosen.seeds:
        for setting in chosen.settings:
            for name in chosen.problems:
                for runner in chosen.run:
                    if runner not in _SLOW or seed < chosen.seeds.start + chosen.slow_seeds:
                        yield runner, name, setting, seed


def _run_missing(store: Store, chosen: _Choice) -> None:
    told = time.monotonic()
    missing: set[str] = set()
    for runner, name, setting, seed in _wanted(chosen):
        if runner in missing:
            continue
        try:
            _run_one(store, runner, name, setting, seed)
        except ImportError as error:
            print(f"{runner} is left out: {error}")
            missing.add(runner)
        if time.monotonic() - told > 20:
            told = time.monotonic()
            print(f"… {runner} on {name}, {setting}, seed {seed}", flush=True)


def _run_one(store: Store, runner: str, name: str, setting: str, seed: int) -> None:
    """Runs it, unless its result is stored or it cannot run so."""
    cls = runner_class(runner)
    key = (runner, runner_version(runner), name, problem(name).digest, setting, seed)
    if key in store.runs or not cls.takes(problem(name)) or SETTINGS[setting].slots < cls.least_slots:
        return
    if SETTINGS[setting].asynchronous and not cls.asynchronous:
        return
    result = run(runner, name, setting, seed)
    store.add(result, key[1], key[3], SETTINGS[setting].slots, environment(runner))


def _current(store: Store, chosen: _Choice) -> list[StoredRun]:
    return [
        stored
        for stored in store.runs.values()
        if stored.runner in chosen.shown
        and stored.problem in chosen.problems
        and stored.setting in chosen.settings
        and (stored.seed in chosen.seeds or stored.runner not in OURS)  # of peers all that there is
        and stored.version == runner_version(stored.runner)
        and stored.digest == problem(stored.problem).digest
    ]


def _print_origins(console: Console, store: Store, chosen: _Choice) -> None:
    """Versions and machines of what is shown."""
    seen: dict[str, set[str]] = {}
    for stored in _current(store, chosen):
        seen.setdefault(stored.environment, set()).add(stored.runner)
    for name, runners in sorted(seen.items(), key=lambda item: sorted(item[1])):
        about = store.environments[name]
        versions = ", ".join(f"{library} {number}" for library, number in about["libraries"].items())
        console.print(
            f"{', '.join(sorted(runners))}: {versions or 'no library'}; Python {about['python']}, {about['cpu']}"
        )
