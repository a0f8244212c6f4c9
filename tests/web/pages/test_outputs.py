"""Kept files of a trial on its page: shown, and harmless."""

from __future__ import annotations

import contextlib

import pytest

from hpo_pilot.jobs import JobState
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.server.tokens import Role
from tests.archives import archive_of
from tests.made import made_attempt, made_end
from tests.rest_api import add_trials
from tests.web.pages.test_pages import check

HOSTILE = b"<svg xmlns='http://www.w3.org/2000/svg'><script>fetch('/')</script></svg>"
FILES = {
    "plots/roc.svg": HOSTILE,
    "a b&c.png": b"\x89PNG",
    "report.HTM": b"<script>fetch('/')</script>",
    "log.txt": b"</pre><script>1</script>",
    "s.json": b'{"auc":1}',
    "model.bin": b"\0\1",
    "big.bin": b"\0" * ((32 << 20) + 1),
}


def _kept(pages, name: str, content: bytes, folder: str = "") -> str:
    pages.submit(name)
    number = pages.store.search(name).id
    task = add_trials(pages.store, name, [Trial(1, 1, {"x": 0.5, "kind": "a"}, seed=1)])
    output = f"{name}.outputs.tar.gz"
    attempt = made_attempt(task, 1, 0, 1, JobState.FINISHED, 0.5, output=output + folder)
    pages.store.record(number, [attempt], [made_end(1, TrialState.FINISHED, 0.5, told=1)], ended_tasks=[task])
    storage = pages.workdir / "panda-files" / "storage"
    storage.mkdir(parents=True, exist_ok=True)
    (storage / output).write_bytes(content)
    return f"/searches/{name}/trials/1"


@pytest.fixture(scope="module")
def trial(pages) -> str:
    """A trial of alice with files, in an archive that has those of other trials too."""
    return _kept(pages, "kept-files", archive_of({f"t1f0/{name}": content for name, content in FILES.items()}), "/t1f0")


def test_files_are_listed_by_kind(pages, trial):
    text = check(pages.browser().get(f"{trial}/files"))
    assert '<img src="/searches/kept-files/trials/1/file?fold=0&amp;name=plots%2Froc.svg"' in text
    assert "name=a%20b%26c.png" in text
    assert '<iframe sandbox="allow-scripts"' in text
    assert "&lt;/pre&gt;&lt;script&gt;" in text
    assert "&#34;auc&#34;: 1" in text
    assert "model.bin" in text
    assert "name=big.bin" not in text
    assert f"{trial}/files" in check(pages.browser().get(trial))
    for other in (pages.browser("bob"), pages.browser("root", Role.OPERATOR)):
        assert '<iframe sandbox=""' in other.get(f"{trial}/files").text


@pytest.mark.parametrize(
    ("name", "dest", "who", "kind", "disposition", "policy"),
    [
        ("plots/roc.svg", "image", "bob", "image/svg+xml", "attachment", "sandbox;"),
        ("plots/roc.svg", "iframe", "alice", "image/svg+xml", "attachment", "sandbox;"),
        ("plots/roc.svg", "document", "alice", "image/svg+xml", "attachment", "sandbox;"),
        ("a b&c.png", "image", "alice", "image/png", "attachment", "sandbox;"),
        ("report.HTM", "iframe", "alice", "text/html; charset=utf-8", "inline", "sandbox allow-scripts;"),
        ("report.HTM", "iframe", "bob", "text/html; charset=utf-8", "inline", "sandbox;"),
        ("report.HTM", "document", "alice", "application/octet-stream", "attachment", "sandbox;"),
        ("report.HTM", "", "alice", "application/octet-stream", "attachment", "sandbox;"),
        ("log.txt", "document", "alice", "application/octet-stream", "attachment", "sandbox;"),
        ("model.bin", "script", "alice", "application/octet-stream", "attachment", "sandbox;"),
    ],
)
def test_a_file_is_sent_so_that_it_can_do_nothing(pages, trial, name, dest, who, kind, disposition, policy):
    headers = {"sec-fetch-dest": dest} if dest else {}
    answer = pages.browser(who).get(f"{trial}/file", params={"fold": 0, "name": name}, headers=headers)
    assert (answer.status_code, answer.content) == (200, FILES[name])
    assert answer.headers["content-type"] == kind
    assert answer.headers["content-disposition"].startswith(disposition)
    found = answer.headers["content-security-policy"]
    assert found.startswith(policy)
    assert "default-src 'none'" in found
    assert ("script-src" in found) == ("allow-scripts" in policy)
    assert "same-origin" not in found
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == ("SAMEORIGIN" if disposition == "inline" else "DENY")


@pytest.mark.parametrize(
    ("fold", "name"), [("0", "../log.txt"), ("0", ""), ("0", "big.bin"), ("1", "log.txt"), ("x", "log.txt")]
)
def test_other_files_are_not_sent(pages, trial, fold, name):
    assert pages.browser().get(f"{trial}/file", params={"fold": fold, "name": name}).status_code == 404
    assert pages.browser(None).get(f"{trial}/files").status_code == 303


def test_damaged_archives_and_trials_without_files(pages):
    damaged = _kept(pages, "damaged-files", archive_of(FILES)[:9000])
    text = check(pages.browser().get(f"{damaged}/files"))
    assert 'class="problem"' in text
    assert pages.browser().get(f"{damaged}/file", params={"fold": 0, "name": "zzz"}).status_code == 422
    pages.submit("no-files")
    pages.results("no-files", 2)
    assert pages.browser().get("/searches/no-files/trials/2/files").status_code == 422


def test_for_a_file_of_a_fold_no_other_fold_is_fetched(pages, monkeypatch, tmp_path):
    """Each picture of a trial's page is such a call, and archives at another server may be large."""
    number = pages.store.search(pages.submit("far-files")).id
    task = add_trials(pages.store, "far-files", [Trial(1, 1, {"x": 0.5, "kind": "a"}, seed=1)], folds=2)
    ends = [made_attempt(task, 1, fold, 1, JobState.FINISHED, 0.5, output=f"far{fold}.tar.gz") for fold in (0, 1)]
    pages.store.record(number, ends, [made_end(1, TrialState.FINISHED, 0.5, told=1)], ended_tasks=[task])
    (tmp_path / "a.tar.gz").write_bytes(archive_of({"log.txt": b"kept"}))
    fetched = []

    @contextlib.contextmanager
    def fetch(_workdir, names, **_options):
        fetched.append(names)
        yield dict.fromkeys(names, tmp_path / "a.tar.gz")

    monkeypatch.setattr("hpo_pilot.web.outputs.fetched_outputs", fetch)
    answer = pages.browser().get("/searches/far-files/trials/1/file", params={"fold": 1, "name": "log.txt"})
    assert (answer.status_code, answer.content, fetched) == (200, b"kept", [{1: "far1.tar.gz"}])
