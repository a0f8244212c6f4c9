"""Keeps as many allocations as the waiting jobs need: `hpo-pilot pilots keep`.

`PilotAccess` asks a PanDA server for its waiting jobs. `AllocationKeeper` compares them with the allocations of the
work folder.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from hpo_pilot.hpc.allocations import AllocationManager, new_name, room_for_more
from hpo_pilot.hpc.batch_system import Allocation, AllocationSpec, BatchState, walltime_text
from hpo_pilot.http import open_session
from hpo_pilot.jobs import JobNeeds, JobState
from hpo_pilot.jobs.resources import gpu_count

log = logging.getLogger(__name__)

#: The keeper gives up if this number of allocations in a row fails within this number of seconds of their start.
_FAILURES = 3
_SOON = 120.0


@dataclass(frozen=True)
class DemandGroup:
    """Jobs with the same needs that wait for a pilot.

    Attributes:
        jobs: number of jobs.
        needs: the needs of each job; None: the server does not tell.
    """

    jobs: int
    needs: JobNeeds | None = None


@dataclass(frozen=True)
class Demand:
    """The jobs of a PanDA queue.

    Attributes:
        waiting: the jobs that wait for a pilot, by their needs.
        going: number of jobs that pilots have, or are getting.
    """

    waiting: tuple[DemandGroup, ...]
    going: int


#: The call of the embedded server, which groups jobs by their needs; and the call that every PanDA server has.
_DEMAND, _STATISTICS = "hpo_pilot/demand", "statistics/active_job_stats_by_site"
_SECONDS = 60.0


@dataclass(frozen=True)
class PilotAccess:
    """The PanDA server and the queue of pilots on other machines, and their token.

    Attributes:
        server: URL of the server.
        queue: the PanDA queue that the pilots serve.
        token_file: file with a pilot's token, read at every call.
        ca: PEM file of the server's certificate authorities; None: the system's.
        vo: the virtual organisation of the token.
        site: name of the pilots' site profile.
    """

    server: str
    queue: str
    token_file: Path
    ca: Path | None
    vo: str
    site: str

    def demand(self) -> Demand:
        """Returns the jobs that wait and that these pilots may take, and the running jobs.

        Raises:
            InputError: the token cannot be read, or is refused.
            TryAgainError: the server does not answer properly.
        """
        try:
            token = self.token_file.read_text().strip()
        except OSError as error:
            raise InputError(f"--token-file {self.token_file}: {error.strerror}") from error
        headers = {"Authorization": f"Bearer {token}", "Origin": self.vo}
        try:
            with open_session(self.server, self.ca) as session:
                return self._ask(session, headers)
        except (requests.RequestException, ValueError, LookupError, TypeError, AttributeError) as error:
            raise TryAgainError(f"the server {self.server} does not report its jobs: {error}") from error

    def _ask(self, session: requests.Session, headers: Mapping[str, str]) -> Demand:
        url, parameters = f"{self.server}/api/v1", {"queue": self.queue}
        answer = session.get(f"{url}/{_DEMAND}", params=parameters, headers=headers, timeout=_SECONDS)
        if answer.status_code == 404:  # not an embedded server
            answer = session.get(f"{url}/{_STATISTICS}", headers=headers, timeout=_SECONDS)
            return _counted(self._data(answer).get(self.queue, {}))
        data = self._data(answer)
        ours = [shape for shape in data["waiting"] if shape.get("site", "") in ("", self.site)]
        return Demand(tuple(map(_waiting, ours)), int(data["going"]))

    def _data(self, answer: requests.Response) -> dict[str, Any]:
        if answer.status_code in (401, 403):
            raise InputError(f"the server {self.server} refuses the token of {self.token_file}")
        answer.raise_for_status()
        data: dict[str, Any] = answer.json()["data"]
        return data


def _waiting(shape: Mapping[str, Any]) -> DemandGroup:
    needs = JobNeeds(
        nodes=int(shape["nodes"]),
        gpus_per_node=gpu_count(int(shape["gpus"]), int(shape.get("gpu_share", 1))),
        cores=max(1, int(shape["cores"])),
        memory_mb=int(shape["memory_mb"]),
        minutes=float(shape["minutes"]),
        checkpoints=bool(shape.get("checkpoints")),
    )
    return DemandGroup(int(shape["jobs"]), needs)


def _counted(states: Mapping[str, int]) -> Demand:
    waiting = int(states.get(JobState.ACTIVATED, 0))
    going = sum(int(count) for state, count in states.items() if _is_going(state))
    return Demand((DemandGroup(waiting),) if waiting else (), going)


def _is_going(state: str) -> bool:
    """Returns True if jobs in this state are at a pilot or are being sent to one."""
    if state in (JobState.DEFINED, JobState.ACTIVATED):
        return False
    return state not in set(JobState) or not JobState(state).is_over  # Real servers have more states.


@dataclass(frozen=True)
class KeeperSettings:
    """The settings of a keeper.

    Attributes:
        server: the PanDA server.
        panda_queue: the PanDA queue with the jobs.
        site: the site of the allocations; other sites have keepers of their own.
        max_nodes: most nodes of all allocations together, waiting ones included.
        room: the number of jobs that an allocation is assumed to run side by side, for jobs with unknown needs. A
            number too large only slows the start: while jobs wait, further allocations follow after these have started.
        idle: after this many seconds without jobs, or with jobs that no allocation takes, the allocations are
            cancelled: allocations that have not started, and allocations whose pilots only wait.
        settle: for this many seconds after its start, an allocation is assumed to have room for waiting jobs.
    """

    server: str
    panda_queue: str
    site: str
    max_nodes: int
    room: int
    idle: float = 300.0
    settle: float = 60.0


class AllocationKeeper:
    """Submits and cancels allocations in each round. The work folder has the allocations of earlier keepers."""

    def __init__(
        self,
        manager: AllocationManager,
        settings: KeeperSettings,
        plan: Callable[[str], AllocationSpec],
        demand: Callable[[], Demand],
        *,
        at_once: Callable[[AllocationSpec, JobNeeds], int],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Asks and submits nothing yet.

        Args:
            manager: the allocations of the work folder.
            settings: the settings.
            plan: returns the next allocation, with the given name.
            demand: asks the PanDA server for its jobs.
            at_once: returns how many such jobs an allocation runs side by side; 0: it can run none.
            tell: gets a line for the user at each change.
            clock: seconds since the epoch.
        """
        self._manager = manager
        self._settings = settings
        self._plan = plan
        self._demand = demand
        self._at_once = at_once
        self._said = ""  # the last message about jobs that no allocation can run
        self._tell = tell
        self._clock = clock
        self._began = self._worked = clock()
        self._stuck: float | None = None  # since when running allocations have taken no job

    def run(self, stop: threading.Event, interval: float) -> None:
        """Looks repeatedly until `stop` is set, and then leaves all allocations as they are.

        Args:
            stop: ends the loop.
            interval: seconds between looks.

        Raises:
            InputError: an allocation is refused, and would be refused again.
            GiveUpError: allocations fail soon after their start, or take none of the waiting jobs.
        """
        trouble = False
        while not stop.is_set():
            try:
                self.look()
                if trouble:
                    self._tell("it goes on")
                trouble = False
            except TryAgainError as error:
                if not trouble:
                    self._tell(f"not now: {error}")
                trouble = True
            stop.wait(interval)

    def look(self) -> None:
        """Looks once at jobs and allocations, and submits or cancels allocations as needed.

        Raises:
            InputError: an allocation is refused, and would be refused again.
            TryAgainError: the server or the batch system does not answer.
            GiveUpError: allocations fail soon after their start, or take none of the waiting jobs.
        """
        demand, now = self._demand(), self._clock()
        waiting, wanted = self._wanted(demand)
        # First of all: this finds what an earlier process may have submitted.
        kept = [one for one in self._manager.refresh() if self._is_ours(one)]
        self._check_failures(kept)
        ours = [one for one in kept if not one.is_over]
        if waiting or demand.going:
            self._worked = now
        elif now - self._worked >= self._settings.idle:
            self._cancel(ours, "no work is left")
            return
        if not self._is_stuck(waiting, demand.going, ours, now):
            self._submit(waiting, wanted, ours, now)

    def _wanted(self, demand: Demand) -> tuple[int, float]:
        """Returns the number of waiting jobs that allocations could run, and of allocations to run them all at once."""
        spec, jobs, allocations, never = self._plan(new_name()), 0, 0.0, []
        for one in demand.waiting:
            room = self._settings.room if one.needs is None else self._at_once(spec, one.needs)
            if room:
                jobs += one.jobs
                allocations += one.jobs / room
            else:
                never.append(f"{one.jobs} of {_needs_text(one.needs)}")
        said = ""
        if never:
            said = (
                f"some waiting jobs do not fit into an allocation of {spec.nodes} nodes for "
                f"{walltime_text(spec.minutes)}, so none is submitted for them: {', '.join(never)}; give more --nodes "
                "or a longer --walltime"
            )
        if said and said != self._said:
            self._tell(said)
        self._said = said
        return jobs, allocations

    def _is_ours(self, one: Allocation) -> bool:
        asked = self._settings
        return one.kept and (one.server, one.panda_queue, one.site) == (asked.server, asked.panda_queue, asked.site)

    def _check_failures(self, kept: list[Allocation]) -> None:
        last = [one for one in kept if one.submitted >= self._began and one.is_over][-_FAILURES:]
        if len(last) == _FAILURES and all(
            one.state is BatchState.FAILED and one.changed - (one.started or one.changed) < _SOON for one in last
        ):
            raise GiveUpError(
                f"the last {_FAILURES} allocations failed as soon as they had started ({last[-1].reason}): see "
                f"{last[-1].output}"
            )

    def _is_stuck(self, waiting: int, going: int, ours: list[Allocation], now: float) -> bool:
        """Returns True if allocations have run for a while and taken no waiting job: more of them would not help."""
        if not waiting or going or all(self._is_fresh(one, now) for one in ours):
            self._stuck = None
            return False
        if self._stuck is None:
            self._stuck = now
            self._tell(f"{waiting} jobs wait and no allocation takes any")
        elif now - self._stuck >= self._settings.idle:
            self._cancel(ours, "no allocation takes a job")
            raise GiveUpError(
                f"{waiting} jobs wait in {self._settings.panda_queue}, and the running allocations take none of them: "
                "see their output.log; the jobs may need more --nodes, GPUs or time than an allocation has"
            )
        return True

    def _cancel(self, ours: list[Allocation], why: str) -> None:
        # The pilot of an allocation that has just started may not have called the server yet.
        idle = [one for one in ours if one.started is None or self._clock() - one.started >= self._settings.settle]
        if idle:
            self._manager.cancel([one.name for one in idle])
            self._tell(f"{why}: cancelled {', '.join(one.name for one in idle)}")

    def _submit(self, waiting: int, allocations: float, ours: list[Allocation], now: float) -> None:
        settings = self._settings
        wanted = math.ceil(round(allocations, 6)) - sum(self._is_fresh(one, now) for one in ours)
        nodes = sum(one.nodes for one in ours)
        while wanted > 0:
            spec = self._plan(new_name())
            if nodes + spec.nodes > settings.max_nodes:
                return
            if room_for_more(spec, self._manager.jobs(spec)) == 0:
                log.info("the queue takes no more jobs now")
                return
            done = self._manager.submit(spec, server=settings.server, panda_queue=settings.panda_queue, kept=True)
            self._tell(f"{waiting} jobs wait: submitted {done.name}, {done.nodes} nodes, as job {done.job_id}")
            nodes += spec.nodes
            wanted -= 1

    def _is_fresh(self, one: Allocation, now: float) -> bool:
        """Returns True if the allocation has no jobs yet: it waits for its nodes, or has just got them."""
        if one.state is not BatchState.RUNNING or one.started is None:
            return True
        return now - one.started < self._settings.settle


def _needs_text(needs: JobNeeds | None) -> str:
    if needs is None:
        return "needs that are not known"
    gpus = f", {needs.gpus_per_node} GPUs" if needs.gpus_per_node else ""
    return f"{needs.nodes} nodes with {needs.cores} cores{gpus} and {needs.memory_mb} MB for {needs.minutes:g} minutes"
