"""The CSV table: what the runner measures."""

from __future__ import annotations

import csv

from hpo_pilot.report.exports import as_csv
from tests.made import made_fold
from tests.report.figures.made_up import make_search, make_trial


def test_measured_figures_are_means_over_the_folds_in_columns_of_their_own() -> None:
    folds = tuple(made_fold(n, 0.5, metrics={"energy_joules": 2.0 * n, "accuracy": 0.9}) for n in (1, 2))
    text = as_csv(make_search(), [make_trial(1, 0.5, folds=folds), make_trial(2, None)])
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["metrics.energy_joules"] for row in rows] == ["3.0", ""]
    assert [name for name in rows[0] if name.startswith("metrics.")] == ["metrics.energy_joules"]
