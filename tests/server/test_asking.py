"""Trials for clients: jobs in the queue of a search without payload."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_pilot.jobs import ASKED_QUEUE
from tests.server.test_points import Points, encode, with_points
from tests.task_parameters import make_params


class Search:
    """A search of a user with a task of trials 1 and 2."""

    def __init__(self, server: Any, uid: str, owner: str = "me") -> None:
        self.api, self.uid, self.task = server.api(owner), uid, f"user.{owner}.{uid}/"
        jobs = {"search": "s", "uid": uid, "generation": 1, "jobs": [[1, 0, 5], [2, 0, 6]]}
        encoded = encode({**jobs, "points": {"1": {"x": 1}, "2": {"x": 2}}})
        given = make_params(self.task, 2, site=f"{ASKED_QUEUE}{uid}", campaign=f"s.{uid}")
        self.task_id = self.api.submit(with_points(given, encoded))

    def ask(self, *keys: str, most: int = 9, lease: float = 600) -> list[tuple[str, int, int]]:
        asks = [{"key": key, "lease": lease, "node": "n"} for key in keys]
        reply = self.api.post("hpo_pilot/ask", search="s", uid=self.uid, most=most, asks=asks)
        assert reply["success"], reply
        return [(one["key"], one["trial"], one["attempt"]) for one in reply["data"]]

    def tell(self, number: int, *values: float, message: str = "", api: Any = None) -> Any:
        given = {"values": list(values), "message": message, "metrics": {}, "node": "n"}
        return (api or self.api).post("hpo_pilot/tell", task=self.task, number=number, **given)

    def report(self, number: int, step: int, value: float | None, attempt: int | None = None) -> str:
        given = {"step": step, "value": value, "attempt": attempt}
        return str(self.api.post("hpo_pilot/report", task=self.task, number=number, **given)["data"])


def test_a_key_has_one_trial_and_a_search_at_most_so_many(server: Any) -> None:
    search = Search(server, "keys")
    assert search.ask("a", "b", most=1) == [("a", 1, 1)]
    assert search.ask("a", "b", most=2) == [("a", 1, 1), ("b", 2, 1)]
    assert search.ask("c") == []
    search.tell(1, 0.5)
    assert search.ask("a") == []


def test_no_pilot_and_no_other_search_gets_them(server: Any) -> None:
    search = Search(server, "mine")
    queue = f"{ASKED_QUEUE}mine"
    reply = server.api("pilot").post("pilot/acquire_jobs", site_name=queue)
    assert not reply["success"] and queue in reply["message"]
    for site in ("LOCAL", "ANY"):
        found = server.api("pilot").acquire(9, site_name=site, prod_source_label="")
        assert search.task_id not in [job["taskID"] for job in found]  # other tests may have left some there
    yours = Search(server, "yours", "you")
    Points(server, queue).submit([[7, 0, 1]], taskName="user.me.other/")  # another campaign
    yours.uid = "mine"
    assert yours.ask("a") == []
    assert search.ask("a", "b", "c") == [("a", 1, 1), ("b", 2, 1)]
    assert not search.tell(1, 0.5, api=server.api("you"))["success"]


def test_the_first_result_counts(server: Any) -> None:
    search = Search(server, "first")
    assert len(search.ask("a", "b")) == 2
    assert [search.report(1, step, value) for step, value in ((0, 0.5), (1, None), (1, 0.25))] == ["", "", ""]
    assert "lease" in search.report(1, 2, 0.5, attempt=2)
    for values in ([0.5], [0.5], [0.75]):
        assert search.tell(1, *values)["data"] == {"values": [0.5], "message": ""}
    assert search.report(1, 3, 0.5) == "the trial is over"
    assert search.tell(2, message="no memory")["data"] == search.tell(2, 1.0)["data"]
    assert search.tell(2)["data"] == {"values": [], "message": "no memory"}
    assert not search.tell(3, 1.0)["success"]


@pytest.mark.parametrize("asks", [[{}], [{"key": "a"}], [{"key": 1, "lease": 1, "node": ""}]])
def test_a_wrong_call_is_refused(server: Any, asks: list[dict[str, Any]]) -> None:
    reply = server.api("me").post("hpo_pilot/ask", search="s", uid="u", most=1, asks=asks)
    assert not reply["success"] and "key, lease and node" in reply["message"]


@pytest.mark.parametrize("lease", [-1e300, 0, 1e300])
def test_no_lease_upsets_the_watch_over_lost_jobs(server: Any, lease: float) -> None:
    asks = [{"key": "a", "lease": lease, "node": ""}]
    reply = server.api("me").post("hpo_pilot/ask", search="s", uid="leases", most=1, asks=asks)
    assert not reply["success"] and "lease from 1 to" in reply["message"]
