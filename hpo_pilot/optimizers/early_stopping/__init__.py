"""Rules by which hopeless trials are stopped before their end. Pure: they know neither jobs nor the clock."""

from hpo_pilot.optimizers.early_stopping.asha import AshaRule
from hpo_pilot.optimizers.early_stopping.curves import Curves, Report
from hpo_pilot.optimizers.early_stopping.median import MedianRule
from hpo_pilot.optimizers.early_stopping.rule import Stop, StoppingRule
from hpo_pilot.search import EarlyStopping

__all__ = ["AshaRule", "Curves", "MedianRule", "Report", "Stop", "StoppingRule", "create_rule"]


def create_rule(settings: EarlyStopping, folds: int) -> StoppingRule | None:
    """The rule that a search file asks for, knowing nothing yet; None: every trial runs to its end.

    Args:
        settings: `early_stopping` of the search.
        folds: of a trial.
    """
    if settings.method == "asha":
        return AshaRule(settings, folds)
    return MedianRule(settings, folds) if settings.method == "median" else None
