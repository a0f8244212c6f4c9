"""Whether a site takes an allocation: its bins of walltime, its account rule, its limits of jobs."""

from __future__ import annotations

from collections.abc import Collection

from hpo_pilot.batch.allocation_spec import AllocationSpec
from hpo_pilot.batch.batch_job import BatchJob, BatchState
from hpo_pilot.batch.walltime import hours_and_minutes
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs.site_batch import BatchQueue, JobLimits


def check_shape(spec: AllocationSpec) -> None:
    """Makes sure that the site's rules allow such an allocation; what the profile does not say is not checked.

    Raises:
        InputError: they do not; the message has the rule and what would be allowed.
    """
    site, batch = spec.site, spec.site.batch
    if site.node.count is not None and spec.nodes > site.node.count:
        raise InputError(f"--nodes {spec.nodes}: {site.name} has {site.node.count}")
    if batch.account_required and spec.account_name is None:
        raise InputError(f"{site.name} wants a project to charge: give --account, or set batch.account in its profile")
    queue = queue_of(spec)
    where = f"{site.name}'s queue {spec.queue_name}"
    if (largest := queue.largest) is not None and spec.nodes > largest:
        raise InputError(f"--nodes {spec.nodes}: jobs in {where} have at most {largest}")
    longest = queue.hours(spec.nodes)
    if longest is None or spec.minutes <= round(longest * 60):
        return
    allowed = f"--walltime {hours_and_minutes(round(longest * 60))} at most"
    enough = queue.smallest(spec.nodes, spec.minutes / 60)
    more = f", or --nodes {enough} or more" if enough is not None else ""
    raise InputError(
        f"--walltime {hours_and_minutes(spec.minutes)}: in {where} jobs of {spec.nodes} nodes last "
        f"{hours_and_minutes(round(longest * 60))} at most; give {allowed}{more}"
    )


def check_limits(spec: AllocationSpec, jobs: Collection[BatchJob]) -> None:
    """Makes sure that the queue takes one more job of this user.

    Args:
        spec: the one more.
        jobs: the user's, as `BatchSystem.jobs` has them.

    Raises:
        TryAgainError: not now.
    """
    limits, queued = queue_of(spec).limits, counted(spec, jobs)
    if limits.queued is not None and sum(queued.values()) >= limits.queued:
        raise TryAgainError(
            f"{spec.site.name} takes {limits.queued} jobs of a user in {spec.queue_name}, and so many are there: wait, "
            "or cancel some"
        )


def room_for_more(spec: AllocationSpec, jobs: Collection[BatchJob]) -> int | None:
    """How many more jobs of this user the queue takes without holding any; None: as many as one likes."""
    limits: JobLimits = queue_of(spec).limits
    queued = counted(spec, jobs)
    waiting = queued.get(BatchState.WAITING, 0) + queued.get(BatchState.HELD, 0)
    running = queued.get(BatchState.RUNNING, 0)
    rooms = [
        *([limits.queued - waiting - running] if limits.queued is not None else []),
        *([limits.eligible - waiting] if limits.eligible is not None else []),
        *([limits.running - waiting - running] if limits.running is not None else []),
    ]
    return max(0, min(rooms)) if rooms else None


def queue_of(spec: AllocationSpec) -> BatchQueue:
    """What the profile says of the queue; a queue that it does not have has no rules."""
    return spec.site.batch.queues.get(spec.queue_name or "", BatchQueue())


def counted(spec: AllocationSpec, jobs: Collection[BatchJob]) -> dict[BatchState, int]:
    """How many jobs of this user are in the allocation's queue, by state; those that are over are not counted."""
    found: dict[BatchState, int] = {}
    for job in jobs:
        if not job.state.is_over and (spec.queue_name is None or spec.queue_name in job.queue):
            found[job.state] = found.get(job.state, 0) + 1
    return found
