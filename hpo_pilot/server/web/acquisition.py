"""Waiting for a job on behalf of a pilot: what both APIs' calls for jobs do."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from hpo_pilot.scheduling import Wish
from hpo_pilot.server.taskbuffer.dispatch import JobRequest, acquire
from hpo_pilot.server.web.call import MAX_WAIT, Call

#: Seconds that a pilot is willing to wait for a job; ours alone, a real server ignores it.
WAIT_HEADER = "X-HPO-Pilot-Wait"
#: What a pilot in a batch allocation could start, `scheduling.Wish.to_text`: it alone gets jobs of several nodes.
OPENINGS_HEADER = "X-HPO-Pilot-Openings"
#: Cores that a pilot has for the jobs of one answer together; PanDA's own arguments cannot say it.
CORES_HEADER = "X-HPO-Pilot-Cores"


class UnknownQueue(Exception):
    """The pilot names a queue that is not there; the message says so."""


def cores_said(call: Call) -> int:
    """The cores that the pilot has for what it asks for; 0: it does not say."""
    cores = call.header(CORES_HEADER)
    return int(cores) if cores.isdecimal() and len(cores) < 10 else 0


def openings_said(call: Call) -> Wish | None:
    """The room that the pilot has in its allocation; None: it has none.

    Raises:
        InputError: what it says makes no sense.
    """
    text = call.header(OPENINGS_HEADER)
    return Wish.from_text(text) if text else None


async def acquire_jobs(call: Call, request: JobRequest) -> list[dict[str, Any]]:
    """Hands jobs to a pilot; where its header says so, the answer waits for one.

    Returns:
        PanDA's job dictionaries; none: nothing fits.

    Raises:
        UnknownQueue: there is no such queue.
    """
    queue = call.server.queues.find(request.site)
    if queue is None:
        raise UnknownQueue(call.server.queues.unknown((request.site,)))
    request = replace(request, queue=queue, pilot=call.pilot)
    call.server.pilot_book.asked(request, call.header("user-agent"))
    begun = time.monotonic()
    end = begun + call.seconds(WAIT_HEADER, MAX_WAIT)
    pilots = call.server.pilots
    waiter = pilots.enter(request.site)
    try:
        while True:
            pilots.looks(waiter)
            now = replace(request, waited=time.monotonic() - begun)
            if found := await call.server.database.write(partial(acquire, request=now)):
                call.server.watch.job_went_out()
                return found
            pilots.found_nothing(waiter)
            if not await pilots.wait(waiter, end - time.monotonic()):
                return []
            # A job given to a pilot that has gone meanwhile would be silent until it counts as lost.
            if await call.request.is_disconnected():
                return []
    finally:
        pilots.leave(waiter)
