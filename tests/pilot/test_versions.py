"""A pilot of this version with server and runner of an earlier one, as `tests/recorded` keeps them.

`tests.recorded.conversations` asks this version's server what a pilot and panda-client of an earlier one asked.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections import defaultdict

import pytest

from hpo_pilot.jobs.results import parse_reports
from hpo_pilot.pilot.client import CallRefused, JobServer
from hpo_pilot.pilot.job import parse_job
from hpo_pilot.pilot.machine import FreeResources
from hpo_pilot.protocol import PROTOCOL, PROTOCOL_HEADER
from tests.operations.conftest import http_service
from tests.recorded.conversations import recorded


def test_a_server_of_the_version_before_gives_jobs_and_takes_reports(make_settings):
    kept = defaultdict(list)
    for exchange in recorded("ours"):
        kept[exchange["path"]].append((exchange["status"], json.dumps(exchange["answer"]).encode()))
    asked, stated = [], set()

    def answer(method, path, headers, body):
        asked.append(path.rpartition("/")[2])
        stated.add(headers.get(PROTOCOL_HEADER))
        status, content = kept[path].pop(0) if kept[path] else (404, b"{}")
        return status, {}, content

    with http_service(answer) as url:
        server = JobServer(make_settings(url))
        jobs = [parse_job(job) for _ in range(3) for job in server.acquire(FreeResources(1, 1, ()), 0, 100, 0)]
        assert [(job.panda_id, job.attempt, job.server_stores) for job in jobs] == [(n, 1, True) for n in (1, 2, 3)]
        assert all(job.arguments.command and job.points for job in jobs)
        assert server.acquire(FreeResources(1, 1, ()), 0, 100, 0) == []
        running = [{"job_id": job.panda_id, "attempt_nr": 1, "job_status": "running"} for job in jobs]
        # It has no call for several reports, nor one for jobs that are given back.
        assert server.update_all(running[:2]) == ["", ""]
        assert server.update(running[2]) == ""
        assert server.give_back([(1, 1)]) == ()
        server.worker_finished()
    assert stated == {str(PROTOCOL)}
    assert "update_jobs_bulk" in asked


def test_a_server_that_is_further_apart_says_which_side_to_upgrade(make_settings):
    refusal = (426, {}, b'{"success": false, "message": "upgrade hpo-pilot of the server", "data": null}')
    with http_service(lambda *_: refusal) as url:
        server = JobServer(make_settings(url))
        with pytest.raises(CallRefused, match="upgrade hpo-pilot of the server"):
            server.acquire(FreeResources(1, 1, ()), 0, 100, 0)


def test_a_runner_of_an_earlier_version_runs_and_its_results_are_read(panda, pilot):
    """A search goes on over an upgrade of pilot and steering: jobs that were submitted before have their own runner."""
    bodies = {exchange["path"].rpartition("/")[2]: exchange["body"] for exchange in recorded("ours")}
    form = bodies["upload_cache_file"].encode("latin-1")
    panda.cache["sources.old.tar.gz"] = form[form.index(b"\x1f\x8b") : form.rindex(b"\r\n--")]
    with tarfile.open(fileobj=io.BytesIO(panda.cache["sources.old.tar.gz"])) as archive:
        assert "hpo_pilot_efficiency.py" in archive.getnames()  # which this version has no more
    (line,) = re.findall(r"python3%20[^\"]+%20--task%20[^\"]+%20--number%20", bodies["submit"])
    parameters = (
        f'-j "" --sourceURL {panda.url} -r . -a sources.old.tar.gz -o "{{\'outputs.tar.gz\': \'out\'}}" -p "{line}'
    )
    pilot.start()
    found = {}
    for number in (1, 2):
        job = panda.add_job("true", job={"jobPars": f'{parameters}{number}"'})
        metadata = json.loads(panda.final(job)["meta_data"])
        (found[number],) = parse_reports(metadata)
    assert pilot.end() == 0
    assert [(report.trial, report.status) for report in found.values()] == [(1, "ok"), (2, "failed")]
    assert len(found[1].values) == 1 and "no good" in (found[2].message or "")
