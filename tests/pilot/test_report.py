from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from hpo_pilot.pilot.job import JobFailure, PilotErrorCode
from hpo_pilot.pilot.report import Outcome, Progress, final_report, heartbeat_report, note_metric
from hpo_pilot.transformation.job import USER_METADATA


@pytest.fixture
def settings(make_settings):
    return make_settings()


def test_a_heartbeat(settings, tmp_path):
    (tmp_path / "progress.jsonl").write_text('{"step": 4, "value": 2}\n')
    job = SimpleNamespace(panda_id=7, attempt=2)
    about = {"phase": "running", "job": job, "started": 0.0, "progress": Progress(tmp_path)}
    report = heartbeat_report(settings, SimpleNamespace(**about))
    assert (report["job_id"], report["attempt_nr"], report["job_status"]) == (7, 2, "running")
    assert report["job_metrics"] == "hpoStep=4 hpoValue=2.0"
    assert report["start_time"] == "1970-01-01 00:00:00"


def ours(trial: int, fold: int, value: float | None, **more: object) -> dict[str, object]:
    about = {"uid": "cafecafe", "generation": 1, "trial": trial, "fold": fold, "number": 1}
    return {**about, "status": 1 if value is None else 0, "value": value, **more}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (ours(3, 0, 0.3456789), "hpoResults=t3f0:0.345679"),
        (ours(3, 1, None), "hpoResults=t3f1:failed"),
        (ours(3, 1, 0.5, values=[0.5, -2e-9]), "hpoResults=t3f1:0.5/-2e-09"),
        (
            {"members": [ours(1, 0, 0.5), ours(2, 0, None), ours(3, 0, None, status=2)]},
            "t1f0:0.5,t2f0:failed,t3f0:not_run",
        ),
        ({"value": 1}, ""),
    ],
)
def test_the_results_stand_in_the_metrics_that_bigpanda_shows(settings, tmp_path, document, said):
    (tmp_path / "userJobMetadata.json").write_text(json.dumps({"hpo_pilot": document}))
    report = final_report(settings, 7, 1, Outcome(exit_code=0), tmp_path, {})
    assert report.get("job_metrics", "").removeprefix("hpoResults=") == said.removeprefix("hpoResults=")
    (tmp_path / "progress.jsonl").write_text("".join(f'{{"step": {n}, "value": {n}.123456}}\n' for n in range(900)))
    whole = final_report(settings, 7, 1, Outcome(exit_code=0), tmp_path, {})["job_metrics"]
    assert whole.startswith(f"{report.get('job_metrics', '')} hpoStep=899 hpoValue=899.123456 hpoPast=".lstrip())
    assert len(whole) <= 500 and whole.endswith(":898.123"), "a value is cut"
    assert "job_metrics" in report or not said
    lost = final_report(settings, 7, 1, Outcome(exit_code=65), tmp_path, {})["job_metrics"]
    assert lost.startswith("hpoStep=899 "), "only a finished job has results"


def test_many_results_are_cut_between_two(settings, tmp_path):
    document = {"members": [ours(trial, 0, trial + 0.25) for trial in range(100)]}
    (tmp_path / "userJobMetadata.json").write_text(json.dumps({"hpo_pilot": document}))
    text = final_report(settings, 7, 1, Outcome(exit_code=0), tmp_path, {})["job_metrics"]
    last = text.count(",")
    assert 190 < len(text) <= 200 and text.endswith(f",t{last}f0:{last}.25")


def test_final_reports(settings, tmp_path):
    (tmp_path / "userJobMetadata.json").write_text('{"hpo_pilot": {"value": 1}}')
    good = final_report(
        settings, 7, 1, Outcome(exit_code=0, started=1.0, cpu_seconds=2.6), tmp_path, {"o": {"fsize": 3}}
    )
    (tmp_path / "hpo_pilot_payload.json").write_text('{"file_names": {"progress": "p"}, "metric": "auc"}')
    (tmp_path / "p").write_text('{"step": 4, "auc": 2}')
    told = final_report(settings, 7, 1, Outcome(exit_code=1), tmp_path, {})
    assert told["job_metrics"] == "hpoStep=4 hpoValue=2.0"
    assert good["job_status"] == "finished" and good["trans_exit_code"] == 0 and good["cpu_consumption_time"] == 3
    assert json.loads(good["meta_data"])["user_job_metadata"] == {"hpo_pilot": {"value": 1}}
    assert json.loads(good["job_output_report"]) == {"o": {"fsize": 3}}
    bad = final_report(settings, 7, 1, Outcome(exit_code=-9, last_line="disk full"), tmp_path, {})
    assert bad["job_status"] == "failed" and bad["trans_exit_code"] == 137 and bad["exe_error_diag"] == "disk full"
    assert "meta_data" not in bad
    failure = JobFailure("k" * 900, PilotErrorCode.PANDA_KILL)
    killed = final_report(settings, 7, 1, Outcome(exit_code=0, failure=failure), tmp_path, {})
    assert killed["job_status"] == "failed" and killed["pilot_error_code"] == 1144
    assert len(killed["pilot_error_diag"]) == 500


def test_a_figure_of_the_pilot_goes_into_the_verdict(tmp_path):
    path = tmp_path / USER_METADATA
    note_metric(tmp_path, "waited", 1.0)
    assert not path.exists()
    path.write_text(json.dumps({"mine": 1, "hpo_pilot": {"status": 0, "metrics": {"loss": 0.5}}}))
    note_metric(tmp_path, "waited", 1.23456)
    found = json.loads(path.read_text())
    assert found == {"mine": 1, "hpo_pilot": {"status": 0, "metrics": {"loss": 0.5, "waited": 1.235}}}
    path.write_text(json.dumps({"hpo_pilot": {"members": [{"status": 0}, {"status": 0}]}}))
    note_metric(tmp_path, "waited", 2.0)
    members = json.loads(path.read_text())["hpo_pilot"]["members"]
    assert members == [{"status": 0, "metrics": {"waited": 2.0}}, {"status": 0}], "the first waited for all"
    path.write_text("[]")
    note_metric(tmp_path, "waited", 2.0)
    assert path.read_text() == "[]"
