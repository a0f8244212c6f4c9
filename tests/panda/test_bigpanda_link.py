from __future__ import annotations

import pytest

from hpo_pilot.panda.server import bigpanda_link

ATLAS = "https://pandaserver.cern.ch:25443"
NAMED = {"PANDAMON_URL": "https://mon.example/x/"}


@pytest.mark.parametrize(
    ("server", "monitor", "environment", "link"),
    [
        (ATLAS, None, {}, "https://bigpanda.cern.ch/tasks/?taskname=*.cafe.g*"),
        ("https://pandaserver-doma.cern.ch:25443", None, {}, "https://panda-doma.cern.ch/tasks/?taskname=*.cafe.g*"),
        (ATLAS, None, NAMED, "https://mon.example/x/tasks/?taskname=*.cafe.g*"),
        (ATLAS, "http://[::1]:8080", NAMED, "http://[::1]:8080/tasks/?taskname=*.cafe.g*"),
        (None, None, NAMED, None),
        ("embedded", None, NAMED, None),
        ("https://panda.example:25443", None, {}, None),
    ],
)
def test_the_page_of_a_search(server: str | None, monitor: str | None, environment: dict[str, str], link: str) -> None:
    assert bigpanda_link(server, "cafe", monitor=monitor, environment=environment) == link


@pytest.mark.parametrize(
    "text", ["javascript:alert(1)", "https://", "ftp://x", "https://me:secret@x", 'https://x/"onclick', "https://x:y"]
)
def test_an_address_that_may_not_become_a_link(text: str) -> None:
    assert bigpanda_link(ATLAS, "cafe", monitor=text, environment={}) is None


def test_the_uid_is_quoted() -> None:
    link = bigpanda_link(ATLAS, 'a"&b', environment={})
    assert link == "https://bigpanda.cern.ch/tasks/?taskname=*.a%22%26b.g*"
