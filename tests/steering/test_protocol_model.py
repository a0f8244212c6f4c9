"""A model of the protocol between store, steering, server and pilots: all its states are visited and checked.

One fold; two tasks (a submission and one resubmission) of two attempts each; two pilots; one or two services. A message
that was sent may arrive never, later, repeatedly and in any order. Steering, services and pilots are killed at any
step; a service may be stopped, lose its lease, and go on.

Left out: several folds and searches, early stopping, a user's stop (late submissions of a stopped search run for
nothing), checkpoints, loss of the server's database, wrong values. Transactions of store and server are single steps,
because the databases make them so, and a commit of a
service checks the lease; clocks are left out, because every timeout may come at any time.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import pytest

NONE, INTENT, SUBMITTED, ENDED = "none", "intent", "submitted", "ended"
WAITING, SENT, FINISHED, FAILED = "waiting", "sent", "finished", "failed"
ATTEMPTS = 2


class Service(NamedTuple):
    """The memory of a steering process: calls that wait for an answer, tasks to look up, and what it is to commit."""

    waiting: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()
    seen: tuple[int, Any] | None = None


class State(NamedTuple):
    """All that lasts, all memory, and all messages that were sent."""

    stages: tuple[str, str] = (NONE, NONE)  # of the tasks in the store
    result: Any = None
    results: int = 0  # how often a value was counted
    lease: int = 0
    services: tuple[Service | None, ...] = (Service(),)  # None: killed
    server: tuple[tuple[str, ...] | None, ...] = (None, None)  # attempts of each task
    counted: tuple[int, int] = (0, 0)  # finished jobs of each task, as the server counts them
    pilots: tuple[tuple[int, int] | None, ...] = (None, None)  # task and attempt
    messages: frozenset[tuple[Any, ...]] = frozenset()


def put(values, place, value):
    return (*values[:place], value, *values[place + 1 :])


def nexts(s, defect=""):
    """Yields every state that may follow."""
    for me, service in enumerate(s.services):
        if service is None:  # it starts again, from the store alone
            if s.lease == me:
                doubtful = frozenset(r for r in (0, 1) if s.stages[r] == INTENT)
                yield s._replace(services=put(s.services, me, Service(doubtful=doubtful)))
            else:
                yield s._replace(lease=me, services=put(s.services, me, Service(doubtful=_intents(s))))
            continue
        yield s._replace(services=put(s.services, me, None))
        yield from _steer(s, me, service, defect)
    for place in (0, 1):
        yield from _pilot(s, place)
    for message in s.messages:
        yield from _arrive(s, message, defect)
    for task, attempts in enumerate(s.server):
        if attempts and attempts[-1] == SENT:  # its pilot is silent
            more = (WAITING,) if len(attempts) < ATTEMPTS else ()
            yield s._replace(server=put(s.server, task, (*attempts[:-1], FAILED, *more)))


def _intents(s):
    return frozenset(r for r in (0, 1) if s.stages[r] == INTENT)


def _steer(s, me, service, defect):
    def mine(**changes):
        return put(s.services, me, service._replace(**changes))

    holds = s.lease == me or defect == "no lease at a commit"
    if holds and s.stages[0] == NONE:
        yield s._replace(stages=(INTENT, NONE))
    for task in (0, 1):
        if s.stages[task] == INTENT and task not in service.waiting and task not in service.doubtful:
            sent = s.messages | {("submit", task)}
            yield s._replace(services=mine(waiting=service.waiting | {task}), messages=sent)
        if task in service.waiting:  # no answer comes
            unknown = mine(waiting=service.waiting - {task}, doubtful=service.doubtful | {task})
            yield s._replace(services=unknown)
            if holds and ("answer", task) in s.messages and s.stages[task] == INTENT:
                yield s._replace(services=mine(waiting=service.waiting - {task}), stages=put(s.stages, task, SUBMITTED))
        if task in service.doubtful:
            known = mine(doubtful=service.doubtful - {task})
            if s.server[task] is not None and s.stages[task] == INTENT and holds:
                yield s._replace(services=known, stages=put(s.stages, task, SUBMITTED))
            elif s.server[task] is None or s.stages[task] != INTENT:
                yield s._replace(services=known)
        if s.stages[task] == SUBMITTED and s.server[task] and service.seen is None:
            attempts = s.server[task]
            if FINISHED in attempts:
                yield s._replace(services=mine(seen=(task, attempts.index(FINISHED))))
            elif attempts == (FAILED,) * ATTEMPTS:
                yield s._replace(services=mine(seen=(task, FAILED)))
    if service.seen is not None:
        task, what = service.seen
        forgotten = s._replace(services=mine(seen=None))
        if not holds:
            yield forgotten  # it has lost the lease: nothing is committed
        elif what != FAILED:
            first = s.result is None or defect == "a second result counts"
            changes = {"result": (task, what), "results": s.results + 1} if first else {}
            if defect == "no lease at a commit" and s.result is not None:
                changes = {"results": s.results + 1}
            yield forgotten._replace(stages=put(s.stages, task, ENDED), **changes)
        elif s.stages[task] == SUBMITTED and task == 0:
            again = NONE if defect == "resubmission in another commit" else INTENT
            yield forgotten._replace(stages=(ENDED, again))
        elif s.stages[task] == SUBMITTED:
            yield forgotten._replace(stages=put(s.stages, task, ENDED), result=s.result or FAILED)


def _pilot(s, place):
    held = s.pilots[place]
    if held is None:
        for task, attempts in enumerate(s.server):
            if attempts and attempts[-1] == WAITING:
                taken = s._replace(server=put(s.server, task, (*attempts[:-1], SENT)))
                yield taken  # the answer is lost
                yield taken._replace(pilots=put(s.pilots, place, (task, len(attempts) - 1)))
        return
    idle = s._replace(pilots=put(s.pilots, place, None))
    yield idle  # it is killed
    yield idle._replace(messages=s.messages | {("report", *held)})


def _arrive(s, message, defect):
    kind, task, *more = message
    if kind == "submit":
        made = s.server[task] is None or (defect == "a name may be taken twice" and s.server[task][-1] == FINISHED)
        server = put(s.server, task, (WAITING,)) if made else s.server
        yield s._replace(server=server, messages=s.messages | {("answer", task)})
    if kind == "report":
        attempts, attempt = s.server[task], more[0]
        late = defect == "a report of a lost attempt counts" and attempts[attempt] == FAILED
        if attempts[attempt] == SENT or late or defect == "a repeated report counts":
            ended = put(attempts, attempt, FINISHED)
            counted = put(s.counted, task, s.counted[task] + 1)
            yield s._replace(server=put(s.server, task, ended), counted=counted)


def breach(s):
    """Returns the broken invariant of a state; empty: all hold."""
    if s.results > 1:
        return "a fold has two values"
    for task, attempts in enumerate(s.server):
        if attempts is None:
            continue
        if s.stages[task] == NONE:
            return "the store does not know a task"
        if sum(one in (WAITING, SENT) for one in attempts) > 1 or attempts.count(FINISHED) > 1:
            return "a job has two live or finished attempts"
        if s.counted[task] != attempts.count(FINISHED):
            return "a finished job counts twice"
        if FINISHED in attempts and s.stages[task] == ENDED and s.result in (None, FAILED):
            return "a finished job is not collected"
    if s.stages[0] != NONE and s.result is None and not {INTENT, SUBMITTED} & set(s.stages):
        return "a fold is in limbo"
    return ""


def explore(start, defect="", most=400_000):
    """Visits all states, breadth first. Returns their number, the depth, and the first breach with its way."""
    seen, depth, layer = {start: None}, 0, [start]
    before = defaultdict(list)
    while layer:
        following = []
        for state in layer:
            for after in nexts(state, defect):
                before[after].append(state)
                if after not in seen:
                    seen[after] = state
                    following.append(after)
                    if broken := breach(after):
                        return len(seen), depth + 1, broken
        assert len(seen) < most, "the model is not small any more"
        layer, depth = following, depth + (1 if following else 0)
    ends = [state for state in seen if state.result is not None]
    reaching = set(ends)
    while ends:
        for state in before[ends.pop()]:
            if state not in reaching:
                reaching.add(state)
                ends.append(state)
    return len(seen), depth, "" if len(reaching) == len(seen) else "a state has no way to a result"


ONE, TWO = State(), State(services=(Service(), None))


@pytest.mark.parametrize(("start", "states", "depth"), [(ONE, 2908, 24), (TWO, 114_588, 30)])
def test_every_state_keeps_the_invariants_and_can_come_to_a_result(start, states, depth):
    """The manual has these figures."""
    assert explore(start) == (states, depth, "")


@pytest.mark.parametrize(
    ("defect", "found"),
    [
        ("a repeated report counts", "counts twice"),
        ("a report of a lost attempt counts", "two live or finished"),
        ("a name may be taken twice", "counts twice"),
        ("resubmission in another commit", "limbo"),
        ("no lease at a commit", "two values"),
    ],
)
def test_a_defect_is_found(defect, found):
    assert found in explore(TWO, defect)[2]
