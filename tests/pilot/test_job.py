from __future__ import annotations

from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.job import parse_job

PARAMETERS = (
    '-j "" --sourceURL http://127.0.0.1:25080 -r . -a sources.ab.tar.gz '
    "-o \"{'outputs.tar.gz': 'user.me.5._000001.outputs.tar.gz'}\" "
    '-p "python3%20-I%20-S%20hpo_pilot_runner.py%20--task%20eJw_-%3D%3D%20--number%203"'
)


def described(**changes: Any) -> dict[str, Any]:
    return {"PandaID": 7, "attemptNr": 2, "jobPars": PARAMETERS, "minRamCount": "2000", "maxWalltime": "NULL"} | changes


def test_what_prun_writes():
    job = parse_job(described(container_name="NULL", logFile="user.me.log.tgz", coreCount=None))
    assert (job.panda_id, job.attempt, job.memory_mb, job.walltime, job.cores) == (7, 2, 2000, 0, 1)
    arguments = job.arguments
    assert arguments.command == "python3 -I -S hpo_pilot_runner.py --task eJw_-== --number 3"
    assert arguments.archive == "sources.ab.tar.gz" and arguments.source_url == "http://127.0.0.1:25080"
    assert arguments.outputs == {"outputs.tar.gz": "user.me.5._000001.outputs.tar.gz"}
    assert job.container == "" and job.log_name == "user.me.log.tgz"


def test_a_job_without_identity_is_the_servers_fault():
    with pytest.raises(InputError):
        parse_job({"jobPars": PARAMETERS})
