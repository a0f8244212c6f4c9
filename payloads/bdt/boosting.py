"""Three families of gradient-boosted trees behind one interface: scikit-learn's, XGBoost's, LightGBM's.

scikit-learn is needed anyway; the other two are imported when a point asks for them.
"""

from __future__ import annotations

import importlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import joblib
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

Array = np.ndarray


class TrainingError(Exception):
    """The training gives no figure of merit; the message says why and goes to output.json."""


def _library(name: str) -> ModuleType:
    """The module of a boosting library.

    Raises:
        TrainingError: this Python does not have it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TrainingError(
            f"model {name} needs the package {name}, which cannot be imported here ({error}): "
            f"`pip install {name}`, or take {name} out of the choices of `model`"
        ) from error


@dataclass(frozen=True)
class Task:
    """What is learnt from.

    Attributes:
        features: (n, d); NaN: missing.
        labels: (n,) 1 or 0.
        weights: (n,) positive, with a mean of 1.
        valid: (m, d) features of the validation part.
        seed: of what the model draws.
    """

    features: Array
    labels: Array
    weights: Array
    valid: Array
    seed: int

    @property
    def threads(self) -> int:
        """How many the library may use."""
        return int(os.environ.get("OMP_NUM_THREADS", "1").split(",")[0])


class Boosted(ABC):
    """Trees that grow one round at a time.

    Class attributes:
        parameters: the names that a point must have for this family.
    """

    parameters: ClassVar[frozenset[str]]

    @abstractmethod
    def __init__(self, point: dict[str, Any], task: Task, state: Any = None) -> None:
        """Prepares. It goes on from `state`, that of an earlier model; None: no tree is learnt yet."""

    @abstractmethod
    def state(self) -> Any:
        """The trees learnt so far, as a value that can be pickled."""

    @abstractmethod
    def grow(self, rounds: int) -> Iterator[Array]:
        """Learns up to `rounds` trees in all; yields after each new one the margins of the validation part, (m,)."""

    @abstractmethod
    def margins(self, features: Array, rounds: int) -> Array:
        """(n,) logarithms of the odds for signal, by the first `rounds` trees."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the model into a folder that is there, in its library's own form."""


def _coarse(features: Array) -> Array:
    """Features with no more values than the trees have bins: each replaced by the nearest of its quantiles.

    Given weights, scikit-learn's own binning sums all of them anew for each of its bins: five times the time that the
    trees take. These values it takes as they are, and it cuts halfway between two, which is where the nearest one
    changes: the model is exactly one of the features as they were.
    """
    found = features.copy()
    for column in found.T:
        known = ~np.isnan(column)
        if known.any():
            levels = np.unique(np.quantile(column[known], np.linspace(0.0, 1.0, 255), method="nearest"))
            column[known] = levels[np.searchsorted((levels[1:] + levels[:-1]) * 0.5, column[known])]
    return found


class ScikitLearn(Boosted):
    """HistGradientBoostingClassifier."""

    parameters = frozenset({"learning_rate", "leaves", "leaf_events", "l2", "columns"})
    #: It is taught this many trees at a time: each call evaluates the trees before it anew.
    _AT_ONCE = 20

    def __init__(self, point: dict[str, Any], task: Task, state: Any = None) -> None:
        self._task, self._features = task, _coarse(task.features)
        self._model = state or HistGradientBoostingClassifier(
            learning_rate=point["learning_rate"],
            max_leaf_nodes=point["leaves"],
            min_samples_leaf=point["leaf_events"],
            l2_regularization=point["l2"],
            max_features=float(point["columns"]),  # an integer would be a number of features
            early_stopping=False,
            warm_start=True,
            random_state=task.seed,
        )

    def state(self) -> Any:
        """The model, with its random generators; see Boosted."""
        return self._model

    def grow(self, rounds: int) -> Iterator[Array]:
        """Learns; see Boosted."""
        done = getattr(self._model, "n_iter_", 0)
        while done < rounds:
            self._model.set_params(max_iter=min(done + self._AT_ONCE, rounds))
            self._model.fit(self._features, self._task.labels, sample_weight=self._task.weights)
            for number, margins in enumerate(self._model.staged_decision_function(self._task.valid)):
                if number >= done:
                    yield margins
            done = self._model.n_iter_

    def margins(self, features: Array, rounds: int) -> Array:
        """The first `rounds` trees; see Boosted."""
        for number, margins in enumerate(self._model.staged_decision_function(features), 1):
            if number == rounds:
                return margins
        raise ValueError(f"there are not {rounds} rounds")

    def save(self, folder: Path) -> None:
        """model.joblib: a HistGradientBoostingClassifier."""
        joblib.dump(self._model, folder / "model.joblib")


class XGBoost(Boosted):
    """XGBoost's trees, grown level by level from histograms."""

    parameters = frozenset({"learning_rate", "depth", "leaf_weight", "l2", "columns", "rows"})

    def __init__(self, point: dict[str, Any], task: Task, state: Any = None) -> None:
        self._library = _library("xgboost")
        self._train = self._library.DMatrix(task.features, label=task.labels, weight=task.weights)
        self._valid = self._library.DMatrix(task.valid)
        settings = {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "learning_rate": point["learning_rate"],
            "max_depth": point["depth"],
            "min_child_weight": point["leaf_weight"],
            "reg_lambda": point["l2"],
            "colsample_bynode": point["columns"],
            "subsample": point["rows"],
            "seed": task.seed,
            "nthread": task.threads,
        }
        # Of matrices that it is told of here it remembers the margins: each round then costs one tree.
        self._model = self._library.Booster(settings, [self._train, self._valid])
        if state is not None:
            self._model.load_model(state)
            self._model.set_param(settings)

    def state(self) -> Any:
        """The model in XGBoost's own form; see Boosted."""
        return self._model.save_raw()

    def grow(self, rounds: int) -> Iterator[Array]:
        """Learns; see Boosted."""
        for number in range(self._model.num_boosted_rounds(), rounds):
            self._model.update(self._train, number)
            yield self._model.predict(self._valid, output_margin=True)

    def margins(self, features: Array, rounds: int) -> Array:
        """The first `rounds` trees; see Boosted."""
        matrix = self._library.DMatrix(features)
        return self._model.predict(matrix, output_margin=True, iteration_range=(0, rounds))

    def save(self, folder: Path) -> None:
        """model.json: XGBoost's own form."""
        self._model.save_model(folder / "model.json")


class LightGBM(Boosted):
    """LightGBM's trees, grown leaf by leaf from histograms."""

    parameters = frozenset({"learning_rate", "leaves", "leaf_events", "l2", "columns", "rows"})

    def __init__(self, point: dict[str, Any], task: Task, state: Any = None) -> None:
        library = _library("lightgbm")
        settings = {
            "objective": "binary",
            "learning_rate": point["learning_rate"],
            "num_leaves": point["leaves"],
            "min_data_in_leaf": point["leaf_events"],
            "lambda_l2": point["l2"],
            "feature_fraction_bynode": point["columns"],
            "bagging_fraction": point["rows"],
            "bagging_freq": 1,
            "seed": task.seed,
            "num_threads": task.threads,
            "deterministic": True,
            "force_row_wise": True,  # else it measures which way is faster, and sums in another order each time
            "verbosity": -1,
        }
        data = library.Dataset(task.features, label=task.labels, weight=task.weights, params=settings)
        self._valid, self._done = task.valid, 0
        if state is None:
            self._model = library.Booster(settings, data)
        else:  # such a model grows further only after a round by this function
            earlier = library.Booster(model_str=state)
            self._done = earlier.current_iteration()
            self._model = library.train(settings, data, 1, init_model=earlier, keep_training_booster=True)

    def state(self) -> Any:
        """The model in LightGBM's own form; see Boosted."""
        return self._model.model_to_string(num_iteration=self._done)

    def grow(self, rounds: int) -> Iterator[Array]:
        """Learns; see Boosted."""
        margins = np.zeros(len(self._valid))
        if self._done:
            margins = self._model.predict(self._valid, raw_score=True, num_iteration=self._done)
        for number in range(self._done, rounds):
            if number == self._model.current_iteration():
                self._model.update()
            self._done = number + 1
            margins = margins + self._model.predict(
                self._valid, raw_score=True, start_iteration=number, num_iteration=1
            )
            yield margins

    def margins(self, features: Array, rounds: int) -> Array:
        """The first `rounds` trees; see Boosted."""
        return self._model.predict(features, raw_score=True, num_iteration=rounds)

    def save(self, folder: Path) -> None:
        """model.txt: LightGBM's own form."""
        self._model.save_model(folder / "model.txt")


FAMILIES: dict[str, type[Boosted]] = {"sklearn": ScikitLearn, "xgboost": XGBoost, "lightgbm": LightGBM}


def save_cut(folder: Path, rounds: int, cut: float, signal_weight: float) -> None:
    """Writes beside the model what applying it needs: how many of its trees count, and the cut on the margin."""
    facts = {"rounds": rounds, "cut": cut, "signal_weight": signal_weight}
    (folder / "cut.json").write_text(json.dumps(facts) + "\n")
