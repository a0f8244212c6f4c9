"""Jobs of agents that go: a preempted allocation, a lost node, a pilot that is told to end.

The test is the agents: it makes their calls, so that it chooses when one is silent.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from hpo_pilot.hpc.usage import Ending
from hpo_pilot.pilot import agents
from hpo_pilot.pilot.agent import AgentServer, ImageCopies
from hpo_pilot.pilot.client import MissingAtServer
from hpo_pilot.pilot.job import PilotErrorCode, parse_job
from hpo_pilot.pilot.pilot import Pilot
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.transformation.job import PayloadSettings
from tests.pilot.conftest import FakePanda, in_background, slurm_stubs
from tests.programs import program


class Allocation:
    """The parts of a pilot in an allocation of two nodes with four cores, whose threads do not run."""

    def __init__(self, panda: FakePanda, settings: PilotSettings) -> None:
        self.panda, self.pilot = panda, Pilot(settings)
        assert self.pilot._agents is not None
        self.agents, self.pool, self.parts = self.pilot._agents, self.pilot._parts.pool, self.pilot._parts
        self.agents.start()
        (self.folder,) = settings.workdir.glob("agents/*/")
        written: dict[str, Any] = json.loads((self.folder / "agents.json").read_text())
        self.url, self._settings = written["server"], settings
        self._open: list[AgentServer] = []

    def agent(self, node: str) -> AgentServer:
        """An agent that has called."""
        trusted = {"ca": self.folder / "certificate.pem", "token_file": self.folder / "token"}
        settings = PilotSettings(self.url, "LOCAL", 4, self._settings.workdir / node, **trusted)
        self._open.append(AgentServer(settings, node, self.folder))
        assert self.takes(self._open[-1]) == []
        return self._open[-1]

    @staticmethod
    def takes(agent: AgentServer, seconds: float = 0.0) -> list[int]:
        return [job["PandaID"] for job in agent.acquire(SimpleNamespace(), seconds, 0, 0)]  # type: ignore[arg-type]

    def place(self, **job: Any) -> int:
        """Gives the agents a job that takes a node."""
        number = self.panda.add_job("true", job={"coreCount": 4, **job})
        data = self.panda.waiting.pop()
        self.agents.run(parse_job(data), data, PayloadSettings(minutes=5.0), self.pool.reserve(data))
        return number

    def ends(self, server: AgentServer, number: int, ending: Ending) -> None:
        """An agent reports the end of its job."""
        (identity,) = (one for one in server.jobs if one[0] == number)
        server.ended(identity, ending)

    def close(self) -> None:
        for server in self._open:
            server._session.close()
        self.agents.stop()
        self.agents.close()


@pytest.fixture
def allocation(tmp_path, panda, make_settings, monkeypatch) -> Iterator[Allocation]:
    panda.takes_back = True
    tools = slurm_stubs(tmp_path / "tools", srun="exec sleep 300")
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    said = {"name": "here", "launcher": {"name": "srun"}, "node": {"cores": 4, "memory_mb": 4000}}
    (tmp_path / "site.json").write_text(json.dumps({**said, "batch": {"system": "slurm", "job_steps": 2}}))
    for name in ("_TICK", "_REJOIN", "_STEP_END"):
        monkeypatch.setattr(agents, name, 0.2)
    found = Allocation(panda, make_settings(panda.url, grace=-5.0, site=tmp_path / "site.json", allocation=True))
    yield found
    found.close()


def nodes_of(allocation: Allocation) -> frozenset[str]:
    return allocation.pool.up


def test_a_lost_node_costs_jobs_that_it_never_had_no_attempt(allocation, panda, until):
    one, other = allocation.agent("n1"), allocation.agent("n2")
    had = allocation.place()
    assert allocation.takes(one, 5.0) + allocation.takes(other) == [had]
    never = allocation.place()
    waits = allocation.place()
    one._session.close()
    other._session.close()
    assert panda.final(had)["pilot_error_diag"].startswith("node n")
    until(lambda: sorted(panda.given_back) == [[never, 1], [waits, 1]])
    assert not panda.of(never, "failed") and not nodes_of(allocation)


def test_agents_that_end_with_a_pilot_are_no_lost_nodes(allocation, panda, until):
    """They may be the first, while a job on several nodes still saves beside the pilot."""
    one, other = allocation.agent("n1"), allocation.agent("n2")
    had = allocation.place()
    assert allocation.takes(one, 5.0) + allocation.takes(other) == [had]
    never = allocation.place()
    until(lambda: any(entry.job.panda_id == never and entry.node for entry in allocation.agents._jobs.values()))
    allocation.parts.draining.set()
    one._session.close()
    other._session.close()
    assert panda.final(had)["pilot_error_diag"] == "the allocation was ended"
    until(lambda: panda.given_back == [[never, 1]])
    until(lambda: all(agent.is_lost for agent in allocation.agents._agents.values()))
    assert nodes_of(allocation) == {"n1", "n2"}


def test_a_pilot_that_drains_gives_waiting_jobs_back(allocation, panda, until):
    one, other = allocation.agent("n1"), allocation.agent("n2")
    had = [allocation.place(), allocation.place()]
    assert sorted(allocation.takes(one, 5.0) + allocation.takes(other, 5.0)) == had
    waits = allocation.place()
    allocation.parts.draining.set()
    allocation.agents.drain()
    until(lambda: panda.given_back == [[waits, 1]])
    late = allocation.place()
    until(lambda: panda.given_back == [[waits, 1], [late, 1]])
    allocation.ends(one, next(iter(one.jobs))[0], Ending.CUT)
    assert allocation.takes(one) == []


def test_jobs_have_what_the_allocation_leaves_them_to_save(allocation, panda, until):
    """Not only their grace: uploads of many checkpoints take turns."""
    one = allocation.agent("n1")
    allocation.pilot._unreported = 1  # as if a job ran
    saved = threading.Event()
    allocation.parts.checkpoints.end = saved.set
    allocation.pilot.stop(at_once=True, seconds=70.0)
    draining = in_background(allocation.pilot._drain)
    until(lambda: allocation.takes(one) == [] and one.stopped.is_set())
    assert one.saving == 65.0 and not saved.wait(1.0)
    allocation.pilot._job_is_over()
    draining.result(600)
    assert saved.is_set()


def test_a_call_that_brings_a_part_of_a_job_waits_on(allocation, until):
    """Else nodes pause before the next part, as pilots of servers that do not wait do."""
    one, begun = allocation.agent("n1"), []
    one.parts.begin = begun.append
    asked = in_background(allocation.takes, one, 60.0)
    part = {"job": [9, 1], "address": "", "bound": []}
    allocation.agents._agents["n1"].parts[9, 1] = part
    allocation.agents._door.call(allocation.agents._agents["n1"].news.set)
    until(lambda: begun == [part])
    job = allocation.place()
    assert asked.result(600) == [job]


def test_images_of_one_name_and_time_are_two(tmp_path, monkeypatch):
    copies = ImageCopies(tmp_path / "images", 100)
    images = [tmp_path / name / "image.sif" for name in ("v1", "v2", "v3")]
    for image in images:
        image.parent.mkdir()
        image.write_text(image.parent.name)
        os.utime(image, (1e9, 1e9))
    assert [Path(copies(str(image))).read_text() for image in images[:2]] == ["v1", "v2"]

    def full(_: Path, part: Path) -> None:
        part.write_text("half")
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(shutil, "copyfile", full)
    assert copies(str(images[2])) == str(images[2]) and len(list((tmp_path / "images").iterdir())) == 2


def test_a_job_that_the_server_has_killed_leaves_no_checkpoint_there(allocation, panda, until):
    """As many jobs end whose search stops its trials early."""
    one, other, kept = allocation.agent("n1"), allocation.agent("n2"), []
    allocation.parts.checkpoints.keep = lambda _, failure: kept.append(failure)
    had = allocation.place()
    assert allocation.takes(one, 5.0) + allocation.takes(other) == [had]
    panda.commands[had] = "tobekilled"
    node = one if one.jobs else other
    assert node.update_all([{"job_id": had, "attempt_nr": 1, "job_status": "running"}]) == ["tobekilled"]
    allocation.pilot._unreported = 1
    allocation.ends(node, had, Ending.FAILED)
    until(lambda: kept)
    assert kept[0].code is PilotErrorCode.PANDA_KILL


def test_a_payloads_call_is_no_sign_of_life_of_an_agent(allocation):
    answer = requests.get(
        f"{allocation.url}/points/x/idds",
        headers={"X-HPO-Pilot-Node": "n1"},
        verify=str(allocation.folder / "certificate.pem"),
        timeout=600,
    )
    assert "no agent" not in answer.text and not allocation.agents._agents["n1"].has_come


def test_a_sandbox_that_does_not_come_leaves_nothing(allocation):
    allocation.agents._files.sources["gone.tar.gz"] = ""
    with pytest.raises(MissingAtServer):
        allocation.agents._files.open("gone.tar.gz")
    assert not list((allocation.folder / "cache").iterdir())


def test_no_job_is_started_on_a_node_that_is_preempted(allocation, panda, tmp_path, until):
    """Slurm signals agents before it signals the pilot: their jobs are the first to know."""
    one, other = allocation.agent("n1"), allocation.agent("n2")
    had = [allocation.place(), allocation.place()]
    assert sorted(allocation.takes(one, 5.0) + allocation.takes(other, 5.0)) == had
    waits = allocation.place()
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 30))
    program(
        tmp_path / "tools" / "squeue", f"case \"$*\" in *%T*) echo RUNNING {end} 2 'n[1-2]' ;; *) echo {end} ;; esac"
    )
    allocation.ends(one, next(iter(one.jobs))[0], Ending.CHECKPOINTED)
    until(lambda: panda.given_back == [[waits, 1]])
    assert allocation.takes(one) == []
