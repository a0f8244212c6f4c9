"""Keeping as many allocations as there is work for: `hpo-pilot pilots keep`."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.hpc.allocations import Fleet, new_name, room_for_more
from hpo_pilot.hpc.batch_system import Allocation, AllocationSpec, BatchState, walltime_text
from hpo_pilot.jobs import JobNeeds

log = logging.getLogger(__name__)

#: So many in a row that fail so soon after their start, in seconds: then something is wrong that more would not mend.
_FAILURES = 3
_SOON = 120.0


@dataclass(frozen=True)
class WaitingJobs:
    """Jobs that wait for a pilot, all alike.

    Attributes:
        jobs: how many.
        needs: of each; None: the server does not tell.
    """

    jobs: int
    needs: JobNeeds | None = None


@dataclass(frozen=True)
class Demand:
    """The jobs of a PanDA queue.

    Attributes:
        waiting: for a pilot, by what they need.
        going: at pilots, or on their way there.
    """

    waiting: tuple[WaitingJobs, ...]
    going: int


@dataclass(frozen=True)
class KeeperSettings:
    """What is to be kept.

    Attributes:
        server: the PanDA server.
        panda_queue: whose jobs are looked at.
        site: where allocations are submitted; those of other sites have keepers of their own.
        max_nodes: of all allocations together, those that wait included.
        room: how many jobs of needs that are not known an allocation is taken to run side by side. Too many only makes
            for a slower start: as long as jobs wait, further allocations follow those that have started.
        idle: after so many seconds without any job, or with none that allocations take, they are cancelled: such as
            have not started, and those whose pilots only wait.
        settle: how long an allocation that has just started is taken to have room for jobs that wait, in seconds.
    """

    server: str
    panda_queue: str
    site: str
    max_nodes: int
    room: int
    idle: float = 300.0
    settle: float = 60.0


class Keeper:
    """Submits and cancels, a look at a time. What it submitted in an earlier life it knows by the fleet's book."""

    def __init__(
        self,
        fleet: Fleet,
        keeping: KeeperSettings,
        plan: Callable[[str], AllocationSpec],
        demand: Callable[[], Demand],
        *,
        at_once: Callable[[AllocationSpec, JobNeeds], int],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Looks at nothing yet.

        Args:
            fleet: the work folder's allocations.
            keeping: what is to be kept.
            plan: the next allocation, under the name that it is given.
            demand: asks the PanDA server.
            at_once: how many such jobs an allocation runs side by side, 0: it never can.
            tell: is told of each change, a line for people.
            clock: seconds since the epoch.
        """
        self._fleet = fleet
        self._keeping = keeping
        self._plan = plan
        self._demand = demand
        self._at_once = at_once
        self._said = ""  # of jobs that no allocation runs
        self._tell = tell
        self._clock = clock
        self._began = self._worked = clock()
        self._stuck: float | None = None  # since when running allocations have taken no job

    def run(self, stop: threading.Event, interval: float) -> None:
        """Looks again and again until `stop` is set; leaves all allocations as they are then.

        Args:
            stop: ends it.
            interval: seconds between looks.

        Raises:
            InputError: an allocation is refused, and would be again.
            GiveUpError: allocations fail as soon as they have started, or take none of the jobs that wait.
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
        """Looks once at work and allocations, and submits or cancels what is due.

        Raises:
            InputError: an allocation is refused, and would be again.
            TryAgainError: the server or the batch system does not answer.
            GiveUpError: allocations fail as soon as they have started, or take none of the jobs that wait.
        """
        demand, now = self._demand(), self._clock()
        waiting, wanted = self._wanted(demand)
        # Before anything is asked for: what an earlier process may have submitted is known then.
        kept = [one for one in self._fleet.refresh() if self._is_ours(one)]
        self._check_failures(kept)
        ours = [one for one in kept if not one.is_over]
        if waiting or demand.going:
            self._worked = now
        elif now - self._worked >= self._keeping.idle:
            self._cancel(ours, "no work is left")
            return
        if not self._is_stuck(waiting, demand.going, ours, now):
            self._submit(waiting, wanted, ours, now)

    def _wanted(self, demand: Demand) -> tuple[int, float]:
        """How many jobs wait that allocations could run, and how many allocations would run all of them at once."""
        spec, jobs, allocations, never = self._plan(new_name()), 0, 0.0, []
        for one in demand.waiting:
            room = self._keeping.room if one.needs is None else self._at_once(spec, one.needs)
            if room:
                jobs += one.jobs
                allocations += one.jobs / room
            else:
                never.append(f"{one.jobs} of {_needs_text(one.needs)}")
        said = ""
        if never:
            said = (
                f"for some jobs that wait no allocation of {spec.nodes} nodes for {walltime_text(spec.minutes)} is "
                f"submitted, for none could run them: {', '.join(never)}"
            )
        if said and said != self._said:
            self._tell(said)
        self._said = said
        return jobs, allocations

    def _is_ours(self, one: Allocation) -> bool:
        keeping = self._keeping
        return one.kept and (one.server, one.panda_queue, one.site) == (
            keeping.server,
            keeping.panda_queue,
            keeping.site,
        )

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
        """Whether allocations have run for a while and taken none of the jobs that wait, as more would not either."""
        if not waiting or going or all(self._is_fresh(one, now) for one in ours):
            self._stuck = None
            return False
        if self._stuck is None:
            self._stuck = now
            self._tell(f"{waiting} jobs wait and no allocation takes any")
        elif now - self._stuck >= self._keeping.idle:
            self._cancel(ours, "no allocation takes a job")
            raise GiveUpError(
                f"{waiting} jobs wait in {self._keeping.panda_queue}, and allocations that run take none of "
                "them: see their output.log; jobs may want more --nodes, GPUs or time than one has"
            )
        return True

    def _cancel(self, ours: list[Allocation], why: str) -> None:
        # One that has just started may not have told its server yet.
        idle = [one for one in ours if one.started is None or self._clock() - one.started >= self._keeping.settle]
        if idle:
            self._fleet.cancel([one.name for one in idle])
            self._tell(f"{why}: cancelled {', '.join(one.name for one in idle)}")

    def _submit(self, waiting: int, allocations: float, ours: list[Allocation], now: float) -> None:
        keeping = self._keeping
        wanted = math.ceil(round(allocations, 6)) - sum(self._is_fresh(one, now) for one in ours)
        nodes = sum(one.nodes for one in ours)
        while wanted > 0:
            spec = self._plan(new_name())
            if nodes + spec.nodes > keeping.max_nodes:
                return
            if room_for_more(spec, self._fleet.jobs(spec)) == 0:
                log.info("the queue takes no more jobs now")
                return
            done = self._fleet.submit(spec, server=keeping.server, panda_queue=keeping.panda_queue, kept=True)
            self._tell(f"{waiting} jobs wait: submitted {done.name}, {done.nodes} nodes, as job {done.job_id}")
            nodes += spec.nodes
            wanted -= 1

    def _is_fresh(self, one: Allocation, now: float) -> bool:
        """Whether it has taken no jobs yet: it waits for its nodes, or has only just got them."""
        if one.state is not BatchState.RUNNING or one.started is None:
            return True
        return now - one.started < self._keeping.settle


def _needs_text(needs: JobNeeds | None) -> str:
    if needs is None:
        return "needs that are not known"
    gpus = f", {needs.gpus_per_node} GPUs" if needs.gpus_per_node else ""
    return f"{needs.nodes} nodes with {needs.cores} cores{gpus} and {needs.memory_mb} MB for {needs.minutes:g} minutes"
