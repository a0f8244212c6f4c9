"""Every page in every state; nothing that payloads or users write becomes HTML."""

from __future__ import annotations

import html
import itertools
import json
import re
import time
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from hpo_pilot.jobs import JobState
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.search import EarlyStop, Trial, TrialState
from hpo_pilot.server.tokens import Role, Tokens
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SearchState
from hpo_pilot.web.app import Api
from hpo_pilot.web.app import Pages as Monitor
from tests.command_here import command_here
from tests.html_page import Page
from tests.made import made_attempt, made_end
from tests.rest_api import add_trials
from tests.web.pages.conftest import made_pages

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>{{7*7}}\x1b[31m\x07"


def headings(page: Page) -> list[int]:
    return [int(each.tag[1]) for each in page.elements if re.fullmatch("h[1-6]", each.tag)]


def check(answer) -> str:
    """A page that is whole, and that a screen reader can follow."""
    assert answer.status_code == 200, answer.text
    page = Page(answer.text)
    found = headings(page)
    assert found[:1] == [1]
    assert found.count(1) == 1
    assert max((later - earlier for earlier, later in itertools.pairwise(found)), default=0) <= 1, found
    assert len(page.ids) == len(set(page.ids)), page.ids
    labels = {each.attributes.get("for") for each in page.all("label")}
    fields = [each for each in page.elements if each.tag in ("input", "select", "textarea")]
    wanted = [field for field in fields if field.attributes.get("type") != "hidden"]
    assert all(field.attributes.get("id", "") in labels for field in wanted), wanted
    assert len(page.all("main")) == 1
    return answer.text


VERDICTS = {
    SearchState.DONE: "Done: ",
    SearchState.STOPPED: "Stopped after ",
    SearchState.FAILED: "Failed: because of ",
    SearchState.PAUSED: "Paused: ",
}


@pytest.mark.parametrize("state", list(SearchState))
def test_the_pages_of_a_search_in_every_state_with_and_without_results(pages, state):
    browser = pages.browser("alice")
    for filled in (False, True):
        name = pages.submit(f"{state.value}{'full' if filled else 'empty'}")
        if filled:
            pages.results(name)
        pages.state(name, state, "because of <this>; see `that`")
        for path in ("", "/trials", "/errors"):
            text = check(browser.get(f"/searches/{name}{path}"))
            assert state.value in text
            assert "because of <this>" not in text
        overview = browser.get(f"/searches/{name}").text
        assert VERDICTS.get(state, "no process steers it") in overview
        assert "<code>that</code>" in overview
        assert ("trial 2</a>" in overview) is filled
        assert (f"There is no result{'' if state.is_over else ' yet'}." in overview) is not filled


def test_the_list_shows_filters_and_pages(pages):
    model = pages.store.search(pages.submit("model")).search
    for index in range(55):
        search = model.model_copy(update={"name": f"many{index}"})
        pages.store.create_search(search, source="x", sandbox=None, owner="bob")
    browser = pages.browser("alice")
    first = check(browser.get("/?q=MANY"))
    assert first.count('id="search-') == 50
    assert "1 to 50 of 55" in first
    second = check(browser.get("/?q=many&page=2"))
    assert second.count('id="search-') == 5
    assert check(browser.get("/?q=many&page=99")).count('id="search-') == 5
    assert "No search matches" in check(browser.get("/?q=nosuch"))
    assert 'id="search-' not in check(browser.get("/?owner=alice&q=many"))
    assert check(browser.get("/?state=submitted&owner=bob")).count('id="search-') == 50
    assert check(browser.get("/?page=%3Cx%3E&state=%22")).count('id="search-') == 50


def test_an_empty_store_says_what_to_do(tmp_path):
    with made_pages(tmp_path) as empty:
        assert "hpo-pilot submit search.yaml" in check(empty.browser("alice").get("/"))


def test_what_is_not_there_is_said_so(pages):
    browser = pages.browser("alice")
    pages.submit("there")
    wrong = ["/searches/nosuch", "/searches/there/trials/9", "/nosuch", "/searches/there/nosuch", "/static/0/x.js"]
    # More digits than a store holds, and more than Python reads.
    wrong += [f"{base}/{'9' * digits}" for base in ("/searches/there/trials", "/jobs") for digits in (19, 5000)]
    for path in wrong:
        answer = browser.get(path)
        assert answer.status_code == 404, path
        assert headings(Page(answer.text)) == [1]
    assert browser.get("/searches/nosuch", headers={"accept": "application/json"}).json()["error"]
    assert browser.get("/searches/there/figures/nosuch").status_code == 422
    assert browser.get("/searches/there/download/exe").status_code == 404


def test_the_job_of_a_trial_that_was_stopped_early_has_not_failed(pages):
    number = pages.store.search(pages.submit("early")).id
    task = add_trials(pages.store, "early", [Trial(1, 1, {"x": 0.1, "kind": "a"}, seed=1)])
    pages.store.record(number, [], [], look=1, stops={1: EarlyStop(1, "hopeless", 3, 0.9)})
    killed = made_attempt(task, 1, 0, 1, JobState.CANCELLED, panda_id=7, error="pilot error 1144: killed by the server")
    pages.store.record(
        number, [killed], [made_end(1, TrialState.STOPPED, told=1, ended=time.time())], ended_tasks=[task]
    )
    text = check(pages.browser().get("/searches/early/trials/1"))
    assert '<td class="stopped">stopped early</td>' in text and "1144" not in text


def hostile_search(pages, name: str, owner: str = HOSTILE) -> str:
    """A search all of whose texts are hostile."""
    pages.submit(
        name,
        owner=owner[:50],
        space={"x": {"type": "real", "low": 0, "high": 1}, "kind": {"type": "categorical", "choices": [HOSTILE, "b"]}},
        objective={"metric": "</script><b>loss", "goal": "minimize"},
        payload={"files": "training", "command": "echo <img src=x> <script>alert(3)</script>"},
    )
    store, number, now = pages.store, pages.store.search(name).id, time.time()
    task = add_trials(store, name, [Trial(n, 1, {"x": n / 10, "kind": HOSTILE}, seed=n) for n in (1, 2, 3)], folds=2)
    ran = {"metrics": {HOSTILE: HOSTILE, "deep": {"a": [HOSTILE]}}, "node": HOSTILE[:100], "panda_id": 7}
    ran |= {"seconds": 1.0, "started": now - 1, "ended": now, "progress": ((1, 0.5), (2, 0.25), (3, float("inf")))}
    broke = {"error": HOSTILE, "log_tail": HOSTILE * 3}
    outcomes = [
        made_attempt(task, n, fold, 1, JobState.FINISHED, **ran, **({"value": float(n)} if n > 1 else broke))
        for n in (1, 2, 3)
        for fold in range(2)
    ]
    ends = [made_end(1, TrialState.FAILED, error=HOSTILE, told=1, ended=now)]
    ends += [made_end(n, TrialState.FINISHED, float(n), stds=(0.1,), told=n, ended=now) for n in (2, 3)]
    store.record(number, outcomes, ends, ended_tasks=[task])
    store.set_state(number, SearchState.FAILED, HOSTILE[:50], HOSTILE)
    return name


def test_hostile_texts_stay_texts(pages):
    name = hostile_search(pages, "hostile")
    browser = pages.browser("oscar", Role.OPERATOR)  # who may see the forms too
    paths = ["/?owner=%3Cscript%3E", "/", *(f"/searches/{name}{end}" for end in ("", "/trials", "/errors", "/add"))]
    paths += [f"/searches/{name}/trials/{number}" for number in (1, 2)]
    for path in paths:
        text = check(browser.get(path))
        for attack in ("<script>alert", "<img src=x", "</script><b>", "\x1b", "\x07"):
            assert attack not in text, path
    shown = html.unescape(browser.get(f"/searches/{name}/trials/1").text)
    assert "<img src=x onerror=alert(1)>" in shown  # as a text
    assert browser.get(f"/searches/{name}/actions").text.count("<img") == 0
    kinds = re.findall(r'data-kind="(\w+)"', browser.get(f"/searches/{name}").text)
    assert {"convergence", "slices"} <= set(kinds)
    for kind in kinds:
        answer = browser.get(f"/searches/{name}/figures/{kind}")
        assert answer.headers["content-type"] == "application/json"
        drawn = json.dumps([figure["spec"] for figure in answer.json()["figures"]])
        assert "<img" not in drawn, kind
        assert "<script" not in drawn, kind


def test_figures_are_sent_once(pages):
    name = pages.submit("tags")
    browser = pages.browser("alice")
    path = f"/searches/{name}/figures/convergence"
    empty = browser.get(path)
    assert empty.json() == {"figures": []}
    tag = empty.headers["etag"]
    assert browser.get(path, headers={"if-none-match": tag}).status_code == 304
    plain = browser.get(path, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == empty.json()
    pages.results(name)
    parts = pages.monitor._parts
    parts.figures._drawn._values.clear()  # as if some seconds had passed
    again = browser.get(path, headers={"if-none-match": tag})
    assert again.status_code == 200
    assert again.headers["etag"] != tag
    assert again.json()["figures"][0]["spec"]["data"]


def test_trials_are_sorted_filtered_and_paged(pages):
    name = pages.submit("table", budget={"trials": 300, "parallel": 2})
    pages.results(name, count=230)
    browser = pages.browser("alice")
    path = f"/searches/{name}/trials"

    def rows(query: str) -> list[int]:
        text = check(browser.get(path + query))
        return [int(number) for number in re.findall(rf'<th scope="row"><a href="{path}/(\d+)"', text)]

    assert rows("")[:3] == [230, 229, 228]
    assert len(rows("")) == 100
    assert rows("?page=3&sort=-number") == list(range(30, 0, -1))
    assert rows("?sort=value")[:2] == [2, 3]
    assert rows("?sort=-value")[0] == 230
    assert rows("?sort=-value&page=3")[-1] == 1  # no figure of merit: last either way
    assert rows("?sort=p.x")[:2] == [1, 2]
    assert rows("?state=failed") == [1]
    assert rows("?sort=nosuch%3Cx%3E")[0] == 230
    assert "No trial is in this state" in check(browser.get(path + "?state=running"))
    assert 'aria-sort="ascending"' in browser.get(path + "?sort=value").text

    def heads(query: str) -> list[str]:
        head = browser.get(path + query).text.split("<thead>")[1].split("</thead>")[0]
        return re.findall(r">([\w.]+)(?:<span class=\"arrow|</th>)", head)

    assert rows("?where=x+%3C+0.0003+or+x+%3E+0.0229&sort=number") == [1, 2, 230]
    assert rows("?where=x+%3E+0.0001&page=2") == list(range(130, 30, -1))
    assert 'href="/searches/table/trials?where=x+%3E+0.0001&amp;col=p.x&amp;col=remark&amp;sort=-number"' in (
        check(browser.get(path + "?where=x+%3E+0.0001&page=2&col=p.x&col=remark"))
    )
    assert heads("") == ["trial", "state", "loss", "x", "kind", "time", "gen.", "remark"]
    assert heads("?col=remark&col=p.x&col=nosuch&col=started") == ["trial", "x", "started", "remark"]
    wrong = browser.get(path, params={"where": "<b> < 1"})
    assert (wrong.status_code, "<b>" in wrong.text, 'role="alert"' in wrong.text) == (422, False, True)


@pytest.fixture(scope="module")
def ended(pages) -> str:
    """A search whose first trial failed; only to be looked at."""
    name = pages.submit("ended")
    pages.results(name, log="first line\nTraceback: it broke")
    return name


def test_the_page_of_a_trial_and_its_log(pages, ended):
    browser = pages.browser("alice")
    failed = check(browser.get(f"/searches/{ended}/trials/1"))
    assert "it broke" in failed
    assert "exit status 1" in failed
    assert '<td class="failed">failed</td>' in failed  # though its job, for PanDA, finished
    log = browser.get(f"/searches/{ended}/trials/1/log?fold=0&attempt=1")
    assert log.text == "first line\nTraceback: it broke"
    assert log.headers["content-type"].startswith("text/plain")
    assert log.headers["content-disposition"] == f'attachment; filename="{ended}-trial1-fold0-attempt1.log"'
    assert browser.get(f"/searches/{ended}/trials/1/log?fold=9&attempt=1").status_code == 404
    good = html.unescape(check(browser.get(f"/searches/{ended}/trials/2")))
    assert "the best" in good
    assert "2.5 ± 0.7" in good or "2.50 ± 0.70" in good


def test_a_best_point_at_a_bound_and_ties_are_remarked(pages):
    name = pages.submit("at-bounds", space={"x": {"type": "real", "low": 0.0002, "high": 0.5}}, folds=1)
    add_trials(pages.store, name, [Trial(n, 1, {"x": n / 10_000}, seed=n) for n in (2, 3)])
    ends = [made_end(n, TrialState.FINISHED, 0.5, told=n, ended=time.time()) for n in (2, 3)]
    pages.store.record(pages.store.search(name).id, (), ends)
    text = check(pages.browser("alice").get(f"/searches/{name}"))
    assert "2 trials have this value" in text
    assert "x is at its lower bound, 0.0002" in text


def test_errors_are_grouped_by_cause(pages, ended):
    browser = pages.browser("alice")
    text = check(browser.get(f"/searches/{ended}/errors"))
    for words in ("exit status 1", "Traceback: it broke", f"/searches/{ended}/trials/1"):
        assert words in text
    assert "No trial has run yet" in check(browser.get(f"/searches/{pages.submit('noerrors')}/errors"))


def test_downloads(pages, ended):
    browser = pages.browser("bob")
    table = browser.get(f"/searches/{ended}/download/csv")
    assert table.text.startswith("number,generation,state")
    assert table.headers["content-disposition"] == f'attachment; filename="{ended}.csv"'
    assert len(browser.get(f"/searches/{ended}/download/json").json()["trials"]) == 3
    assert "<!DOCTYPE html>" in browser.get(f"/searches/{ended}/download/report").text


def test_jobs_and_pilots_without_a_server(pages):
    browser = pages.browser("alice")
    for path in ("/jobs", "/jobs?search=x&state=running&before=7", "/pilots"):
        text = check(browser.get(path))
        assert "No embedded PanDA server runs here" in text
        assert str(pages.root) not in text
    for path in ("/jobs/7", "/jobs/7/log"):
        answer = browser.get(path)
        assert (answer.status_code, str(pages.root) in answer.text) == (503, False)
    check(browser.get("/help"))


def test_static_files_are_kept_by_browsers(pages):
    nobody = pages.browser(None)
    for path in set(re.findall(r'(/static/[^"]+)"', nobody.get("/login").text)):
        answer = nobody.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert nobody.get("/static/0000/monitor.css").headers["cache-control"] == "no-cache"
    assert nobody.get("/static/0000/..%2Fapp.py").status_code == 404


def test_families_have_a_page_of_their_searches(pages):
    record = pages.store.search(pages.submit("ofmodel"))
    for segment in ("one", "two"):
        search = record.search.model_copy(update={"name": f"fam-{segment}"})
        pages.store.create_search(search, source="x", sandbox=None, owner="alice", family="fam")
    browser = pages.browser("alice")
    answer = browser.get("/searches/fam")
    assert (answer.status_code, answer.headers["location"]) == (303, "/?family=fam")
    assert check(browser.get("/?family=fam")).count('id="search-') == 2


@pytest.mark.parametrize(("count", "note"), [(60, ""), (61, "And 1 more metric:"), (75, "And 15 more metrics:")])
def test_metrics_that_are_not_shown_are_counted(pages, count, note):
    name = pages.submit(f"metrics{count}")
    task = add_trials(pages.store, name, [Trial(1, 1, {"x": 0.5, "kind": "a"}, seed=1)], folds=2)
    metrics = {f"m{i:03}": float(i) for i in range(count)}
    outcomes = [made_attempt(task, 1, fold, 1, JobState.FINISHED, value=2.0, metrics=metrics) for fold in range(2)]
    pages.store.record(pages.store.search(name).id, outcomes, [])
    text = check(pages.browser("alice").get(f"/searches/{name}/trials/1"))
    assert "m059" in text
    assert "m060" not in text
    assert (note in text) if note else ("more metric" not in text)


def test_measured_energy_is_shown_with_the_search_and_the_trial(pages):
    name = pages.submit("energetic", folds=1)
    task = add_trials(pages.store, name, [Trial(1, 1, {"x": 0.5, "kind": "a"}, seed=1)])
    ran = made_attempt(task, 1, 0, 1, JobState.FINISHED, 2.0, seconds=2.0, joules=7.2e6)
    pages.store.record(pages.store.search(name).id, [ran], [made_end(1, TrialState.FINISHED, 2.0, told=1)])
    for path in (f"/searches/{name}", f"/searches/{name}/trials/1"):
        assert "2 kWh (measured)" in pages.browser("alice").get(path).text


def test_the_table_has_the_last_value_of_trials_that_were_stopped_early(pages):
    name = pages.submit("cut-short", folds=1)
    number = pages.store.search(name).id
    add_trials(pages.store, name, [Trial(n, 1, {"x": 0.1 * n, "kind": "a"}, seed=n) for n in (1, 2)])
    stop = EarlyStop(1, "loss 0.625 is 3rd of 3 (asha)", 4, 0.625, (0.5,))
    cut = {"error": "stopped early", "ended": time.time()}
    ends = [made_end(1, TrialState.STOPPED, told=1, stop=stop, **cut)]
    ends += [made_end(2, TrialState.STOPPED, told=2, stop=replace(stop, value=None, projected=None), **cut)]
    pages.store.record(number, [], ends)
    rows = check(pages.browser().get(f"/searches/{name}/trials?sort=number")).split("<tbody>")[1].split("</tr>")
    assert '<td class="value soft">(0.625)</td>' in rows[0]
    assert "stopped at step 4 with 0.625" in rows[0]
    assert "soft" not in rows[1]
    assert "stopped at step 4 with no number" in rows[1]


def test_levels_of_trials_and_of_their_search(pages):
    name = pages.submit("levels", folds=1, fidelity={"epochs": {"low": 1, "high": 9}}, budget={"fidelity": 60})
    point, number = {"x": 0.5, "kind": "a"}, pages.store.search(name).id
    made = [Trial(n, 1, point, level=1) for n in (1, 2)] + [Trial(3, 1, point, level=3, continues=1)]
    task = add_trials(pages.store, name, made)
    ran = [made_attempt(task, n, 0, 1, JobState.FINISHED, 0.1 * n, seconds=2.0 * n) for n in (1, 2, 3)]
    pages.store.record(number, ran, [made_end(n, TrialState.FINISHED, 0.1 * n, told=n) for n in (1, 2, 3)])
    alice = pages.browser("alice")
    texts = [check(alice.get(f"/searches/{name}/trials/{n}")) for n in (1, 2, 3)]
    assert "epochs: 1 of 9" in texts[0] and f'<a href="/searches/{name}/trials/3">trial 3</a> goes on' in texts[0]
    assert "paused" in texts[1] and "goes on" not in texts[1]
    assert f'goes on from <a href="/searches/{name}/trials/1">' in texts[2] and "the best" in texts[2]
    assert "number 2 of 3" in texts[0], "after the trial of the higher level, although its figure is better"
    assert "epochs 3, after trial 1" in check(alice.get(f"/searches/{name}/trials"))
    table = check(alice.get(f"/searches/{name}/trials?state=paused&sort=state"))
    assert "paused (2)" in table and "finished (1)" in table and "after trial 1" in table
    assert all((f"/trials/{n}" in table) is shown for n, shown in ((1, False), (2, True), (3, True)))
    overview = check(alice.get(f"/searches/{name}"))
    assert re.search("<dt>Budget</dt><dd>[0-9]+ points,", overview)
    assert "epochs: 1, 3, 9" in overview and ">1 finished<" in overview and ">2 paused<" in overview
    client = SearchClient.local(pages.workdir, opened=pages.store)
    assert [trial["state"] for trial in client.trials(name)] == ["finished", "paused", "paused"]
    assert [trial["number"] for trial in client.trials(name, where="state == 'paused' and value > 0.25")] == [3]
    assert "\n2,1,paused,0.2" in "".join(client.export(name, "csv"))
    status = client.status(name)
    assert status["best"]["state"] == client.best(name)["state"] == "paused"
    rows = [tuple(level.values()) for level in status["levels"]]
    assert rows == [(1.0, 2, 2, 1, 2.0, 6.0), (3.0, 1, 1, 1, 2.0, 6.0)]
    assert (status["best"]["level"], status["best"]["continues"], status["planned"]) == (3, 1, 26 + 8 + 3)
    said = command_here("status", name, "--workdir", str(pages.workdir)).stdout
    assert "(1 finished, 2 paused)" in said and "2 trials, 2 finished, 1 of them paused" in said


def test_searches_are_compared_on_one_page(pages):
    one, two = (
        pages.submit("compared-one"),
        pages.submit("compared-two", budget={"trials": 9, "parallel": 2}, owner="bob"),
    )
    other = pages.submit("compared-not", objective={"metric": "auc", "goal": "maximize"})
    for name in (one, two):
        pages.results(name)
    alice = pages.browser("alice")
    assert alice.get(f"/?q={one}").text.count(f">Compare {one}</label>") == 1
    assert f"/compare?search={one}" in alice.get(f"/searches/{one}").text
    text = check(alice.get(f"/compare?search={one}&search={two}&search={one}"))
    assert text.count(f'<a href="/searches/{one}">') == 1
    differences = text.split("Differences of the definitions")[1]
    assert "budget.trials" in differences
    assert "payload.command" not in differences
    assert f'value="{two}" checked' in text
    assert other not in text
    figures = alice.get(f"/compare/{one},{two}/figures/best").json()["figures"]
    assert [figure["key"] for figure in figures] == ["compare-trials", "compare-time", "compare-cost"]
    assert {line["meta"] for line in figures[0]["spec"]["data"]} == {one, two}
    refused = alice.get(f"/compare?search={one}&search={other}")
    assert refused.status_code == 422
    assert "different objectives" in refused.text
    assert alice.get("/compare?search=nosuch").status_code == 404
    assert alice.get("/compare?" + "&".join(f"search=s{n}" for n in range(9))).status_code == 422
    assert "Mark searches" in check(alice.get("/compare"))


def test_they_read_the_store_ahead_only_after_the_first_answer(pages, monkeypatch):
    begun = []
    monkeypatch.setattr(Monitor, "warm_up", lambda _monitor: begun.append(True))
    tokens = Tokens(pages.root / "tokens")
    api = Api(pages.store, WorkDir.make(pages.workdir), tokens, 1 << 20, sessions=pages.sessions)
    with TestClient(api.application(), base_url="http://testserver") as client:
        assert begun == []
        for _ in range(2):
            assert client.get("/api/v1/health").status_code == 200
            assert len(begun) == 1
