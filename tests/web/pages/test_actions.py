"""What users do with searches in a browser: done as the user, logged, and nothing lost where it does not work."""

from __future__ import annotations

import asyncio
import html
import re
import threading
import time

import httpx
import pytest
from anyio import to_thread

from hpo_pilot.search import Trial, TrialState
from hpo_pilot.search.limits import MOST_PARAMETERS
from hpo_pilot.server.tokens import Role
from hpo_pilot.steering import changes
from hpo_pilot.store import SearchState, StoreAwayError, lease
from tests.made import made_end
from tests.rest_api import add_trials
from tests.web.pages.conftest import BASE, form_token


def send(browser, name: str, action: str, **fields: str):
    hidden = hidden_fields(browser.get(f"/searches/{name}/{action}").text)
    return browser.post(f"/searches/{name}/{action}", data={**hidden, **fields})


def hidden_fields(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="([\w.]+)" value="([^"]*)">', page))


def events(pages, name: str) -> list[tuple[str, str]]:
    return [(event.who, event.what) for event in pages.store.events(pages.store.search(name).id)]


def test_pause_resume_and_stop(pages):
    name, alice = pages.submit("steered"), pages.browser("alice")
    with lease.held_lease(pages.store.engine, "serve"):
        for action, state in (("pause", "paused"), ("resume", "running"), ("stop", "stopping")):
            answer = send(alice, name, action)
            assert (answer.status_code, answer.headers["location"]) == (303, f"/searches/{name}?done={action}")
            assert pages.store.search(name).state == state
            assert 'class="notice good"' in alice.get(answer.headers["location"]).text
    assert [who for who, _ in events(pages, name)] == ["alice"] * 4


def test_stop_is_asked_for_twice(pages):
    name, alice = pages.submit("stopped-once"), pages.browser("alice")
    overview = alice.get(f"/searches/{name}").text
    assert f'action="/searches/{name}/stop"' not in overview
    assert f'href="/searches/{name}/stop"' in overview
    asked = alice.get(f"/searches/{name}/stop")
    assert asked.status_code == 200
    assert "results stay" in asked.text
    assert pages.store.search(name).state == "submitted"


def test_extend_adds_once(pages):
    name, alice = pages.submit("extended"), pages.browser("alice")
    hidden = hidden_fields(alice.get(f"/searches/{name}/extend").text)
    form = {**hidden, "trials": "+6", "hours": "1.5"}
    assert alice.post(f"/searches/{name}/extend", data=form).status_code == 303
    budget = pages.store.search(name).search.budget
    assert (budget.trials, budget.hours) == (10, 6.5)
    assert alice.post(f"/searches/{name}/extend", data=form).status_code == 303  # a form sent twice
    assert pages.store.search(name).search.budget.trials == 10
    stale = alice.post(f"/searches/{name}/extend", data={**form, "trials": "7"})
    assert stale.status_code == 503
    assert "changed meanwhile" in stale.text
    assert pages.store.search(name).search.budget.trials == 10
    assert events(pages, name)[-1][0] == "alice"


def test_a_new_highest_level(pages):
    name, alice = pages.submit("higher", folds=1, fidelity={"epochs": {"low": 1, "high": 9}}), pages.browser("alice")
    form = {**hidden_fields(alice.get(f"/searches/{name}/extend").text), "high": "27"}
    for _ in range(2):  # a form sent twice
        assert alice.post(f"/searches/{name}/extend", data=form).status_code == 303
    assert pages.store.search(name).search.levels.high == 27
    assert 'name="high"' not in alice.get(f"/searches/{pages.submit('flat')}/extend").text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "at least one amount"),
        ({"trials": "many"}, "'many' is not a number"),
        ({"trials": "-3"}, "may only grow"),
        ({"trials": "1.5"}, "whole number"),
        ({"trials": "nan"}, "is not a number"),
        ({"trials": "1e400"}, "is not a number"),
        ({"trials": "1" + "0" * 23}, "does not extend the budget"),
        ({"trials": "999997"}, "must be 1000000 or less"),
        ({"hours": "1e308"}, "does not extend the budget"),
        ({"gpu_hours": "5"}, "no limit on gpu_hours"),
        ({"trials": "<b>x</b>"}, "is not a number"),
    ],
)
def test_what_does_not_work_is_said_beside_the_form_and_nothing_is_lost(pages, fields, said):
    if not any(head.name == "refused" for head in pages.monitor._parts.library.heads()):
        pages.submit("refused")
    answer = send(pages.browser("alice"), "refused", "extend", **fields)
    assert answer.status_code == 422
    assert said in html.unescape(answer.text)
    for value in fields.values():
        assert "<b>" not in answer.text
        if "gpu_hours" not in fields:
            assert f'value="{html.escape(value)}"' in answer.text
    assert pages.store.search("refused").search.budget.trials == 4


def test_add_a_point(pages):
    name, alice = pages.submit("points"), pages.browser("alice")
    pages.results(name)
    form = alice.get(f"/searches/{name}/add").text
    assert "0 to 1" in form
    assert 'value="0.0002"' in form  # the best point is filled in
    answer = send(alice, name, "add", **{"p.x": "2.5e-1", "p.kind": "1"})
    assert answer.status_code == 303, answer.text
    (wish,) = pages.store.requested_points(pages.store.search(name).id)
    assert wish.point == {"x": 0.25, "kind": "b"}
    assert wish.who == "alice"
    for far in ("1e308", "-1e308", "9" * 5000):
        assert send(alice, name, "add", **{"p.x": far, "p.kind": "0"}).status_code == 422
    outside = send(alice, name, "add", **{"p.x": "7", "p.kind": "0"})
    assert outside.status_code == 422
    assert 'value="7"' in outside.text
    for no_choice in ("9", "-1", "b", "9" * 5000):
        assert send(alice, name, "add", **{"p.x": "0.5", "p.kind": no_choice}).status_code == 422


def test_retry_failed_trials(pages):
    name, alice = pages.submit("again"), pages.browser("alice")
    assert "Retry failed" not in alice.get(f"/searches/{name}").text
    pages.results(name)
    assert "1 failed trial" in alice.get(f"/searches/{name}/retry").text
    assert send(alice, name, "retry", trials="2").status_code == 422
    assert send(alice, name, "retry", trials="one").status_code == 422
    assert send(alice, name, "retry", trials="1").status_code == 303
    (wish,) = pages.store.requested_points(pages.store.search(name).id)
    assert wish.retries == 1
    assert "trial 1 again" in alice.get(f"/searches/{name}").text


def test_more_side_by_side(pages):
    name, alice = pages.submit("wider"), pages.browser("alice")
    assert send(alice, name, "parallel", parallel="3").status_code == 303
    assert pages.store.search(name).search.budget.parallel == 3
    for wrong in ("0", "1.5", "", "x", "100001", "1" + "0" * 23, "1e308", "9" * 400):
        assert send(alice, name, "parallel", parallel=wrong).status_code == 422
    assert pages.store.search(name).search.budget.parallel == 3


def test_only_owners_and_operators_change_a_search(pages):
    name = pages.submit("alices")
    bob, operator = pages.browser("bob"), pages.browser("oscar", Role.OPERATOR)
    seen = bob.get(f"/searches/{name}").text
    assert f'action="/searches/{name}/pause"' not in seen
    assert "alice or an operator may change it" in seen
    forced = bob.post(f"/searches/{name}/pause", data={"form": form_token(seen)})
    assert forced.status_code == 422
    assert "only alice or an operator" in html.unescape(forced.text)
    assert pages.store.search(name).state is SearchState.SUBMITTED
    assert send(operator, name, "pause").status_code == 303
    assert events(pages, name)[-1] == ("oscar", "paused")
    assert "alice or an operator" in bob.get(f"/searches/{name}/actions").text
    assert "Resume" in pages.browser("alice").get(f"/searches/{name}/actions").text


def test_a_store_that_is_away_is_not_named(pages, monkeypatch):
    name = pages.submit("away")
    alice = pages.browser("alice")

    def locked(*_args):
        raise StoreAwayError(f"store sqlite:///{pages.workdir}/hpo-pilot.db: database is locked")

    monkeypatch.setattr(changes, "pause", locked)
    answer = send(alice, name, "pause")
    assert answer.status_code == 503
    assert "out of reach" in answer.text
    assert str(pages.workdir) not in answer.text


def test_there_are_no_other_actions(pages):
    name, alice = pages.submit("noother"), pages.browser("alice")
    assert alice.post(f"/searches/{name}/delete", data={}).status_code == 404
    assert alice.post("/searches/nosuch/pause", data={"form": form_token(alice.get("/").text)}).status_code == 404


def test_pages_do_not_stall_while_actions_wait_for_a_locked_store(pages, monkeypatch):
    """Each waits up to half a minute in a thread; the API has twelve for everything."""
    name, released, waiting = pages.submit("locked"), threading.Event(), threading.Semaphore(0)
    pause, most, now = changes.pause, [0], [0]
    lock = threading.Lock()

    def slow(*given):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        waiting.release()
        released.wait(600)
        with lock:
            now[0] -= 1
        return pause(*given)

    monkeypatch.setattr(changes, "pause", slow)

    async def scene() -> list[int]:
        to_thread.current_default_thread_limiter().total_tokens = 4
        transport = httpx.ASGITransport(app=pages.app)
        cookies = dict(alice.cookies)
        async with httpx.AsyncClient(transport=transport, base_url=BASE, cookies=cookies) as browser:
            browser.headers.update({"accept": "text/html", "sec-fetch-site": "same-origin"})
            form = {"form": token_of_form}
            sent = [asyncio.create_task(browser.post(f"/searches/{name}/pause", data=form)) for _ in range(6)]
            async with asyncio.timeout(600):
                while not waiting.acquire(blocking=False):
                    await asyncio.sleep(0.01)
                page = await browser.get(f"/searches/{name}")
                released.set()
                return [page.status_code, *sorted({answer.status_code for answer in await asyncio.gather(*sent)})]

    alice = pages.browser("alice")
    token_of_form = form_token(alice.get(f"/searches/{name}").text)
    try:
        assert asyncio.run(scene())[:2] == [200, 303]
    finally:
        released.set()
    assert most[0] <= 3


def test_the_best_point_is_filled_in_to_the_last_digit(pages):
    space = {"x": {"type": "real", "low": 0.0, "high": 1.0}, "n": {"type": "integer", "low": 1, "high": 2**53}}
    name, alice = pages.submit("digits", space=space, folds=1), pages.browser("alice")
    best = {"x": 0.1 + 0.2, "n": 2**53 - 1}
    record = pages.store.search(name)
    add_trials(pages.store, name, [Trial(1, 1, best, seed=1)])
    pages.store.record(record.id, (), [made_end(1, TrialState.FINISHED, 0.5, told=1, ended=time.time())])
    form = html.unescape(alice.get(f"/searches/{name}/add").text)
    assert 'value="0.30000000000000004"' in form
    given = dict(re.findall(r'name="(p\.\w+)"[^>]*? value="([^"]*)"', form))
    answer = send(alice, name, "add", **{**given, "p.x": "0.25"})
    assert answer.status_code == 303, answer.text
    (wish,) = pages.store.requested_points(record.id)
    assert wish.point == {**best, "x": 0.25}


def test_all_mistakes_of_a_typed_point_are_said_at_their_fields(pages):
    space = {
        "x": {"type": "real", "low": 0.0, "high": 1.0},
        "n": {"type": "integer", "low": 1, "high": 6},
        "kind": {"type": "categorical", "choices": ["a", "b"]},
        "only": {"type": "real", "low": 0.0, "high": 1.0, "when": {"kind": "b"}},
    }
    name, alice = pages.submit("mistaken", space=space, folds=1), pages.browser("alice")
    answer = send(alice, name, "add", **{"p.x": "much", "p.n": "7", "p.kind": "0", "p.only": "0.5"})
    assert answer.status_code == 422
    page = html.unescape(answer.text)
    assert "3 values are wrong" in page
    for place, field, said in ((1, "x", "'much' is not a number"), (2, "n", "7"), (4, "only", "not active here")):
        (about,) = re.findall(rf'name="p.{field}"[^>]* aria-describedby="([^"]*)" aria-invalid="true"', page)
        assert f"wrong-{place}" in about.split()
        assert said in page.split(f'id="wrong-{place}">')[1].split("<")[0]
    assert "wrong-3" not in page
    assert 'value="much"' in page
    nothing = html.unescape(send(alice, name, "add", **{"p.x": "0.5", "p.kind": "0"}).text)
    assert "One value is wrong" in nothing
    assert "is missing" in nothing.split('id="wrong-2">')[1].split("<")[0]
    assert not pages.store.requested_points(pages.store.search(name).id)


def test_notes_and_tags_are_written_shown_and_found(pages):
    name, alice = pages.submit("noted"), pages.browser("alice")
    pages.results(name)
    assert send(alice, name, "note", tags="paper, <b>", note="first\r\nsecond").status_code == 303
    answer = send(alice, name, "trials/2/note", tags="good", note="look here")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/searches/{name}/trials/2?done=note")
    assert 'class="notice good"' in alice.get(answer.headers["location"]).text
    shown = alice.get(f"/searches/{name}").text
    assert "first\nsecond" in shown
    assert 'href="/?tag=paper"' in shown
    assert "&lt;b&gt;" in shown
    for query, there in (("tag=Paper", 1), ("q=SECOND", 1), ("tag=none", 0), ("tag=paper&owner=bob", 0)):
        assert (f'href="/searches/{name}"' in alice.get(f"/?{query}").text) == there, query
    for query, numbers in (("q=GOOD", ["2"]), ("q=look", ["2"]), ("q=exit", ["1"]), ("q=none", [])):
        found = alice.get(f"/searches/{name}/trials?{query}").text
        assert re.findall(rf'<th scope="row"><a href="/searches/{name}/trials/(\d+)"', found) == numbers, query
    assert "look here" in alice.get(f"/searches/{name}/trials/2").text
    too_long = send(alice, name, "note", tags="x" * 41, note="kept")
    assert too_long.status_code == 422
    assert "kept</textarea>" in too_long.text
    assert send(alice, name, "trials/9/note", note="x").status_code == 422
    assert pages.browser("bob").get(f"/searches/{name}/trials/2/note").status_code == 403
    assert [what for _, what in events(pages, name)][-2:] == [
        "note: first\nsecond; tags: paper, <b>",
        "trial 2: note: look here; tags: good",
    ]


def test_forms_are_only_for_those_who_may_send_them(pages):
    name = pages.submit("formed")
    for action in ("extend", "add", "stop", "parallel", "retry"):
        refused = pages.browser("bob").get(f"/searches/{name}/{action}")
        assert refused.status_code == 403, action
        assert "only alice or an operator may change it" in html.unescape(refused.text)
        assert f'action="/searches/{name}' not in refused.text
        assert pages.browser("oscar", Role.OPERATOR).get(f"/searches/{name}/{action}").status_code == 200


def test_a_point_with_the_most_parameters_is_sent(pages):
    names = [f"parameter_{number:03}_{'x' * 40}" for number in range(MOST_PARAMETERS)]
    name = pages.submit("wide", space={each: {"type": "real", "low": 0.0, "high": 1.0} for each in names})
    alice = pages.browser("alice")
    fields = {"form": form_token(alice.get(f"/searches/{name}/add").text), **{f"p.{each}": "0.5" for each in names}}
    answer = alice.post(f"/searches/{name}/add", data=fields)
    assert (answer.status_code, answer.headers.get("location")) == (303, f"/searches/{name}?done=add"), answer.text[
        :500
    ]
