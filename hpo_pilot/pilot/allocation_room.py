"""An allocation, shared out by a scheduler: jobs of any search and shape, side by side, each on its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.jobs.task import JobNeeds
from hpo_pilot.pilot.allocation import Allocation
from hpo_pilot.pilot.failure import GivenBack, JobFailure, LauncherAway, NodeLost, PilotErrorCode
from hpo_pilot.pilot.gpus import Gpu
from hpo_pilot.pilot.job import Job
from hpo_pilot.pilot.node_health import NodeHealth
from hpo_pilot.pilot.room import Claim, Free, Room, Seat
from hpo_pilot.pilot.site import Site
from hpo_pilot.pilot.starting import Starting
from hpo_pilot.scheduling import Ending, Policy, Scheduler, Start, Usage
from hpo_pilot.scheduling import Job as Planned
from hpo_pilot.transformation.payload_document import PayloadDocument

log = logging.getLogger(__name__)

#: What a job has that names no time limit, in minutes: then it is ended, for others are planned after it.
MINUTES_WITHOUT_LIMIT = 60.0

#: Of no limit of the site's, jobs side by side: each has a thread and a runner on this node.
_MOST = 1000

#: Jobs that wait here at most while more are asked for; those of servers that do not know what a wish is.
_MOST_WAITING = 8

#: Seconds for which an offer stands while jobs run.
_PATIENCE = 1.0

#: Why a node is lost that the batch system says to have taken away.
TAKEN = "the batch system took it away"

_WORD = 30.0  # seconds at most from a node's loss to the launcher's word of it

_LOOK = 2.0  # seconds between looks at whether a job that waits is still wanted

_NOTHING_STARTS = PilotErrorCode.PAYLOAD_EXECUTION_FAILURE


class AllocationClaim(Claim):
    """One job's place.

    Attributes:
        key: PandaID and attempt.
        planned: what the scheduler knows of it; None: its needs are not known yet.
        start: where it runs, once the scheduler has said so.
        failure: why it will not start.
        is_over: nobody waits for its start any more.
        staging: seconds of its time that went into copies, which others of its search will find.
    """

    def __init__(self, key: tuple[Any, Any], search: str) -> None:
        self.key, self.search = key, search
        self.planned: Planned | None = None
        self.start: Start | None = None
        self.failure: JobFailure | None = None
        self.is_over = False
        self.staging = 0.0


class AllocationRoom(Room[AllocationClaim]):
    """The nodes of an allocation.

    What the server hands out is given to the scheduler in the server's order. A wish goes out only when the needs of
    all that came for the one before are known.
    """

    def __init__(
        self,
        allocation: Allocation,
        site: Site,
        *,
        margin: float,
        when_lost: Callable[[int, JobFailure], None],
        is_away: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes an allocation.

        Args:
            allocation: as it is now.
            site: where it is.
            margin: seconds before its end when every job should have ended.
            when_lost: is told the PandaID of each job that lost a node, and why.
            is_away: says whether the launcher starts nothing for now: then nothing is asked for, and what would start
                goes back.
            clock: in seconds.
        """
        self._site, self._clock, self._when_lost, self._is_away = site, clock, when_lost, is_away
        self._names = tuple(node.name for node in allocation.nodes)
        self._shapes = {node.name: node.shape for node in allocation.nodes}
        now = clock()
        self._scheduler = Scheduler(
            allocation.nodes, begins=now, ends=now + allocation.seconds, policy=Policy(margin=margin)
        )
        self.most = site.job_steps or min(_MOST, sum(node.shape.cores for node in allocation.nodes))
        self._up = set(self._names)
        self._keeps_cores = allocation.reclaim is not None
        self._taken: set[str] = set()  # nodes that the batch system took away
        self._held: set[str] = set()  # nodes whose cores it may keep
        self._freed: dict[str, float] = {}  # nodes, by the end of the last job there
        self._health = NodeHealth()
        self.failed_launches = 0  #: so far
        self._claims: dict[Hashable, AllocationClaim] = {}
        self._coming: deque[AllocationClaim] = deque()
        self._changed = threading.Condition()

    # --- what a pilot asks of a room ---

    def wait_for_some(self, stop: threading.Event) -> Free:
        """See Room."""
        with self._changed:
            while True:
                now = self._clock()
                self._decide(now)
                left = self.most - len(self._claims)
                if stop.is_set():
                    return Free(0, 0, ())
                some = self._scheduler.waiting < _MOST_WAITING and not self._is_away()
                if left > 0 and not self._coming and some:
                    wish = self._scheduler.wish(now)
                    if wish.now or wish.later:
                        cores = sum(opening.nodes * opening.cores for opening in wish.now)
                        gpus = max((sum(opening.gpus) for opening in wish.now), default=0)
                        patience = _PATIENCE if self._claims else math.inf
                        return Free(min(left, max(1, cores)), max(1, cores), self._gpus(gpus), patience, wish)
                self._changed.wait(_LOOK)

    def claim(self, data: Mapping[str, Any]) -> AllocationClaim:
        """See Room."""
        claim = AllocationClaim((data.get("PandaID"), data.get("attemptNr")), _search_of(data))
        with self._changed:
            self._claims[claim.key] = claim
            self._coming.append(claim)
        return claim

    def enter(self, claim: AllocationClaim, stop: threading.Event) -> bool:
        """See Room: at once, for only the sandbox says what a job needs."""
        return not stop.is_set()

    def take(self, claim: AllocationClaim, job: Job, document: PayloadDocument, starting: Starting) -> Seat:
        """See Room: waits until the scheduler starts the job."""
        planned = Planned(claim.key, claim.search, self._needs(job, document))
        with self._changed:
            claim.planned = planned
            self._decide(self._clock())
            while claim.start is None and claim.failure is None and not starting.is_over():
                self._changed.wait(_LOOK)
            if starting.failure is not None:
                raise starting.failure
            if claim.failure is not None:
                raise claim.failure
            if claim.start is None or starting.draining.is_set():
                raise GivenBack(PilotErrorCode.SIGTERM, "the allocation was about to end while the job waited")
        return self._seat(planned, claim.start)

    def give_back(self, claim: AllocationClaim, ending: Ending = Ending.FAILED) -> None:
        """See Room."""
        with self._changed:
            claim.is_over = True
            self._claims.pop(claim.key, None)
            if claim in self._coming:
                self._coming.remove(claim)
            if claim.start is not None:
                now = self._clock()
                self._scheduler.ended(claim.key, ending, now, staging=claim.staging)
                self._freed.update((share.node, now) for share in claim.start.shares)
            elif claim.planned is not None and claim.failure is None:
                self._claims[claim.key] = claim  # the scheduler still has it: `_decide` ends it when its turn comes
            self._decide(self._clock())

    def note_launch(self, claim: AllocationClaim, failed: Collection[str] | None, lost: Collection[str] = ()) -> None:
        """See Room: nodes that fail launches again and again are lost."""
        nodes = [share.node for share in claim.start.shares] if claim.start else []
        with self._changed:
            if failed is None:
                self._health.worked(nodes)
                return
            self.failed_launches += 1
            bad = self._health.failed(nodes, failed)
            since = self._clock() - _WORD
        for node in lost:
            self.lose(node, TAKEN, taken_since=since)
        for node in bad:
            self.lose(node, "launches fail there")

    def note_staging(self, claim: AllocationClaim, seconds: float) -> None:
        """See Room."""
        with self._changed:
            claim.staging = seconds

    def wake(self) -> None:
        """See Room."""
        with self._changed:
            self._decide(self._clock())

    # --- what becomes of the allocation ---

    @property
    def is_gone(self) -> bool:
        """Whether all its nodes are lost."""
        return not self._up

    @property
    def up(self) -> frozenset[str]:
        """Its nodes that are of use now."""
        with self._changed:
            return frozenset(self._up - self._held)

    @property
    def held(self) -> list[str]:
        """Its nodes that get no new jobs for now, in the allocation's order."""
        with self._changed:
            return [name for name in self._names if name in self._held]

    @property
    def is_idle(self) -> bool:
        """Whether no job is here, though some could be."""
        with self._changed:
            return not self._claims and not self._is_away()

    @property
    def is_empty(self) -> bool:
        """Whether no job is here."""
        with self._changed:
            return not self._claims

    def drain(self) -> None:
        """Nothing starts any more: what waits is given back."""
        with self._changed:
            self._scheduler.drain()
            self._decide(self._clock())

    def lose(self, node: str, why: str, *, taken_since: float = math.inf) -> None:
        """A node is of no use: it gets no jobs any more, and those on it are ended.

        Args:
            node: its name.
            why: in one line.
            taken_since: where the batch system took it away: when it had it still. A batch system that keeps cores then
                may keep those of nodes where jobs ran since: these get no new jobs until `release`.
        """
        with self._changed:
            if taken_since < math.inf and node not in self._taken:
                self._taken.add(node)
                self._hold(node, taken_since)
            if node not in self._up:
                return
            self._up.discard(node)
            log.warning("node %s gets no more jobs, %d nodes are left: %s", node, len(self._up), why)
            victims = self._scheduler.lose_node(node, self._clock())
            lost = [self._claims[job.key].key[0] for job in victims]
            self._decide(self._clock())
        for panda_id in lost:
            self._when_lost(panda_id, NodeLost(PilotErrorCode.PAYLOAD_EXECUTION_FAILURE, f"node {node} is lost: {why}"))

    def release(self, nodes: Collection[str]) -> None:
        """Nodes that were held are wholly free."""
        with self._changed:
            if free := [name for name in self._names if name in nodes and name in self._held]:
                log.info("%s may get jobs again", _shown(free))
                self._held.difference_update(free)
                self._scheduler.release(free)
                self._decide(self._clock())

    def usage(self) -> Usage:
        """Where its time went so far."""
        with self._changed:
            return self._scheduler.usage(self._clock())

    def counts(self) -> tuple[int, int]:
        """How many jobs run, and how many wait."""
        with self._changed:
            return self._scheduler.running, self._scheduler.waiting

    # --- inside ---

    def _hold(self, lost: str, since: float) -> None:
        """Nodes where jobs run, or ran lately, get no new ones."""
        if not self._keeps_cores:
            return
        used = {share.node for claim in self._claims.values() if claim.start for share in claim.start.shares}
        used |= {node for node, when in self._freed.items() if when >= since}
        if more := [name for name in self._names if name in (used & self._up) - self._held - {lost}]:
            log.info(
                "%s get no new jobs until all that runs there has ended: the batch system may keep cores", _shown(more)
            )
            self._held.update(more)
            self._scheduler.hold(more)

    def _decide(self, now: float) -> None:
        """Lets the scheduler decide; whoever waits is told."""
        while self._coming and (self._coming[0].planned is not None or self._coming[0].is_over):
            claim = self._coming.popleft()
            if claim.planned is not None and not claim.is_over:
                try:
                    self._scheduler.add(claim.planned)
                except InputError as error:
                    claim.failure = JobFailure(PilotErrorCode.PAYLOAD_EXECUTION_FAILURE, str(error))
        again = True
        while again:
            again = False
            for start in self._scheduler.starts(now):
                claim = self._claims[start.job.key]
                if claim.is_over or self._is_away():
                    again = True
                    self._scheduler.ended(claim.key, Ending.CUT, now)
                    if claim.is_over:
                        del self._claims[claim.key]
                    claim.failure = LauncherAway(_NOTHING_STARTS, "the launcher starts nothing here for now")
                else:
                    claim.start = start
        for job in self._scheduler.hand_back(now):
            claim = self._claims[job.key]
            claim.failure = GivenBack(
                PilotErrorCode.SIGTERM, "the job would not end before the allocation does, or its nodes are lost"
            )
            if claim.is_over:
                del self._claims[claim.key]
        self._changed.notify_all()

    def _needs(self, job: Job, document: PayloadDocument) -> JobNeeds:
        """What the job says that it needs; of memory that it does not name it has the share of its cores."""
        least = min((shape.memory_mb // shape.cores for shape in self._shapes.values()), default=1)
        return JobNeeds(
            nodes=document.nodes,
            gpus_per_node=document.gpus or int(job.wants_gpu),
            cores=job.cores,
            memory_mb=job.memory_mb or max(1, least * job.cores),
            minutes=document.minutes or job.walltime / 60 or MINUTES_WITHOUT_LIMIT,
            ranks_per_node=document.ranks_per_node,
        )

    def _seat(self, planned: Planned, start: Start) -> Seat:
        return Seat(
            nodes=tuple(share.node for share in start.shares),
            variables={},
            cores=planned.needs.cores,
            gpus={share.node: tuple(map(str, share.gpus)) for share in start.shares},
            memory_mb=planned.needs.memory_mb,
            allocation=self._names,
            seconds=math.ceil(planned.limit),
        )

    def _gpus(self, count: int) -> tuple[Gpu, ...]:
        vendor = {"nvidia": "NVIDIA", "amd": "AMD"}.get(self._site.gpu_kind, "NVIDIA")
        memory = str(self._site.gpu_memory_mb or "")
        return tuple(Gpu(str(number), vendor, self._site.gpu_model, memory) for number in range(count))


def _shown(nodes: Sequence[str]) -> str:
    return f"{len(nodes)} nodes ({', '.join(nodes[:8])}{', ...' if len(nodes) > 8 else ''})"


def _search_of(data: Mapping[str, Any]) -> str:
    """Whose run times the job's is like: its search, or else all jobs with its sandbox."""
    words = str(data.get("jobPars") or "").split()
    archive = words[words.index("-a") + 1] if "-a" in words[:-1] else ""
    return str(data.get("hpoCampaign") or archive or data.get("taskID") or "")
