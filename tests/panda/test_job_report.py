"""Server's words to ours."""

from __future__ import annotations

from math import inf

import pytest

from hpo_pilot.jobs import JobState
from hpo_pilot.jobs.results import finished_report, job_state, parse_reports, read_description

OURS = {
    "version": 1, "search": "demo", "uid": "cafecafe", "generation": 1, "trial": 2, "fold": 1, "number": 4,
    "attempt": 2, "status": 0, "value": 0.0, "metrics": {"accuracy": 0.9}, "message": "", "seconds": 1.5,
    "started": 10.0, "ended": 11.5,
    "node": "n1", "outputs": ["model.npz"],
    "progress": [[1, 0.5], [2, float("nan")], [3, None], [4, True], [5, "x"], [1e20, 1.0], [10**400, 1.0]],
}  # fmt: skip


def metadata(**changes):
    return {"user_job_metadata": {"hpo_pilot": {**OURS, **changes}}}


def test_a_good_report():
    (report,) = parse_reports(metadata())
    assert (report.values, report.trial, report.fold, report.job, report.attempt) == ((0.0,), 2, 1, 4, 2)
    assert report.progress == ((1, 0.5), (2, inf), (3, inf))  # of a training that diverged
    assert report.has_outputs


def test_a_failed_one_has_no_value_even_if_it_says_so():
    (report,) = parse_reports(metadata(status=1, value=3.0, message="diverged"))
    assert (report.status, report.values, report.message) == ("failed", (), "diverged")


@pytest.mark.parametrize("value", [None, True, "0.5x", float("inf")])
def test_a_good_status_without_a_number_is_a_failure(value):
    (report,) = parse_reports(metadata(value=value))
    assert report.values == ()
    assert report.message


@pytest.mark.parametrize(
    "document", [None, [], "x", {}, {"user_job_metadata": None}, {"user_job_metadata": {"hpo_pilot": {"uid": 1}}}]
)
def test_what_is_not_ours_is_no_report(document):
    assert parse_reports(document) == ()


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
    assert report.progress == ((3, 0.25),)


@pytest.mark.parametrize(
    ("name", "state"), [("assigned", "defined"), ("merging", "holding"), ("running", "running"), ("new!", "defined")]
)
def test_states(name, state):
    assert job_state(name).value == state


def test_the_payloads_own_metadata_stands_beside_ours():
    document = {"user_job_metadata": {"hpo_pilot": OURS, "layers": 3, "notes": ["a"]}}
    assert parse_reports(document)[0].metadata == {"layers": 3, "notes": ["a"]}
    assert parse_reports(metadata())[0].metadata is None


def test_a_job_of_several_points_has_a_report_on_each():
    shared = {"uid": "cafecafe", "generation": 1, "number": 4, "attempt": 2, "fold": 0}
    members = [
        {**shared, "trial": 1, "status": 0, "value": 0.5, "message": "", "ran_in": 1, "outputs": ["m"], "folder": True},
        {**shared, "trial": 2, "status": 1, "value": None, "message": "diverged", "metadata": {"a": 1}},
        {**shared, "trial": 3, "status": 2, "value": None, "message": "no time"},
        {**shared, "status": 0},
        "garbage",
    ]
    found = parse_reports({"user_job_metadata": {"hpo_pilot": {**shared, "version": 2, "members": members}}})
    assert [(v.trial, v.status, v.values, v.ran_in, v.folder) for v in found] == [
        (1, "ok", (0.5,), 1, "t1f0"),
        (2, "failed", (), None, ""),
        (3, "not run", (), None, ""),
    ]
    assert found[1].metadata == {"a": 1}
    report = finished_report(9, found)
    assert (report.number, report.attempt, report.reports) == (4, 2, found)


@pytest.mark.parametrize(
    ("metrics", "running", "progress"),
    [
        ("hpoStep=3 hpoValue=0.25 hpoMember=t12f1", (12, 1), ((3, 0.25),)),
        ("hpoMember=t12f1", (12, 1), ()),
        ("hpoStep=3 hpoValue=0.25", None, ((3, 0.25),)),
        ("hpoMember=x", None, ()),
        ("hpoStep=3 hpoValue=0.25 hpoPast=1:0.5,2:1e-07", None, ((1, 0.5), (2, 1e-7), (3, 0.25))),
        ("hpoStep=3 hpoValue=0.25 hpoPast=1:,x:2,:,3,1:nan,2:7", None, ((1, inf), (2, 7.0), (3, 0.25))),
        ("hpoPast=1:0.5", None, ()),
        ("hpoStep=3 hpoValue=1 hpoPast=1:2,2:" + "9" * 465, None, ((1, 2.0), (3, 1.0))),  # cut short by the server
    ],
)
def test_heartbeats_tell_which_point_runs(metrics, running, progress):
    report = read_description({"PandaID": 7, "jobStatus": "running", "jobMetrics": metrics}, None)
    assert (report.running, report.progress) == (running, progress)
