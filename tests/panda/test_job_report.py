"""Server's words to ours."""

from __future__ import annotations

import pytest

from hpo_pilot.jobs import JobState
from hpo_pilot.panda.job_report import job_state, read_description, read_verdicts

OURS = {
    "version": 1, "search": "demo", "uid": "cafecafe", "generation": 1, "trial": 2, "fold": 1, "number": 4,
    "attempt": 2, "status": 0, "value": 0.0, "metrics": {"accuracy": 0.9}, "message": "", "seconds": 1.5,
    "started": 10.0, "ended": 11.5,
    "node": "n1", "outputs": ["model.npz"],
    "progress": [[1, 0.5], [2, float("nan")], [3, None], [1e20, 1.0], [10**400, 1.0]],
}  # fmt: skip


def metadata(**changes):
    return {"user_job_metadata": {"hpo_pilot": {**OURS, **changes}}}


def test_a_good_verdict():
    (verdict,) = read_verdicts(metadata())
    assert (verdict.value, verdict.trial, verdict.fold, verdict.number, verdict.attempt) == (0.0, 2, 1, 4, 2)
    assert verdict.progress == ((1, 0.5),)
    assert verdict.has_outputs


def test_a_failed_one_has_no_value_even_if_it_says_so():
    (verdict,) = read_verdicts(metadata(status=1, value=3.0, message="diverged"))
    assert (verdict.value, verdict.message) == (None, "diverged")


@pytest.mark.parametrize("value", [None, True, "0.5x", float("inf")])
def test_a_good_status_without_a_number_is_a_failure(value):
    (verdict,) = read_verdicts(metadata(value=value))
    assert verdict.value is None
    assert verdict.message


@pytest.mark.parametrize(
    "document", [None, [], "x", {}, {"user_job_metadata": None}, {"user_job_metadata": {"hpo_pilot": {"uid": 1}}}]
)
def test_what_is_not_ours_is_no_verdict(document):
    assert read_verdicts(document) == ()


def test_a_failed_job_has_its_errors_and_its_number():
    report = read_description(
        {
            "PandaID": "7", "jobStatus": "failed", "attemptNr": 2,
            "jobParameters": '-p "python3%20-I%20-S%20hpo_pilot_runner.py%20--task%20abc%20--number%2012"',
            "pilotErrorCode": 1144, "pilotErrorDiag": "killed", "exeErrorCode": 0, "exeErrorDiag": "NULL",
            "startTime": "2026-01-02 03:04:05", "jobMetrics": "nGPU=1 hpoStep=3 hpoValue=0.25",
        },
        None,
    )  # fmt: skip
    assert (report.state, report.number, report.attempt) == (JobState.FAILED, 12, 2)
    assert report.error == "pilot error 1144: killed"
    assert report.started == 1767323045
    assert report.progress == (3, 0.25)


@pytest.mark.parametrize(
    ("name", "state"), [("assigned", "defined"), ("merging", "holding"), ("running", "running"), ("new!", "defined")]
)
def test_states(name, state):
    assert job_state(name).value == state
