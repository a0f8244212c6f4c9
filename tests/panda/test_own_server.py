"""Reading tasks from our own server: a change between two calls of one look loses nothing."""

from __future__ import annotations

from hpo_pilot.jobs import TaskRef
from hpo_pilot.panda.tasks import OwnServerReader

VERDICT = {"uid": "u", "generation": 1, "trial": 1, "fold": 0, "number": 1, "attempt": 1, "status": 0, "value": 0.5}


class Client:
    """panda-client, whose job finishes right after the metadata were read for the first time."""

    url = "https://panda"

    def __init__(self):
        self.metadata = {}

    def call(self, name, *_arguments):
        if name == "getUserJobMetadata":
            before = dict(self.metadata)
            self.metadata["7"] = {"user_job_metadata": {"hpo_pilot": VERDICT}}
            return 0, before
        assert name == "get_job_descriptions"
        return 0, [{"PandaID": 7, "jobStatus": "finished", "attemptNr": 1, "jobParameters": "--number 1"}]


def test_a_job_that_finishes_between_the_two_calls_of_a_look_has_its_result():
    (report,) = OwnServerReader(Client()).results(TaskRef("task", 1), [1])
    assert [each.values for each in report.reports] == [(0.5,)]
