"""Linear algebra on large triangles that lets other threads work: the steering loop must not wait for an ask.

scipy holds the interpreter's lock while LAPACK works, numpy does not; and what scipy alone has is done in parts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

Array = npt.NDArray[np.float64]

#: Multiplications after which others get their turn: some 10 milliseconds.
_IN_ONE_GO = 1e8


def solved(factor: Array, right: Array, *, transposed: bool = False) -> Array:
    """`factor` x = `right`, for a lower triangle of shape (n, n) and right sides of shape (n, m).

    Args:
        factor: the lower triangle.
        right: the right sides; may be overwritten.
        transposed: solve with the triangle's transpose.
    """
    result = np.asfortranarray(right)
    width = max(16, int(_IN_ONE_GO / max(1, len(factor)) ** 2))
    for start in range(0, result.shape[1], width):
        part = result[:, start : start + width]
        part[:] = solve_triangular(
            factor, part, lower=True, trans="T" if transposed else "N", overwrite_b=True, check_finite=False
        )
    return result


def lower_factor(matrix: Array) -> Array:
    """The lower Cholesky factor of a symmetric matrix, in Fortran order as the solvers want it.

    Raises:
        numpy.linalg.LinAlgError: it is not positive definite.
    """
    return np.asfortranarray(np.linalg.cholesky(matrix))
