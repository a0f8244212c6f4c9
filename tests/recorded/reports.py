"""The ledger's changes on reports of jobs in many orders: lost, late, twice, foreign, cut short, of several points."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from tests.recorded.inside import LedgerHere
from tests.recorded.stage import Stage, part

_SEEDS = 60
_LOOKS = 6


class Search:
    """A search of a few trials whose jobs do as a random generator says."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.folds, self.objectives = self.random.choice([1, 2, 3]), self.random.choice([1, 1, 2])
        trials, size = self.random.choice([2, 4]), self.random.choice([1, 1, 2])
        needed = self.random.randint(1, self.folds)
        self.ledger = LedgerHere(range(1, trials + 1), self.folds, needed, self.objectives)
        members = [(trial, fold) for fold in range(self.folds) for trial in range(1, trials + 1)]
        self.tasks = {1: [members[at : at + size] for at in range(0, len(members), size)]}
        self.said: dict[int, dict[int, tuple[Any, Any]]] = {1: {}}
        self.clock = 1_750_000_000.0

    def story(self) -> list[Any]:
        found: list[Any] = []
        for _ in range(_LOOKS):
            for task, jobs in list(self.tasks.items()):
                self._work(task)
                self.clock += 10
                changes = self.ledger.look(task, jobs, list(self.said[task].values()), self.clock)
                found.append([f"task {task}", changes, self.ledger.missing(task, jobs)])
                self._submit(changes)
            task = max(self.tasks)
            if self.random.random() < 0.5:
                changes = self.ledger.give_up(task, self.tasks[task], self.clock)
                found.append([f"task {task} is over", changes])
                self._submit(changes)
        return found

    def _submit(self, changes: dict[str, Any]) -> None:
        if changes.get("again"):
            number = max(self.tasks) + 1
            self.tasks[number], self.said[number] = [list(job) for job in changes["again"]], {}

    def _work(self, task: int) -> None:
        """Some jobs of a task get further; what is over stays as it was said."""
        for number, job in enumerate(self.tasks[task], 1):
            for attempt in (1, 2):
                panda_id = 1000 * task + 100 * attempt + number
                before = self.said[task].get(panda_id)
                is_over = before is not None and before[0]["jobStatus"] in ("finished", "failed", "cancelled")
                if (
                    attempt == 2
                    and self.said[task].get(panda_id - 100, ({"jobStatus": ""},))[0]["jobStatus"] != "failed"
                ):
                    continue
                if not is_over and self.random.random() < 0.6:
                    state = self.random.choice(["activated", "running", "running", "finished", "finished", "failed"])
                    self.said[task][panda_id] = self._report(panda_id, number, attempt, job, state)

    def _report(self, panda_id: int, number: int, attempt: int, job: list[Any], state: str) -> tuple[Any, Any]:
        description: dict[str, Any] = {"PandaID": panda_id, "jobStatus": state, "attemptNr": attempt}
        description["jobParameters"] = f'-r . -p "python3%20hpo_pilot_runner.py%20--number%20{number}"'
        if state != "activated":
            description |= {"modificationHost": "wn1", "startTime": _moment(self.clock)}
        if state == "running":
            step = self.random.randint(1, 5)
            description["jobMetrics"] = f"hpoStep={step} hpoValue={step / 8}" + (" hpoPast=0:nan" if step > 3 else "")
            if len(job) > 1:
                trial, fold = self.random.choice(job)
                description["jobMetrics"] += f" hpoMember=t{trial}f{fold}"
        if state == "failed":
            description |= {"endTime": _moment(self.clock + 6), "pilotErrorCode": 1305, "pilotErrorDiag": "it died"}
        if state != "finished" or self.random.random() < 0.05:
            return description, None
        description["endTime"] = _moment(self.clock + 8)
        verdicts = [self._verdict(number, attempt, trial, fold, place) for place, (trial, fold) in enumerate(job)]
        if len(job) > 1:
            for verdict in verdicts:
                verdict |= {"metadata": None, "folder": bool(verdict["outputs"]), "ran_in": None}
            return description, {"user_job_metadata": {"hpo_pilot": {"version": 2, "members": verdicts}}}
        return description, {"user_job_metadata": {"mine": 1, "hpo_pilot": verdicts[0]}}

    def _verdict(self, number: int, attempt: int, trial: int, fold: int, place: int) -> dict[str, Any]:
        chance = self.random.random()
        uid = "deadbeef" if chance < 0.03 else LedgerHere.UID
        status = 1 if chance < 0.15 else 2 if chance < 0.25 and place else 0
        values = [self.random.randint(0, 64) / 16 for _ in range(self.objectives)]
        began = self.clock + place
        verdict = {"uid": uid, "generation": 1, "number": number, "attempt": attempt, "trial": trial, "fold": fold}
        verdict |= {"status": status, "value": values[0], "values": values if status == 0 else [None] * len(values)}
        verdict |= {"message": "no good" if status else "", "outputs": ["model"] if chance > 0.7 else [], "node": "wn1"}
        verdict |= {"seconds": 0.75, "started": began, "ended": began + 0.75, "progress": [[1, 0.5], [2, None]]}
        verdict |= {"metrics": {"energy_joules": 2.5} if chance > 0.8 else {}, "log_tail": "bad\n" if status else ""}
        if status == 2:
            verdict |= {"seconds": None, "started": None, "ended": None, "progress": []}
        return verdict


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


@part
def reports(stage: Stage) -> dict[str, Any]:
    """What each look changes, search by search."""
    return {f"search {seed:02}": json.loads(json.dumps(Search(seed).story())) for seed in range(_SEEDS)}
