from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta

from hpo_pilot import __version__
from hpo_pilot.report.html import ReportFacts, citation, payload_versions
from hpo_pilot.search import Search, Trial
from tests.made import made_fold
from tests.report.figures.made_up import make_search, make_trial


def test_a_citation_tells_which_search_it_was(search: Search, facts: ReportFacts) -> None:
    text = citation(search, facts, "search: digits-mlp\n")
    assert text.startswith(
        'Hyper-parameter search "digits-mlp", 2026-03-01: optimizer auto, budget of 48 trials, seed 7,'
    )
    assert hashlib.sha256(b"search: digits-mlp\n").hexdigest()[:16] in text
    assert text.endswith(f"Made with hpo-pilot, version {__version__}.")
    assert text != citation(search, facts, "search: digits-mlp\nseed: 8\n")
    assert facts.ended is not None
    later = citation(search, replace(facts, ended=facts.ended + timedelta(days=2)), "")
    assert ", 2026-03-01 to 2026-03-03:" in later
    assert '"digits-mlp": optimizer' in citation(search, ReportFacts(), "")
    levels = make_search(fidelity={"epochs": {"low": 1, "high": 9}}, budget={"trials": 12})
    assert "budget of 12 points, seed" in citation(levels, ReportFacts(), "")


def test_versions_that_payloads_report() -> None:
    def trial(number: int, versions: object) -> Trial:
        return make_trial(number, 0.5, folds=(made_fold(0, 0.5, metadata={"versions": versions}),))

    found = payload_versions(
        [trial(1, {"torch": "2.9.1"}), trial(2, {"torch": "2.9.2", "cuda": 13}), make_trial(3, 0.1)]
    )
    assert found == {"torch": "2.9.1, 2.9.2", "cuda": "13"}
    assert payload_versions([trial(1, ["torch"]), trial(2, {"torch": ["x"]}), trial(3, None)]) == {}
    many = payload_versions([trial(n, {"torch": f"2.{n}"}) for n in range(9)])
    assert many == {"torch": "2.0, 2.1, 2.2, 2.3, 2.4 and 4 more"}
    assert len(payload_versions([trial(1, {f"name{n}": "1" for n in range(99)})])) == 40
