"""How an attempt is judged when its allocation ends."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest

from hpo_pilot.hpc.usage import Ending
from hpo_pilot.pilot import attempt
from hpo_pilot.pilot.job import CutLate, CutOff, GivenBack, PilotErrorCode
from hpo_pilot.pilot.launch import NOTHING_STAGED
from hpo_pilot.pilot.machine import JobReservation
from hpo_pilot.pilot.report import Outcome


def test_a_step_whose_ranks_had_sigterm_shortly_before_the_end(tmp_path):
    """Slurm's line about the cancelled step is lost at times. A rank may also end itself in this way."""
    launched = SimpleNamespace(assignment=SimpleNamespace(allocation=("n1",)), were_terminated=lambda _: True)
    for ends_soon in (True, False):
        parts = SimpleNamespace(
            workdir=SimpleNamespace(root=tmp_path),
            draining=threading.Event(),
            watch=SimpleNamespace(ends_soon=lambda says=ends_soon: says),
        )
        assert bool(attempt.JobRun(parts, {"PandaID": 1}, JobReservation())._cut_off(launched, None)) is ends_soon


def test_the_work_of_a_job_with_a_damaged_sandbox_is_lost(tmp_path):
    """It goes back to the queue like a job with a checkpoint."""
    for code, ending in ((PilotErrorCode.STAGE_IN_FAILED, Ending.CUT), (PilotErrorCode.SIGTERM, Ending.CHECKPOINTED)):
        assert attempt._ending(Outcome(1, started=1.0, failure=GivenBack("", code)), tmp_path) is ending


@pytest.mark.parametrize(
    ("status", "exit_code", "has_gone_on", "is_late", "failure", "ending"),
    [
        (0, 0, False, True, None, Ending.FINISHED),  # it finished in time
        (1, 0, False, False, CutOff, Ending.CUT),  # its ranks had the batch system's signal before this pilot
        (1, 0, True, False, GivenBack, Ending.CHECKPOINTED),
        (None, 1, False, False, CutOff, Ending.CUT),
        (None, 1, False, True, CutLate, Ending.CUT),  # it goes back: it had less time than other jobs
        (None, 1, True, True, GivenBack, Ending.CHECKPOINTED),
    ],
)
def test_the_end_of_an_allocation(tmp_path, status, exit_code, has_gone_on, is_late, failure, ending):
    draining = threading.Event()
    draining.set()
    noted = []
    pool = SimpleNamespace(note_launch=lambda *what: noted.append(what))
    parts = SimpleNamespace(
        workdir=SimpleNamespace(root=tmp_path), draining=draining, pool=pool, outage=None, watch=SimpleNamespace()
    )
    launched = SimpleNamespace(
        staged=NOTHING_STAGED,
        assignment=SimpleNamespace(allocation=("n1",), nodes=("n1",)),
        end_step=lambda _: None,
        launch_failure=lambda _: None,
    )
    if status is not None:
        identity = {"uid": "1a2b3c4d", "generation": 1, "trial": 1, "fold": 0, "number": 1}
        said = {**identity, "status": status, "value": 0.5 if status == 0 else None}
        (tmp_path / "userJobMetadata.json").write_text(json.dumps({"hpo_pilot": said}))
    judged = attempt.JobRun(parts, {"PandaID": 1}, JobReservation())
    judged._outcome = Outcome(exit_code, started=1.0)
    judged._judge_launch(launched)
    if isinstance(judged._outcome.failure, CutOff):
        judged._judge_cut_off(has_gone_on=has_gone_on, is_late=is_late)
    assert type(judged._outcome.failure) is (failure or type(None))
    assert failure is None or failure.is_given_back == (failure is not CutOff)
    assert attempt._ending(judged._outcome, tmp_path) is ending
    assert bool(noted) == (failure is None), "a launch that was cut off says nothing of its nodes"
