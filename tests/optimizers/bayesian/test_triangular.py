from __future__ import annotations

import numpy as np
import pytest

from hpo_pilot.optimizers import gaussian_process
from hpo_pilot.optimizers.gaussian_process import lower_factor, solved


@pytest.mark.parametrize("columns", [0, 1, 15, 40])
def test_done_in_parts_it_is_the_same_solution(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(gaussian_process, "_IN_ONE_GO", 1.0)  # sixteen columns at a time
    numbers = np.random.default_rng(1)
    root = numbers.standard_normal((12, 12))
    matrix = root @ root.T + np.eye(12)
    factor = lower_factor(matrix)
    assert np.allclose(factor @ factor.T, matrix)
    assert np.array_equal(factor, np.tril(factor))
    right = numbers.standard_normal((12, columns))
    assert np.allclose(factor @ solved(factor, right.copy()), right)
    assert np.allclose(factor.T @ solved(factor, right.copy(), transposed=True), right)


def test_what_has_no_factor_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        lower_factor(np.array([[1.0, 2.0], [2.0, 1.0]]))
