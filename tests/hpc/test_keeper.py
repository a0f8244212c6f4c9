"""As many allocations as there is work for, and no more than the site's limits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from hpo_pilot.hpc.allocations import AllocationFile, AllocationManager
from hpo_pilot.hpc.batch_system import AllocationSpec, BatchJob, BatchState
from hpo_pilot.hpc.keeper import AllocationKeeper, Demand, DemandGroup, KeeperSettings, PilotAccess
from hpo_pilot.jobs import JobNeeds
from tests.hpc.conftest import FakeBatch

KEEPING = KeeperSettings("https://here", "Q", "here", max_nodes=6, room=4, idle=100.0, settle=30.0)


def at_once(spec: AllocationSpec, needs: JobNeeds) -> int:
    """One job of a core on each core of nodes of eight."""
    return spec.nodes // needs.nodes * (8 // needs.cores) if needs.gpus_per_node == 0 else 0


class Bench:
    """A keeper of allocations of two nodes, at a server that has the jobs that a test says."""

    def __init__(
        self, manager: AllocationManager, batch: FakeBatch, plan: Callable[..., AllocationSpec], now: list[float]
    ) -> None:
        self.manager, self.batch, self.now = manager, batch, now
        self.section: dict[str, object] = {}
        self.plan = lambda name: plan(name, **self.section)
        self.demand = Demand((), 0)
        self.told: list[str] = []
        self.keeper = self.again()

    def again(self, keeping: KeeperSettings = KEEPING) -> AllocationKeeper:
        """Another process that keeps the same."""
        self.keeper = AllocationKeeper(
            self.manager,
            keeping,
            self.plan,
            lambda: self.demand,
            at_once=at_once,
            tell=self.told.append,
            clock=lambda: self.now[0],
        )
        return self.keeper

    def look(self, waiting: int | tuple[DemandGroup, ...], going: int = 0, after: float = 1.0) -> list[str]:
        """One look; the states of all jobs then."""
        self.now[0] += after
        self.demand = Demand((DemandGroup(waiting),) if isinstance(waiting, int) else waiting, going)
        self.keeper.look()
        return [job.state.value for job in self.batch.known.values()]


@pytest.fixture
def bench(manager: AllocationManager, batch: FakeBatch, plan: Callable[..., AllocationSpec], now: list[float]) -> Bench:
    return Bench(manager, batch, plan, now)


def test_no_more_than_there_is_work_for(bench: Bench) -> None:
    assert bench.look(waiting=0) == []
    assert bench.look(waiting=3) == ["waiting"]
    assert bench.look(waiting=4) == ["waiting"]  # it will take them
    assert bench.look(waiting=5) == ["waiting"] * 2


def test_no_more_nodes_than_allowed(bench: Bench) -> None:
    assert bench.look(waiting=1000) == ["waiting"] * 3
    assert bench.look(waiting=1000) == ["waiting"] * 3


def test_one_that_has_started_takes_jobs_before_another_follows(bench: Bench) -> None:
    bench.look(waiting=4)
    bench.batch.turn("100", BatchState.RUNNING)
    assert bench.look(waiting=4) == ["running"]
    assert bench.look(waiting=4, going=4, after=31) == ["running", "waiting"]


def test_one_that_has_ended_is_followed_by_another(bench: Bench) -> None:
    bench.look(waiting=4)
    bench.batch.turn("100", BatchState.TIMED_OUT)
    assert bench.look(waiting=4) == ["timed out", "waiting"]


def test_no_work_is_left(bench: Bench) -> None:
    """Between two generations there is no job for a moment: only after a while is that the end."""
    bench.look(waiting=8)
    bench.batch.turn("100", BatchState.RUNNING)
    bench.look(waiting=0, going=4, after=1000)  # running jobs are work
    assert bench.look(waiting=0, after=99) == ["running", "waiting"]
    assert bench.look(waiting=0, after=1) == ["cancelled"] * 2  # the running one's pilot has nothing to do either


def test_what_has_just_started_is_left(bench: Bench) -> None:
    bench.look(waiting=4)
    bench.look(waiting=0, after=90)
    bench.batch.turn("100", BatchState.RUNNING)
    assert bench.look(waiting=0, after=11) == ["running"]
    assert bench.look(waiting=0, after=31) == ["cancelled"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"eligible": 2}, 1), ({"queued": 3}, 1), ({"running": 3}, 1), ({"eligible": 1}, 0), ({"queued": 9}, 3)],
)
def test_the_sites_limits(limits: dict[str, int], expected: int, bench: Bench) -> None:
    bench.section = {"queue": "q", "queues": {"q": {"limits": limits}}}
    bench.batch.known["1"] = BatchJob("1", "other", BatchState.WAITING, ("q",))
    bench.batch.known["2"] = BatchJob("2", "other", BatchState.RUNNING, ("q",))
    bench.look(waiting=1000)
    assert len(bench.batch.submitted) == expected


def test_others_allocations_are_left_alone(bench: Bench, plan: Callable[..., AllocationSpec]) -> None:
    bench.manager.submit(plan("by-hand"), server="https://here", panda_queue="Q")
    bench.manager.submit(plan("elsewhere"), server="https://there", panda_queue="Q", kept=True)
    other = plan("other")
    other = replace(other, site=other.site.model_copy(update={"name": "there"}))
    bench.manager.submit(other, server="https://here", panda_queue="Q", kept=True)
    assert bench.look(waiting=0, after=1000) == ["waiting"] * 3
    assert not bench.batch.cancelled


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_it_submits(when: str, bench: Bench) -> None:
    """Whether the job was submitted or not, in the end there is one."""

    class Killed(BaseException):
        pass

    def die() -> None:
        setattr(bench.batch, when, lambda: None)
        raise Killed

    setattr(bench.batch, when, die)
    with pytest.raises(Killed):
        bench.look(waiting=4)
    bench.again()
    bench.look(waiting=4)  # the batch system may still show it
    assert bench.look(waiting=4, after=61) == ["waiting"]
    assert len(bench.manager.refresh()) == (1 if when == "after" else 2)


def test_a_second_life_keeps_on(bench: Bench) -> None:
    bench.look(waiting=12)
    bench.again()
    assert bench.look(waiting=12) == ["waiting"] * 3
    bench.again(replace(KEEPING, idle=0.0))
    assert bench.look(waiting=0) == ["cancelled"] * 3


def test_it_runs_until_it_is_stopped(bench: Bench) -> None:
    stop, looks = threading.Event(), 0

    def demand() -> Demand:
        nonlocal looks
        looks += 1
        if looks <= 2:
            raise TryAgainError("the server sleeps")
        stop.set()
        return Demand((DemandGroup(4),), 0)

    clock, tell = lambda: bench.now[0], bench.told.append
    keeper = AllocationKeeper(bench.manager, KEEPING, bench.plan, demand, at_once=at_once, tell=tell, clock=clock)
    keeper.run(stop, 0.01)
    assert bench.told[0] == "not now: the server sleeps" and "4 jobs wait: submitted hpo-" in bench.told[1]
    assert bench.told[2:] == ["it goes on"]
    assert not bench.batch.cancelled


def test_allocations_that_fail_at_once(bench: Bench) -> None:
    """They would be submitted for ever, each for nothing."""
    for number in ("100", "101", "102"):
        bench.look(waiting=4)
        bench.batch.turn(number, BatchState.RUNNING)
        bench.look(waiting=4)
        bench.batch.turn(number, BatchState.FAILED)
    with pytest.raises(GiveUpError, match=r"the last 3 allocations failed .* see .*/shared/hpo-.*/output\.log"):
        bench.look(waiting=4)
    bench.again()  # whoever starts it again has seen to it
    bench.look(waiting=4)
    assert len(bench.batch.submitted) == 4


def test_allocations_that_fail_late_or_not_all(bench: Bench) -> None:
    for number, state, after in (
        ("100", BatchState.FAILED, 1.0),
        ("101", BatchState.TIMED_OUT, 1.0),
        ("102", BatchState.FAILED, 1.0),
        ("103", BatchState.FAILED, 1000.0),
        ("104", BatchState.FAILED, 1.0),
    ):
        bench.look(waiting=4)
        bench.batch.turn(number, BatchState.RUNNING)
        bench.look(waiting=4)
        bench.batch.turn(number, state)
        bench.now[0] += after
    assert bench.look(waiting=4)[-1] == "waiting"


def test_jobs_that_no_allocation_takes(bench: Bench) -> None:
    """Jobs of more nodes than an allocation has, say: more such allocations would idle too."""
    bench.look(waiting=8)
    bench.batch.turn("100", BatchState.RUNNING)
    bench.look(waiting=8)
    assert bench.look(waiting=100, after=31) == ["running", "waiting"]
    assert bench.look(waiting=100, going=1) == ["running", "waiting", "waiting"]
    bench.look(waiting=100)
    with pytest.raises(GiveUpError, match="take none of them"):
        bench.look(waiting=100, after=100)
    assert {job.state for job in bench.batch.known.values()} == {BatchState.CANCELLED}


def test_allocations_for_what_fits_them(bench: Bench) -> None:
    """Of two-node jobs of all cores each runs one, of small ones sixteen, and none of those with GPUs."""
    wide, small = DemandGroup(2, JobNeeds(nodes=2, cores=8)), DemandGroup(16, JobNeeds(cores=1))
    hopeless = DemandGroup(500, JobNeeds(gpus_per_node=2, minutes=30.0))
    assert bench.look((DemandGroup(8, JobNeeds(cores=1)), DemandGroup(4, JobNeeds(cores=2)))) == ["waiting"]
    assert bench.look((small, hopeless)) == ["waiting"]
    assert bench.look((small, hopeless, wide)) == ["waiting"] * 3
    (said,) = [told for told in bench.told if "is submitted for them" in told]
    assert "500 of 1 nodes with 1 cores, 2 GPUs and 2000 MB for 30 minutes; give more --nodes" in said
    assert "an allocation of 2 nodes for 1:00" in said


def test_work_that_never_fits_is_none(bench: Bench) -> None:
    """Allocations are given back, and it goes on looking: others may submit what fits."""
    hopeless = (DemandGroup(500, JobNeeds(nodes=3)),)
    assert bench.look(hopeless) == []
    assert bench.look(4) == ["waiting"]
    bench.batch.turn("100", BatchState.RUNNING)
    assert bench.look(hopeless, after=50) == ["running"]
    assert bench.look(hopeless, after=101) == ["cancelled"]


def test_a_refusal_ends_it(bench: Bench) -> None:
    bench.section = {"account_required": True}
    bench.demand = Demand((DemandGroup(1),), 0)
    with pytest.raises(InputError, match="--account"):
        bench.keeper.run(threading.Event(), 0.01)


def test_two_at_once(tmp_path: Path) -> None:
    """They would submit for the same jobs; of other sites each has its own."""
    book = AllocationFile(tmp_path / "work")
    with book.kept_by_one("https://here", "Q", "here"):
        twice = pytest.raises(TryAgainError, match="another `pilots keep` does this already")
        with twice, book.kept_by_one("https://here", "Q", "here"):
            pytest.fail("it must not be let in")
        with book.kept_by_one("https://here", "Q", "there"):
            pass
    with book.kept_by_one("https://here", "Q", "here"):
        pass


# --- the question to a PanDA server: which jobs wait? ---


OURS, EVERY = "/api/v1/hpo_pilot/demand", "/api/v1/statistics/active_job_stats_by_site"
Answers = Callable[..., PilotAccess]


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Makes the access to a server that has one call and answers it in one way."""
    token = tmp_path / "token"
    token.write_text("abc\n")

    def make(call: str, data: Any, status: int = 200) -> PilotAccess:
        def send(_: object, request: requests.PreparedRequest, **__: object) -> requests.Response:
            known = request.headers["Authorization"] == "Bearer abc" and request.headers["Origin"] == "vo"
            answer = requests.Response()
            answer.status_code = status if known and urlsplit(str(request.url)).path == call else 404
            answer._content = json.dumps(data).encode()
            return answer

        monkeypatch.setattr(requests.Session, "send", send)
        return PilotAccess("http://127.0.0.1:9", "Q", token, None, "vo", "here")

    return make


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, Demand((), 0)),
        ({"OTHER": {"activated": 9}}, Demand((), 0)),
        # `defined` are those of paused tasks; `throttled` is a state of real servers alone.
        (
            {"Q": {"activated": 3, "defined": 5, "running": 2, "sent": 1, "throttled": 1, "finished": 7}},
            Demand((DemandGroup(3),), 4),
        ),
    ],
)
def test_any_server_has_counts(data: Any, expected: Demand, answers: Answers) -> None:
    assert answers(EVERY, {"success": True, "message": "", "data": data}).demand() == expected


def test_the_embedded_server_has_the_needs_of_jobs(answers: Answers) -> None:
    shape = {"jobs": 3, "since": 5.0, "nodes": 2, "gpus": 4, "cores": 8, "memory_mb": 500, "minutes": 90.0}
    shape["checkpoints"] = True
    needs = JobNeeds(nodes=2, gpus_per_node=4, cores=8, memory_mb=500, minutes=90.0, checkpoints=True)
    elsewhere = {**shape, "site": "there"}
    data = {"waiting": [shape, elsewhere], "going": 2, "offers": [], "known_for": 9.0}
    assert answers(OURS, {"success": True, "data": data}).demand() == Demand((DemandGroup(3, needs),), 2)


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (OURS, {"data": {"waiting": [{}], "going": 2}}),
        *(
            (EVERY, one)
            for one in (None, {}, {"data": None}, {"data": {"Q": {"activated": "many"}}}, {"data": {"Q": 3}})
        ),
    ],
)
def test_an_answer_that_makes_no_sense(call: str, answer: Any, answers: Answers) -> None:
    with pytest.raises(TryAgainError, match="does not report its jobs"):
        answers(call, answer).demand()


def test_a_token_that_is_refused_or_missing_and_a_server_that_is_away(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = answers(OURS, {}, status=401)
    with pytest.raises(InputError, match="refuses the token"):
        access.demand()
    monkeypatch.undo()
    with pytest.raises(TryAgainError, match="does not report its jobs"):
        access.demand()
    access.token_file.unlink()
    with pytest.raises(InputError, match="--token-file"):
        access.demand()
