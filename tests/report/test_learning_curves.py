from __future__ import annotations

from collections.abc import Callable

from hpo_pilot.report.html import ReportFacts, render_report
from hpo_pilot.search import Search, Trial, TrialState
from tests.report.figures.test_learning_curves import STOP


def test_the_report_has_it(search_of: Callable[..., Search], trial_of: Callable[..., Trial]) -> None:
    stopped = trial_of(3, None, state=TrialState.STOPPED, stop=STOP)
    few = [trial_of(1, 0.2), trial_of(2, 0.1), stopped, trial_of(4, 0.3)]
    search = search_of(early_stopping={"method": "asha", "max_steps": 81}, warm_start=["digits-old"])
    reports = {1: {0: [(1, 0.5), (2, 0.4)]}, 3: {0: [(1, 0.9), (3, 0.9)]}}
    text = render_report(search, few, [], ReportFacts(state="done"), reports)
    assert 'id="figure-curves"' in text and "1 stopped early" in text
    assert "<dd>asha, max_steps 81</dd>" in text and "<dd>digits-old</dd>" in text
    assert 'id="figure-curves"' not in render_report(search, few, [], ReportFacts(state="done"))
