"""How much each parameter matters: what a forest loses when it no longer sees the parameter.

Permutation importance (Breiman, Machine Learning 45 (2001) 5) of scikit-learn's random forest, measured on trials that
the forest was not fitted to. The forest predicts the rank of a trial's figure of merit, not the figure: a few diverged
trainings would otherwise be all that it explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpo_pilot.figures.figure import evenly, value_of
from hpo_pilot.figures.summary import figure_of
from hpo_pilot.search import Search, Trial

#: Fewer finished trials say nothing.
LEAST = 16
_SEED = 20_011


@dataclass(frozen=True)
class Effort:
    """How thoroughly it is measured.

    Attributes:
        points: trials at most.
        trees: of each forest.
        parts: into which the trials are divided; each is predicted by a forest fitted to the others.
        repeats: shuffles of each parameter in each part.
    """

    points: int
    trees: int
    parts: int
    repeats: int


THOROUGH = Effort(points=2000, trees=80, parts=4, repeats=3)
QUICK = Effort(points=400, trees=25, parts=2, repeats=1)


@dataclass(frozen=True)
class Importance:
    """One parameter's.

    Attributes:
        name: of the parameter.
        lost: by how much R² falls when its values are shuffled among the trials that have it; the mean.
        spread: the standard deviation over shuffles and parts; 0 for a single one.
        active: the share of the trials that have it.
    """

    name: str
    lost: float
    spread: float
    active: float


@dataclass(frozen=True)
class Importances:
    """Those of all parameters.

    Attributes:
        parameters: the one that matters most first.
        score: R² of the forest on trials that it was not fitted to: 1 is perfect, 0 no better than their mean.
        used: how many trials they are from.
        finished: how many there are.
    """

    parameters: tuple[Importance, ...]
    score: float
    used: int
    finished: int


def importances(search: Search, trials: Sequence[Trial], effort: Effort = THOROUGH) -> Importances | None:
    """The importances for the (first) objective; None where fewer than `LEAST` trials finished, or all came out equal.

    The same trials give the same importances.
    """
    finished = [trial for trial in trials if trial.confirms is None and figure_of(trial) is not None]
    if len(finished) < LEAST or len({value_of(trial) for trial in finished}) == 1:
        return None
    import numpy as np  # noqa: PLC0415 - takes half a second; commands that draw nothing load this module
    from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - two more

    from hpo_pilot.figures.encoding import encoded, ranks  # noqa: PLC0415 - as above

    many = len(search.space.names) > 20  # its cost grows with them
    # An even sample: one that prefers the best would change what is to be explained.
    shown = evenly(sorted(finished, key=lambda trial: trial.number), effort.points // (2 if many else 1))
    points, wanted = encoded(search, shown), ranks([value_of(trial) for trial in shown])
    repeats = 1 if many else effort.repeats
    rng = np.random.default_rng(_SEED)
    order = rng.permutation(len(shown))
    errors = 0.0
    lost = np.zeros((effort.parts * repeats, len(points.names)))
    spread = float(np.var(wanted))
    for part in range(effort.parts):
        held = order[part :: effort.parts]
        fitted = np.setdiff1d(order, held)
        forest = RandomForestRegressor(
            effort.trees // (2 if many else 1), min_samples_leaf=2, max_features=0.5, random_state=_SEED + part
        )
        forest.fit(points.columns[fitted], wanted[fitted])
        error = (forest.predict(points.columns[held]) - wanted[held]) ** 2
        errors += float(error.sum())
        for repeat in range(repeats):
            row = part * repeats + repeat
            shuffled = []
            for index, group in enumerate(points.groups):
                columns = points.columns[held].copy()
                having = np.flatnonzero(points.active[held, index])
                columns[np.ix_(having, group)] = columns[np.ix_(rng.permutation(having), group)]
                shuffled.append(columns)
            # All of them at once: a forest's answer costs more than its trees' work.
            answers = forest.predict(np.vstack(shuffled)).reshape(len(shuffled), len(held))
            lost[row] = (((answers - wanted[held]) ** 2).mean(axis=1) - error.mean()) / spread
    found = [
        Importance(name, float(lost[:, i].mean()), float(lost[:, i].std()), float(points.active[:, i].mean()))
        for i, name in enumerate(points.names)
    ]
    found.sort(key=lambda one: -one.lost)  # equal ones stay in the order of the search file
    return Importances(tuple(found), 1 - errors / (len(shown) * spread), len(shown), len(finished))
