from __future__ import annotations

import json
from pathlib import Path

from hpo_pilot.transformation.job import job_report


def report(folder: Path, exit_code: int = 0) -> dict[str, object]:
    return dict(json.loads(job_report(str(folder), exit_code)))


def test_what_the_payload_leaves(tmp_path):
    assert report(tmp_path) == {"exitCode": 0}
    assert report(tmp_path, 3) == {"exitCode": 3}
    (tmp_path / "userJobMetadata.json").write_text('{"hpo_pilot": {"value": 0.5}}')
    assert report(tmp_path) == {"exitCode": 0, "user_job_metadata": {"hpo_pilot": {"value": 0.5}}}


def test_a_report_of_the_payloads_own_is_kept(tmp_path):
    (tmp_path / "jobReport.json").write_text('{"exitCode": 9, "files": {}, "user_job_metadata": 1}')
    assert report(tmp_path, 3) == {"exitCode": 3, "files": {}}
    (tmp_path / "userJobMetadata.json").write_text("{}")
    assert report(tmp_path) == {"exitCode": 0, "files": {}, "user_job_metadata": {}}
    (tmp_path / "jobReport.json").write_text("[" * 100000)
    assert "cannot be read" in str(report(tmp_path)["exitMsg"])


def test_metadata_that_no_server_takes(tmp_path):
    path = tmp_path / "userJobMetadata.json"
    for content, why in [
        (b"{", "Expecting"),
        (b'"' + b"x" * 1_000_000 + b'"', "a server takes 1000000"),
        (b'"\xff"', "utf-8"),
        (b"[" * 100000, "recursion"),
    ]:
        path.write_bytes(content)
        metadata = report(tmp_path)["user_job_metadata"]
        assert isinstance(metadata, dict) and why in metadata["pilot_error"]
