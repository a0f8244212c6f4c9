"""What a search file says about early stopping, against the rest of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpo_pilot.search import EarlyStopping, Folds, Objective, Resources, SiteChoice
from hpo_pilot.search.early_stopping import early_stopping_misfits
from hpo_pilot.search.misfit import Misfit


def check_early_stopping(parts: Mapping[str, Any]) -> tuple[list[Misfit], list[Misfit]]:
    """What is wrong, and what is allowed but perhaps not meant.

    Args:
        parts: the file's sections by name, those that are sound.
    """
    stopping, site, resources, folds = (parts.get(key) for key in ("early_stopping", "site", "resources", "folds"))
    if not isinstance(stopping, EarlyStopping):
        return [], []
    wrong = early_stopping_misfits(
        stopping,
        trials_per_job=resources.trials_per_job if isinstance(resources, Resources) else 1,
        folds=folds.k if isinstance(folds, Folds) else stopping.folds or 1,
        metrics=[one.metric for one in parts.get("objective", ()) if isinstance(one, Objective)],
    )
    notes = []
    if stopping.is_on and isinstance(site, SiteChoice) and site.profile == "grid":
        message = "pilots that are not hpo-pilot's ship no intermediate values: trials that they run are never stopped"
        notes.append(
            Misfit(
                ("early_stopping",), message, "start pilots of your own there: hpo-pilot pilot --server URL --queue Q"
            )
        )
    return wrong, notes
