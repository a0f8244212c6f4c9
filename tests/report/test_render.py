from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import yaml

from hpo_pilot.report.html import ReportFacts
from hpo_pilot.search import Search, Trial, TrialState
from tests.html_page import Page
from tests.made import made_fold
from tests.report.figures.made_up import (
    ROWS,
    SPACE,
    STOP,
    TWO,
    make_search,
    make_trial,
    make_trials,
    measured,
    rendered,
    several_trials,
    strings,
)

Events = list[tuple[datetime, str, str]]
DONE = ReportFacts(state="done")
SIZE_LIMIT = 7_000_000
_ATTACK = "</script></pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7007 * 11 }}"


def assert_sound(document: str) -> Page:
    """What holds for every report: well-formed, accessible, small, complete in itself."""
    document.encode()
    assert len(document.encode()) < SIZE_LIMIT
    page = Page(document)
    ids = set(page.ids)
    assert len(ids) == len(page.ids), page.ids
    for each in page.elements:
        for name in ("src", "href", "action", "poster", "data"):
            target = each.attributes.get(name, "#")
            assert target.startswith("#") or target == "data:,", f"{each.tag} asks for {target}"
            assert target == "#" or not target.startswith("#") or target[1:] in ids, f"no target {target}"
        assert not [name for name in each.attributes if name.startswith("on")]
        assert {each.attributes.get("aria-labelledby", "main")} <= ids
    for head in page.all("th"):
        assert head.attributes["scope"] in ("row", "col")
    assert len(page.all("caption")) == len(page.all("table"))
    specs = json.loads(page.by_id("figures").text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    plots = [
        each
        for each in page.all("div")
        if each.attributes.get("class", "").startswith("plot ") or each.attributes.get("class") == "plot"
    ]
    assert {plot.attributes["id"] for plot in plots} == set(specs)
    assert all(plot.attributes["role"] == "img" and plot.attributes["aria-label"] for plot in plots)
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    scripts = [each for each in page.all("script") if each.attributes.get("type") != "application/json"]
    assert len(scripts) == 3
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy.attributes["content"]
    assert policy.attributes["content"].startswith("default-src 'none'; script-src 'sha256-")
    return page


def page_of(search: Search, trials: list[Trial], facts: ReportFacts = DONE, **more: Any) -> Page:
    """The page of a report, which has what every report has."""
    return assert_sound(rendered(search, trials, more.pop("events", []), facts, **more))


def test_a_report_says_it_all(search: Search, trials: list[Trial], events: Events, facts: ReportFacts) -> None:
    page = assert_sound(rendered(search, trials, events, facts))
    best = min((trial for trial in trials if trial.value is not None), key=lambda trial: trial.value or 0)
    text = " ".join(page.text.split())
    for words in (
        f"found by trial {best.number}; 44 of 48 trials finished (4 failed)",
        "The budget of 48 trials is spent.",
        "48 of 48",
        "3 min 12 s",
        "layers * width <= 512",
        "solver is sgd",
        "1.8 jobs ran at once on average",
        "hpo-pilot run payloads/digits/search.yaml",
        "training diverged in epoch 3",
        "generation 1: 4 trials",
        "plotly.js",
    ):
        assert words in text, words
    codes = [element.text for element in page.all("pre")]
    assert yaml.safe_load(codes[0]) == best.point
    assert json.loads(codes[1]) == best.point
    complete = next(code for code in codes if code.startswith("search: digits-mlp"))
    assert Search.model_validate(yaml.safe_load(complete)) == search
    assert page.by_id(f"trial-{best.number}").attributes["class"] == "best"
    assert len(page.all("tr", **{"class": "best"})) == 2


def test_the_same_values_give_the_same_document(search: Search, trials: list[Trial], facts: ReportFacts) -> None:
    document = rendered(search, trials, [], facts)
    assert rendered(search, list(reversed(trials)), [], facts) == document
    # Times in the store have no zone; the zone of others may be given.
    naive = replace(facts, ended=datetime(2026, 3, 1, 13, 0, 0))
    assert "1 h" in page_of(search, trials[:3], replace(naive, cost=replace(facts.cost, job_seconds=math.nan))).text


@pytest.mark.parametrize(
    ("trials", "words"),
    [
        ([], "No trial has been made yet."),
        (
            [make_trial(1, None), make_trial(2, math.nan), make_trial(3, None, state=TrialState.RUNNING, told=None)],
            "No loss yet: none of 3 trials has finished (1 failed, 1 not ended yet).",
        ),
        ([make_trial(1, 0.0)], "The lowest loss is 0, found by trial 1; 1 of 1 trial finished."),
        (
            [make_trial(1, 0.5), make_trial(2, None), make_trial(3, None, state=TrialState.PENDING, told=None)],
            "1 of 3 trials finished (1 failed, 1 not ended yet)",
        ),
    ],
)
def test_before_the_end(search: Search, trials: list[Trial], words: str) -> None:
    page = page_of(search, trials, ReportFacts())
    assert words in page.text
    assert trials or page.all("div", role="img") == []


def test_a_best_point_at_a_bound_and_ties_are_remarked(facts: ReportFacts) -> None:
    trials = [make_trial(n, 0.5) for n in (1, 2, 3)]
    bounds = {"learning_rate": {"type": "real", "low": 1e-3, "high": 1.0, "scale": "log"}}
    page = page_of(make_search(space={**SPACE, **bounds}), trials, facts)
    assert "3 trials have this value." in page.text
    assert "learning_rate is at its lower bound, 0.001" in page.text


def test_maximize_and_confirmations(trials: list[Trial], facts: ReportFacts) -> None:
    search = make_search(objective={"metric": "auc", "goal": "maximize"}, confirm={"top": 1, "repeats": 2})
    best = max((trial for trial in trials if trial.value is not None), key=lambda trial: trial.value or 0)
    assert best.value is not None
    repeats = [replace(best, number=49 + n, told=49 + n, confirms=best.number) for n in (0, 1)]
    page = assert_sound(rendered(search, [*trials, *repeats], [], facts))
    assert "The highest auc is" in page.text
    assert "on average over 2 confirmation runs" in page.text
    assert "44 of 48 trials finished" in page.text, "a confirmation run is no trial of the budget"
    assert f"confirms trial {best.number}" in page.text


def test_what_the_search_knew_and_how_its_jobs_are_made_is_told(trials: list[Trial], facts: ReportFacts) -> None:
    few, point = trials[:3], trials[0].point
    known = [
        {"point": {**point, "layers": layers}, "value": value} for layers, value in ((1, 0.0), (2, -0.5), (3, None))
    ]
    changes = {"known": known, "resources": {"trials_per_job": 4}, "segments": {"arm": {}}, "constraints": []}
    text = assert_sound(rendered(make_search(**changes), few, [], facts)).text
    assert "3, told to the optimizer; the best has loss -0.5 at" in text
    assert "layers: 2" in text
    assert "up to 4 trials, one after another; 1 node" in text
    assert "segmentarm" in text
    highest = make_search(**changes, objective={"metric": "auc", "goal": "maximize"})
    assert "the best has auc 0 at" in assert_sound(rendered(highest, few, [], facts)).text
    plain = assert_sound(rendered(make_search(), few, [], facts)).text
    assert "known results" not in plain
    assert "up to 4 trials, one after another" not in plain


def test_untrusted_text_stays_text(facts: ReportFacts) -> None:
    space = {
        _ATTACK: {"type": "categorical", "choices": [_ATTACK, "other"]},
        "<b>x</b>": {"type": "real", "low": 0.0, "high": 1.0},
    }
    search = make_search(space=space, constraints=[], objective={"metric": _ATTACK}, payload={"command": _ATTACK})
    point = {_ATTACK: _ATTACK, "<b>x</b>": 0.5}
    fold = made_fold(fold=0, error=_ATTACK, log_tail=_ATTACK + "\x00\x1b[31m\udc80")
    trials = [
        Trial(1, 1, point, state=TrialState.FINISHED, values=(0.5,), told=1),
        Trial(2, 1, point, state=TrialState.FAILED, error=_ATTACK + "\udcff", told=2, folds=(fold,)),
    ]
    attacked = replace(
        facts, state=_ATTACK, message=_ATTACK, command=_ATTACK, store=_ATTACK, versions={_ATTACK: _ATTACK}
    )
    events = [(datetime(2026, 3, 1), _ATTACK, _ATTACK)]
    page = assert_sound(rendered(search, trials, events, attacked))
    assert page.all("img") == []
    assert page.all("b") == []
    assert _ATTACK in page.by_id("trial-2").text
    assert "77077" not in page.text.replace(_ATTACK, "")
    assert not re.search("[\x00\x1b\ud800-\udfff]", page.text)
    # Plotly reads some HTML in its texts: none may come from outside.
    assert not any("<img" in text or "<script" in text for text in strings(json.loads(page.by_id("figures").text)))


def test_thousands_of_trials(search: Search, events: Events) -> None:
    page = page_of(search, make_trials(search, 4000), events=events * 1000)
    assert re.search(r"Shows [\d,]+ of 4,000 trials", page.text)
    assert "hpo-pilot export digits-mlp --format csv" in page.text
    assert "2,700 earlier ones are left out" in page.text


def test_long_and_different_failures_and_many_parameters() -> None:
    space = {f"parameter_{n}": {"type": "real", "low": 0.0, "high": 1.0} for n in range(100)}
    reasons = ["".join(chr(97 + int(digit)) for digit in str(n)) + " failed " * 200 for n in range(1500)]
    trials = [
        make_trial(
            n,
            1.0 / n if n < 100 else None,
            point=dict.fromkeys(space, n / 2000),
            error=reason,
            folds=(made_fold(0, error=reason, log_tail="a line of a <log>\n" * 3000),),
        )
        for n, reason in enumerate(reasons, 1)
    ]
    page = page_of(make_search(space=space, constraints=[]), trials)
    assert "rarer reasons" in page.text
    assert "parameter_99=" in page.text


def test_lost_folds_and_retries_are_told(search: Search, facts: ReportFacts) -> None:
    folds = (made_fold(fold=0, value=0.1, attempt=3), made_fold(fold=1, error="out of memory"), made_fold(2, 0.2))
    page = page_of(search, [make_trial(1, 0.15, std=0.07, folds=folds)], replace(facts, repeated=2))
    text = " ".join(page.text.split())
    assert "out of memory 1 fold of 1 trial that finished with the other folds: 1" in text
    assert "over 2 folds" in text
    assert "repeated attempts2" in text


def test_sections_are_there_where_something_was_measured(search: Search, facts: ReportFacts) -> None:
    versions = made_fold(1, 0.5, metadata={"versions": {"torch <b>": "2.9.1"}})
    stopped = make_trial(3, None, state=TrialState.STOPPED, stop=STOP)
    trials = [measured(1, {}), make_trial(2, 0.5, folds=(versions,)), stopped, make_trial(4, 0.3)]
    early = make_search(early_stopping={"method": "asha", "max_steps": 81}, warm_start=["digits-old"])
    reports = {1: {0: [(1, 0.5), (2, 0.4)]}, 3: {0: [(1, 0.9), (3, 0.9)]}}
    document = rendered(early, trials, [], replace(facts, cost=replace(facts.cost, gpu_hours=12.5)), reports)
    page = assert_sound(document)
    (table,) = [element for element in page.all("table") if "load balance" in element.text]
    for words in ("75%", "80%", "60%", "10%", "rank 0 on n1: 33% longer than the mean"):
        assert words in table.text
    for words in (
        'id="figure-curves"',
        "1 stopped early",
        "<dd>asha, max_steps 81</dd>",
        "<dd>digits-old</dd>",
        "<dt>torch &lt;b&gt; (payload)</dt><dd>2.9.1</dd>",
        "<h3>Cite</h3>",
        "Hyper-parameter search &#34;digits-mlp&#34;",
        "<dt>seed</dt><dd>7</dd>",
        "<dd>12.5</dd>",
    ):
        assert words in document, words
    without = rendered(search, [make_trial(1, 0.5)], [], DONE)
    assert "Use of the ranks" not in without and 'id="figure-curves"' not in without


def test_several_objectives() -> None:
    search = make_search(objective=[*TWO, {"metric": "memory"}])
    trials = several_trials(*[None if row is None else (*row, row[0] * row[1]) for row in ROWS])
    page = page_of(search, trials)
    for words in (
        "on the Pareto front: the lowest loss is 1 (trial 2), the highest speed is 9 (trial 1)",
        "minimize loss, maximize speed, minimize memory",
        *("Pareto front", "Hypervolume", "loss against each parameter", "memory against each parameter"),
    ):
        assert words in page.text, words
    page_of(search, [], ReportFacts(state="running"))
    page_of(search, several_trials(None), ReportFacts(state="failed"))
    # Figures near the largest float, and a reference point that no trial reaches.
    far = several_trials(*[(n / 9, (-1e308, 1e308)[n % 2]) for n in range(9)])
    assert "hypervolume" in page_of(make_search(objective=TWO), far).text
    unreached = make_search(objective=[{**TWO[0], "reference": -100.0}, TWO[1]])
    nothing = "no trial is better than the reference point in every objective"
    assert nothing in page_of(unreached, trials_of_two := several_trials(*ROWS)).text
    assert nothing not in page_of(make_search(objective=TWO), trials_of_two).text
