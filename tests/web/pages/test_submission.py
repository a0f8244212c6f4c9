"""A search that is started from the browser."""

from __future__ import annotations

import html
import json
import secrets
import tarfile

import pytest

from tests.archives import archive_of
from tests.web.pages.conftest import form_token
from tests.web.pages.test_pages import check

SPACE = "space: {x: {type: real, low: 0, high: 1}}\n"
FILES = f"search: w\n{SPACE}payload: {{files: my, command: 'true'}}\n"


def send(browser, text: str, do: str = "submit", archive: bytes | None = None, key: str = "0123456789"):
    fields = {"form": form_token(browser.get("/new").text), "text": text, "do": do, "key": key}
    files = {"archive": ("p.tar.gz", archive or b"", "application/gzip")}
    return browser.post("/new", data=fields, files=files)


def test_a_search_without_files_is_checked_and_submitted_once(pages):
    browser = pages.browser("carol")
    assert "my-search" in check(browser.get("/new"))
    text = f"search: browsed\r\n{SPACE}payload: {{command: 'true'}}\n"
    assert "valid" in check(send(browser, text, "validate"))
    assert browser.get("/searches/browsed").status_code == 404
    for _ in range(2):  # a double click
        answer = send(browser, text)
        assert (answer.status_code, answer.headers["location"]) == (303, "/searches/browsed?done=submit")
    assert "The search was submitted." in check(browser.get(answer.headers["location"]))
    assert pages.store.search("browsed").owner == "carol"
    again = send(browser, text, key="another-key")
    assert (again.status_code, "browsed" in again.text) == (422, True)
    like = browser.get("/new?like=browsed").text.split("</textarea>")[0].rpartition(">\n")[2]
    answer = send(browser, html.unescape(like).replace("browsed", "browsed-2"), key="third-key")
    assert answer.headers["location"] == "/searches/browsed-2?done=submit"


def test_a_form_that_is_sent_again_with_another_search_makes_another_one(pages):
    """Two searches with one uid would share checkpoints, and clients that ask for trials."""
    browser = pages.browser()
    for name in ("first", "second"):
        assert send(browser, f"search: {name}\n{SPACE}payload: none\n").status_code == 303
    assert len({pages.store.search(name).uid for name in ("first", "second")}) == 2
    changed = send(browser, f"search: first\n{SPACE}payload: none\nbudget: {{trials: 7}}\n")
    assert (changed.status_code, "already has a search" in html.unescape(changed.text)) == (422, True)


@pytest.mark.parametrize("names", [("train/train.py", "train/lib/a.py"), ("train.py", "lib/a.py")])
def test_a_payload_is_the_packed_folder_or_its_files(pages, names):
    name = f"packed-{len(names[0])}"
    text = f"search: {name}\n{SPACE}payload: {{files: ../my/train, command: python train.py}}\n"
    answer = send(pages.browser(), text, archive=archive_of(dict.fromkeys(names, b"")), key=f"{name}-key")
    assert answer.status_code == 303, answer.text
    with tarfile.open(pages.store.search(name).sandbox) as sandbox:
        assert {"train.py", "lib/a.py"} <= set(sandbox.getnames())


@pytest.mark.parametrize(
    ("text", "archive", "words"),
    [
        ("search: w\nspace: {x: {type: reel}}\n", None, ["line 2, column", "real"]),
        ("search: [<b>\n", None, ["line "]),
        ("", None, ["problem"]),
        (FILES, None, ["line 3, column 18", "payload.files", "choose the packed"]),
        (
            f"search: w\n{SPACE}payload: {{command: 'true'}}\nwarm_start: [old.csv]\n",
            None,
            ["line 4, column 14", "hpo-pilot submit"],
        ),
        (FILES, b"no archive", ["the payload is refused"]),
        (FILES, archive_of({"../x": b""}), ["the payload is refused"]),
        (FILES, b"x" * (3 << 19), ["above 1 MB"]),
    ],
    ids=range(8),
)
def test_mistakes_have_their_place_and_nothing_is_lost(pages, text, archive, words):
    answer = send(pages.browser(), text, archive=archive)
    assert answer.status_code == 422, answer.text
    assert all(word in answer.text for word in words)
    assert 'role="alert"' in answer.text
    assert "<b>" not in answer.text
    assert "search: w" in answer.text or "search: w" not in text
    assert pages.browser().get("/searches/w").status_code == 404


def test_the_form_has_the_checks_of_other_forms(pages):
    browser = pages.browser()
    fields = {"text": f"search: x\n{SPACE}", "do": "submit"}
    assert browser.post("/new", data=fields).status_code == 403
    token = form_token(browser.get("/new").text)
    elsewhere = {"sec-fetch-site": "cross-site"}
    assert browser.post("/new", data={**fields, "form": token}, headers=elsewhere).status_code == 403
    assert pages.browser(None).post("/new", data=fields).status_code == 401
    assert browser.post("/new", content=b"x" * (5 << 20)).status_code == 413
    assert browser.get("/new?like=nosuch").status_code == 404


def test_an_archive_that_is_sent_twice_counts_once(pages):
    """The form is checked with it, then submitted."""
    archive = archive_of({"train.py": secrets.token_bytes(300_000)})
    quotas = pages.workdir / "quotas.json"
    quotas.write_text(json.dumps({"users": {"dora": {"uploads_mb": 0.5}}}))
    try:
        text = FILES.replace("search: w", "search: twice")
        for do, status in (("validate", 200), ("submit", 303)):
            assert send(pages.browser("dora"), text, do, archive).status_code == status
        other = archive_of({"train.py": secrets.token_bytes(300_000)})
        assert "uploads of one day" in send(pages.browser("dora"), text, "validate", other).text
    finally:
        quotas.unlink()
