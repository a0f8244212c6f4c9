"""Inputs and uploads that take their time: the server is told, and heard."""

from __future__ import annotations

import os

import pytest

from tests.pilot.conftest import GOOD
from tests.programs import program
from tests.transformation.conftest import web

__all__ = ["web"]


def test_the_server_hears_that_a_job_starts(panda, pilot, web, until):
    web.files["/data.csv"] = b"1,2\n"
    web.gate.clear()
    job = panda.add_job("cat data.csv input_ds.json; " + GOOD, inputs=[f"{web.url}/data.csv"])
    pilot.start()
    until(lambda: len(panda.of(job, "starting")) >= 2)
    assert not panda.of(job, "running")
    web.gate.set()
    assert panda.final(job)["job_status"] == "finished"
    second = panda.add_job(GOOD, inputs=[f"{web.url}/data.csv"])
    assert panda.final(second)["job_status"] == "finished"
    assert web.asked == ["/data.csv"], "it was there already"


def test_the_server_hears_of_a_job_while_its_outputs_are_stored(panda, pilot, until):
    panda.takes_uploads.clear()
    job = panda.add_job(GOOD + "; echo m > model", outputs=["model"])
    pilot.start()
    until(lambda: panda.uploads)
    seen = len(panda.reports)
    until(lambda: len(panda.reports) > seen + 2)
    assert not panda.of(job, "finished")
    panda.takes_uploads.set()
    assert panda.final(job)["job_status"] == "finished" and panda.stored


@pytest.mark.parametrize("how", ["tobekilled", "drain"])
def test_what_is_fetched_for_nobody_is_given_up(panda, pilot, until, how):
    job = panda.add_job(GOOD, inputs=["root://nowhere//data.csv"])
    tools = program(pilot.folder / "bin" / "xrdcp", "exec sleep 60").parent
    process = pilot.start(variables={"PATH": f"{tools}:{os.environ['PATH']}"})
    until(lambda: panda.of(job, "starting"))
    if how == "drain":
        process.terminate()
    else:
        panda.commands[job] = "tobekilled"
    final = panda.final(job)
    assert final["job_status"] == "failed"
    assert final["pilot_error_diag"].startswith(
        "killed by the server" if how == "tobekilled" else "root://nowhere//data.csv: stopped during the download"
    )
