from __future__ import annotations

import pytest

from hpo_pilot.panda.bigpanda_link import Linked, bigpanda_link, is_web_address, search_link

ATLAS = "https://pandaserver.cern.ch:25443"


def test_where_pages_are() -> None:
    assert bigpanda_link(ATLAS, Linked.TASK, 7, environment={}) == "https://bigpanda.cern.ch/task/7/"
    assert bigpanda_link(ATLAS, Linked.JOB, 7, environment={}) == "https://bigpanda.cern.ch/job?pandaid=7"
    doma = "https://pandaserver-doma.cern.ch:25443"
    assert search_link(doma, "cafe0123", environment={}) == ("https://panda-doma.cern.ch/tasks/?taskname=*.cafe0123.g*")
    named = {"PANDAMON_URL": "https://mon.example/x/"}
    assert bigpanda_link(ATLAS, Linked.TASK, 7, environment=named) == "https://mon.example/x/task/7/"
    link = bigpanda_link(ATLAS, Linked.TASK, 7, monitor="http://own.example:8080", environment=named)
    assert link == "http://own.example:8080/task/7/"


@pytest.mark.parametrize("server", [None, "embedded", "https://panda.example:25443"])
def test_where_there_are_none(server: str | None) -> None:
    assert bigpanda_link(server, Linked.TASK, 7, environment={}) is None


def test_what_may_become_a_link() -> None:
    assert is_web_address("https://panda-doma.cern.ch") and is_web_address("http://[::1]:8080/x")
    for text in (
        "javascript:alert(1)",
        "https://",
        "ftp://x",
        "https://me:secret@x",
        'https://x/"onclick',
        "https://x:y",
    ):
        assert not is_web_address(text)
        assert bigpanda_link(ATLAS, Linked.TASK, 7, monitor=text, environment={}) is None
    assert bigpanda_link(ATLAS, Linked.TASKS, 'a"&b', environment={}) == (
        "https://bigpanda.cern.ch/tasks/?taskname=a%22%26b"
    )
