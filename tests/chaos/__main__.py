"""``make chaos``: faults drawn by seed on a service, its pilots, disks, networks and databases; then the invariants.

    python -m tests.chaos [--faults N | --seconds S] [--seed S] [--store sqlite|postgresql]

Searches run all the time. After the last fault everything is healed, and the searches must end: every fold with the one
value that its payload has computed, the budget to the trial, and nothing failed. Ends with 1 where something does not
hold. The same seed draws the same faults; the moments at which they meet the processes differ.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.faults import FAULTS, Act, Fault, NothingThereError, begin
from tests.chaos.world import KINDS, SITES, World, do

#: Mean seconds between two faults; and how long after the last one no payload may begin or end.
_PAUSE, _PATIENCE = 2.0, 600.0
#: Seconds in which a pilot that is told to end lets its payloads go on, and then ends them.
_GRACE = 10.0
#: How often a fault is tried that finds nothing to act on, such as a runner between two jobs.
_TRIES = 20


def main() -> int:
    """Runs it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=40, help="number of faults (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="inject for this time instead")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (default: %(default)s)")
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--only", default="", metavar="TEXT", help="only faults with TEXT in their names")
    parser.add_argument("--keep", action="store_true", help="keep the folder, also where all holds")
    parser.add_argument("--isolated", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # not in everybody's
    needed = ("unshare", "nsenter", "ip", "tc", "iptables", "mkfs.ext4", "fsfreeze", "mount")
    if not options.isolated:
        absent = [name for name in needed if not shutil.which(name)] if os.geteuid() == 0 else ["not root"]
        own = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        allowed = not absent and do(*own, "losetup", "-f", check=False).startswith("/dev/")
        if allowed:
            os.execvp(own[0], [*own, sys.executable, "-m", "tests.chaos", *sys.argv[1:], "--isolated"])  # noqa: S606
        print(f"no disks and networks of its own: {', '.join(absent) or 'namespaces or loop devices are not allowed'}")
    amount = f"--seconds {options.seconds:g}" if options.seconds else f"--faults {options.faults}"
    print(f"python -m tests.chaos --seed {options.seed} --store {options.store} {amount}", flush=True)
    root = Path(tempfile.mkdtemp(prefix="hpo-pilot-chaos-"))
    findings = [f"the program itself, see {root}"]
    try:
        findings = Chaos(root, options).run()
    finally:
        if findings or options.keep:
            print(f"everything is in {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    return 1 if findings else 0


@dataclass
class Chaos:
    """One run. `spans`: when each fault began and was healed, in seconds since 1970."""

    root: Path
    options: argparse.Namespace
    spans: list[tuple[float, float, Fault]] = field(default_factory=list)
    nothing: Counter[str] = field(default_factory=Counter)
    over: bool = False

    def run(self) -> list[str]:
        """Injects, heals, waits, checks and reports; returns what does not hold."""
        self.world = World(self.root, isolated=self.options.isolated, postgresql=self.options.store == "postgresql")
        users = threading.Thread(target=self._use, daemon=True)
        try:
            for kind in KINDS:
                self.world.submit(kind)
            users.start()
            try:
                self._inject()
            finally:
                self.over = True
            size, end = 0, 0.0
            while users.is_alive():  # as long as something happens: the machine may be slow
                if (now := self.world.notes.stat().st_size) != size:
                    size, end = now, time.monotonic() + _PATIENCE
                elif time.monotonic() > end:
                    break
                self.world.look()
                time.sleep(0.5)
            return self._report()
        finally:
            self.over = True
            self.world.end()

    def _use(self) -> None:
        """Users: they look at all searches, and submit the next of each kind when one has ended."""
        while True:
            states = self.world.states()
            if states is not None:
                ended = {name for name, state in states.items() if state in ("done", "failed", "stopped")}
                if self.over and ended >= set(self.world.submitted):
                    return
                for kind in KINDS:
                    if not self.over and not {n for n in self.world.submitted if n.startswith(kind)} - ended:
                        self.world.submit(kind)
            time.sleep(2.0)

    def _inject(self) -> None:
        dice = random.Random(self.options.seed)
        has = {self.options.store, *(("isolated",) if self.options.isolated else ())}
        table = [fault for fault in FAULTS if self.options.only in fault.name]
        left = [fault.name for fault in table if fault.needs == "isolated" and fault.needs not in has]
        table = [fault for fault in table if not fault.needs or fault.needs in has]
        if left:
            print(f"left out, since this needs root and Linux: {', '.join(left)}")
        acting: dict[str, tuple[float, Act, Fault, float]] = {}
        waiting: list[Fault] = []
        begun, at = time.monotonic(), time.monotonic() + 8.0
        while True:
            for part, (until, act, fault, since) in list(acting.items()):
                if time.monotonic() >= until:
                    next(act, None)
                    self.spans.append((since, time.time(), fault))
                    del acting[part]
            self.world.look()
            count, now = len(self.spans) + len(acting), time.monotonic()
            limit = self.options.seconds
            if (now - begun > limit) if limit else (count >= self.options.faults):
                if not acting:
                    return
            elif now >= at:
                at = now + dice.expovariate(1.0 / _PAUSE)
                waiting = waiting or dice.sample(table, len(table))  # each of them, before one comes again
                free = [part for part in ("service", *SITES) if part not in acting]
                fit = [fault for fault in waiting if any(part.startswith(fault.part) for part in free)]
                if fit:
                    fault, since = fit[0], time.time()
                    waiting.remove(fault)
                    part = dice.choice([part for part in free if part.startswith(fault.part)])
                    try:
                        act, until = begin(fault, self.world, part, dice)
                    except NothingThereError:
                        self.nothing[fault.name] += 1
                        waiting += [fault] if self.nothing[fault.name] < _TRIES else []  # later
                    else:
                        print(f"{now - begun:6.1f} s  {part}: {fault.name}", flush=True)
                        acting[part] = (until, act, fault, since)
            time.sleep(0.1)

    # --- the invariants ---

    def _report(self) -> list[str]:
        findings = list(self._findings())
        runs = self._runs()
        again = {fold: its for fold, its in runs.items() if len(its) > 1}
        injected = Counter(fault.name for _, _, fault in self.spans)
        width = max(map(len, injected), default=0)
        print("\nfaults injected")
        for name, number in sorted(injected.items()):
            print(f"  {name:{width}} {number:3}")
        print(f"  {'in all':{width}} {injected.total():3}")
        ends = Counter(status for kept in self.world.every for status in kept.statuses)
        lost = sum("lost:" in each for each in findings)
        double = sum("double:" in each for each in findings)
        print(f"ends of service and pilots by status, each started again: {dict(ends)}")
        print(f"searches {len(self.world.submitted)}, commands {len(self.world.answers)}", end="; ")
        print("the slowest: {1}, {0:.0f} s".format(*self.world.slowest))
        print(f"folds {len(runs)}, executions {sum(map(len, runs.values()))}, folds executed again {len(again)}")
        print(f"lost {lost}, double {double}")
        for each in findings:
            print(f"DOES NOT HOLD: {each}")
        return findings

    def _runs(self) -> dict[tuple[str, int, int], list[tuple[float, float | None]]]:
        """Begin and end of each execution, by search, trial and fold; None: it was ended before its end."""
        ends = {(pid, *about): when for what, when, pid, *about in self.world.executions() if what == "end"}
        found = defaultdict(list)
        for what, when, pid, *about in self.world.executions():
            if what == "begin":
                found[tuple(about[:3])].append((when, ends.get((pid, *about))))
        return dict(found)

    def _findings(self) -> list[str]:
        found = [f"{text} (status {code})" for when, code, text in self.world.answers if not self._is_right(when, code)]
        logs = [*self.world.root.glob("*.log"), *self.world.workdir.root.glob("logs/*.log*")]
        found += [f"a traceback in {log.name}" for log in logs if "Traceback" in log.read_text("utf8", "replace")]
        checked = subprocess.run(self.world_command("db", "check"), capture_output=True, text=True, check=False)
        found += [f"db check: {checked.stdout[-2000:]} {checked.stderr[-500:]}"] if checked.returncode else []
        states = self.world.states() or {}
        runs = self._runs()
        if len(self.world.submitted) < len(KINDS):
            found.append(f"only {self.world.submitted} could be submitted")
        for name in self.world.submitted:
            if states.get(name) != "done":
                said = do(*self.world_command("status", name), check=False)
                found.append(f"{name} is {states.get(name)}:\n{said}")
                continue
            found += self._of_search(name, runs)
        for (name, trial, fold), its in runs.items():
            for (begun, ended), (again, _) in itertools.pairwise(its):
                if ended is not None and not self._explained(begun, ended, again):
                    found.append(f"{name} trial {trial} fold {fold}: ran again without cause, {ended:.1f} {again:.1f}")
        return found

    def _of_search(self, name: str, runs: dict[tuple[str, int, int], Any]) -> list[str]:
        kind = KINDS[name.rstrip("0123456789")]
        trials = json.loads(do(*self.world_command("trials", name, "--json")))
        found, folds, budget = [], kind.get("folds", 1), kind["budget"]["trials"]
        points = [trial for trial in trials if not trial.get("continues")]
        if len(points) != budget or sorted(t["number"] for t in trials) != list(range(1, len(trials) + 1)):
            found.append(f"{name}: {len(points)} points, {len(trials)} trials, of a budget of {budget}")
        for trial in trials:
            about = f"{name} trial {trial['number']}"
            if trial["state"] in ("failed", "stopped", "cancelled"):
                found.append(f"{about}: {trial['state']}, {trial}")
                continue
            values = {fold["fold"]: fold["value"] for fold in trial["folds"]}
            if len(values) != len(trial["folds"]):
                found.append(f"double: {about} has {trial['folds']}")
            wanted = {fold: trial["point"]["x"] + fold for fold in range(folds)}
            if values != wanted:
                found.append(f"lost: {about} has {values}, not {wanted}")
            for fold in range(folds):
                if not any(ended for _, ended in runs.get((name, trial["number"], fold), ())):
                    found.append(f"{about} fold {fold}: a value without an execution")
        return found

    def world_command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "hpo_pilot.cli", *words, *self.world.where]

    def _is_right(self, when: float, code: int) -> bool:
        """Whether a command may end so at a time: with status 2 only if the work folder's disk has ended."""
        disks = ("service's disk read-only", "service's disk aborted")
        gone = any(fault.name in disks and since < when and until > when - 180 for since, until, fault in self.spans)
        return code in (0, 3) or (code == 2 and gone)

    def _explained(self, begun: float, ended: float, again: float) -> bool:
        return any(
            (fault.repeats and since < again and until > begun - 1) or (fault.cuts and since < ended < since + _GRACE)
            for since, until, fault in self.spans
        )


if __name__ == "__main__":
    sys.exit(main())
