"""The manual in the monitor: every page, every link, every picture."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from hpo_pilot.manual import PAGES
from tests.html_page import Page
from tests.web.pages.test_pages import check

TEMPLATES = [path for path in (files("hpo_pilot.web") / "templates").iterdir() if path.name.endswith(".j2")]


def test_the_list_has_every_page_by_group(pages):
    text = check(pages.browser().get("/help"))
    assert [one.name for one in PAGES] == re.findall(r'<li><a href="/help/([\w-]+)">', text)
    assert text.index("Begin") < text.index("How to") < text.index("Reference")
    folder = pages.browser().get("/help/")
    assert (folder.status_code, folder.headers["location"]) == (308, "/help")


@pytest.mark.parametrize("one", PAGES, ids=lambda page: page.name)
def test_a_page_and_what_it_links_to(pages, one):
    browser = pages.browser()
    address = f"/help/{one.name}"
    text = check(browser.get(address))
    assert re.findall(r'href="/help/([\w-]+)" aria-current="page"', text) == [one.name]
    base = browser.base_url.join(address)
    for target in re.findall(r'(?:href|src)="([^"]*)"', text):
        there = base.join(target)
        if there.host != base.host:
            continue
        answer = browser.get(there.copy_with(fragment=None))
        assert answer.status_code in (200, 308), target
        if there.fragment:
            assert there.fragment in Page(answer.text).ids, target


def test_pictures_are_kept_and_nothing_else_is_given(pages):
    browser = pages.browser()
    answer = browser.get("/help/pictures/architecture.svg")
    assert answer.headers["content-type"] == "image/svg+xml"
    assert "max-age=86400" in answer.headers["cache-control"]
    tag = answer.headers["etag"]
    assert browser.get("/help/pictures/architecture.svg", headers={"if-none-match": tag}).status_code == 304
    for name in ("nosuch.svg", "..%2fpage.py", "%2e%2e%2fquick-start.md", ".svg", "architecture.svg%00", "a.gif"):
        assert browser.get(f"/help/pictures/{name}").status_code == 404, name


def test_a_page_that_is_not_there_names_one_that_is(pages):
    answer = pages.browser().get("/help/quickstart")
    assert answer.status_code == 404
    assert "did you mean quick-start" in answer.text
    assert pages.browser(None).get("/help/quick-start").status_code == 303


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_pages_link_to_help_that_is_there(pages, template):
    browser = pages.browser()
    for name, fragment in re.findall(r'href="/help/([\w-]+)(?:#([\w-]+))?"', template.read_text()):
        answer = browser.get(f"/help/{name}")
        assert answer.status_code == 200, name
        assert not fragment or fragment in Page(answer.text).ids, (name, fragment)
