"""The model of one objective: which scale its values are seen on, the hyper-parameters there, and what that implies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpo_pilot.optimizers.bayesian.features import FeatureMap
from hpo_pilot.optimizers.bayesian.gaussian_process import Fit, Hyperparameters, best_fit
from hpo_pilot.optimizers.bayesian.ladder import ladder_step, refit_cut
from hpo_pilot.optimizers.bayesian.posterior import Posterior
from hpo_pilot.optimizers.bayesian.start_rules import LEAST_VALUES
from hpo_pilot.optimizers.bayesian.told import Rows, Table, Told
from hpo_pilot.optimizers.bayesian.transfer import Transfer
from hpo_pilot.optimizers.bayesian.trend import Basis
from hpo_pilot.optimizers.bayesian.values import PLAIN, Warped, warps
from hpo_pilot.optimizers.streams import array_stream

Array = npt.NDArray[np.float64]

#: Hyper-parameters are fitted on this many points at most: the cost grows with the cube.
_FITTED = 256

#: On which scale the values are seen is decided less often, on this many points at most.
_SCALE_EACH, _SCALE_GROWTH, _SCALED = 10, 0.25, 128

#: Up to this many good values there is a second process, without a trend.
_SECOND_OPINION = 600


@dataclass(frozen=True)
class ValuesModel:
    """What a fit to the values finds.

    Attributes:
        scale: the name of the scale on which the process explains them best.
        fit: its hyper-parameters there.
        weights: how much each earlier search counts, shape (n_sources,); None: not at all.
    """

    scale: str
    fit: Hyperparameters
    weights: Array | None = None


class ValuesLearner:
    """Fits the models of one objective, with a trend and without; each fit belongs to a cut of what was told."""

    def __init__(
        self,
        features: FeatureMap,
        told: Told,
        objective: int,
        seed: int,
        earlier: Mapping[str, Table],
    ) -> None:
        """Knows what `told` knows.

        Args:
            features: the map from unit vectors.
            told: what was told, and will be.
            objective: which of the values.
            seed: the optimizer's.
            earlier: what was told of earlier searches; `forget` when it changes.
        """
        self._features = features
        self._told = told
        self._objective = objective
        self._seed = seed
        # The last fit of either kind, and the cut of the history that it belongs to.
        self._models: dict[bool, tuple[int, ValuesModel]] = {}
        self._scales: dict[bool, tuple[int, str]] = {}
        self._earlier = earlier
        self._transfer: Transfer | None = None

    @property
    def transfer(self) -> Transfer | None:
        """The models of the earlier searches; None where they have nothing to say."""
        if not self._earlier:
            return None
        if self._transfer is None:
            self._transfer = Transfer(self._features, self._earlier, self._objective, self._seed)
        return self._transfer if self._transfer else None

    def forget(self) -> None:
        """Fits anew, for the earlier searches have changed."""
        self._transfer = None
        self._models.clear()

    def models(self, known: int) -> list[ValuesModel]:
        """The models at the present cut: with a trend and, while there are few good values (`known`), without."""
        cut = refit_cut(len(self._told))
        found = []
        for trend in (True, False) if known <= _SECOND_OPINION else (True,):
            at, model = self._models.get(trend, (-1, None))
            if model is None or at != cut:
                model = self._fit(cut, trend)
                self._models[trend] = (cut, model)
            found.append(model)
        return found

    def earlier_best(self, known: int) -> list[Array]:
        """Unit vectors of the earlier searches' best points, shape (n, n_dims), if they count in any present model."""
        transfer = self.transfer
        if transfer is None or all(model.weights is None for model in self.models(known)):
            return []
        return [transfer.best]

    def posteriors(self, table: Table, rows: Rows, features: Array) -> list[Posterior]:
        """What each model says of the space, given some of what was told.

        Args:
            table: all that was told.
            rows: those to be conditioned on, all good.
            features: of these rows, shape (n_rows, n_features).
        """
        good = table.good
        found = {warped.name: warped for warped in warps(table.values[good, self._objective])}
        places = np.searchsorted(good, rows)
        result = []
        for model in self.models(len(rows)):
            values = variances = np.zeros(len(rows))
            if found:  # else they are all the same
                warped = found.get(model.scale, found[PLAIN])
                values = warped.values[places]
                variances = self._variances(warped, table, good)[places]
            transfer = self.transfer
            drift = None if transfer is None or model.weights is None else transfer.drift(model.weights, features)
            result.append(Posterior.of_data(model.fit, features, values, variances, drift))
        return result

    def _fit(self, cut: int, trend: bool) -> ValuesModel:
        """The scale on which the process explains the first `cut` trials best, and its hyper-parameters there."""
        found = self._best_fit(cut, trend, self._scale(cut, trend), _FITTED)
        transfer = self.transfer
        if found is None:
            wide = Hyperparameters.wide(self._features.size)
            if transfer is None:
                return ValuesModel(PLAIN, wide)
            return ValuesModel(PLAIN, transfer.expected_rest(wide), transfer.expected_weights())
        if transfer is not None:
            helped = transfer.fit(found.features, found.warped.values, basis=found.basis, variances=found.variances)
            if helped.log_evidence > found.fit.log_posterior:
                return ValuesModel(found.warped.name, helped.found, helped.weights)
        return ValuesModel(found.warped.name, found.fit.found)

    def _scale(self, cut: int, trend: bool) -> str | None:
        """The scale that did best at an earlier cut, for it seldom changes; None: this cut is one to find it at."""
        at = ladder_step(cut, _SCALE_EACH, _SCALE_GROWTH)
        if at == cut and cut <= _SCALED:
            return None
        known = self._scales.get(trend)
        if known is None or known[0] != at:
            found = self._best_fit(at, trend, None, _SCALED)
            known = (at, PLAIN if found is None else found.warped.name)
            self._scales[trend] = known
        return known[1]

    def _best_fit(self, cut: int, trend: bool, scale: str | None, limit: int) -> _ScaledFit | None:
        """The process that explains the first `cut` trials best, or `limit` of them, on that scale or on any.

        None while there are too few values, or they are all the same.
        """
        table = self._told.table(cut)
        rows = table.most_telling(limit, array_stream(self._seed, "fit", "values", cut))
        if len(rows) < LEAST_VALUES:  # the first values came after the cut
            return None
        found = warps(table.values[rows, self._objective])
        features = self._features.features(table.units[rows])
        basis = self._features.basis if trend else None
        best: _ScaledFit | None = None
        for warped in [warped for warped in found if warped.name == scale] or found:
            variances = self._variances(warped, table, rows)
            fit = best_fit(features, warped.values, basis=basis, variances=variances)
            if best is None or fit.log_posterior + warped.log_volume > best.evidence:
                best = _ScaledFit(features, warped, variances, basis, fit)
        return best

    def _variances(self, warped: Warped, table: Table, rows: Rows) -> Array:
        """The known variances of the rows' values on a scale made for them."""
        return warped.variances(table.stds[rows, self._objective], table.stopped[rows])


@dataclass(frozen=True)
class _ScaledFit:
    """A fit on one scale, and what it was made from."""

    features: Array
    warped: Warped
    variances: Array
    basis: Basis | None
    fit: Fit

    @property
    def evidence(self) -> float:
        """The logarithm of what can be compared between scales."""
        return self.fit.log_posterior + self.warped.log_volume
