from __future__ import annotations

import math

import pytest

from tests.performance.optimizers.ranking import beaten, mean_ranks, p_over_problems, p_over_runs, ranks


def test_the_expected_rank_counts_pairs_of_runs_and_halves_ties() -> None:
    assert beaten([1.0, 3.0], [2.0, 3.0]) == pytest.approx((0 + 0 + 1 + 0.5) / 4)
    table = {"a": {"p": [1.0, 3.0]}, "b": {"p": [2.0, 3.0]}, "c": {"p": [0.0]}}
    assert ranks(table, "p") == {
        "a": pytest.approx(1 + 0.375 + 1),
        "b": pytest.approx(1 + 0.625 + 1),
        "c": pytest.approx(1.0),
    }


def test_ranks_of_a_problem_add_up_whatever_the_number_of_seeds() -> None:
    table = {"a": {"p": [5.0] * 7}, "b": {"p": [5.0, math.inf]}, "c": {"p": [math.inf] * 3}}
    assert sum(ranks(table, "p").values()) == pytest.approx(1 + 2 + 3)


def test_who_lacks_a_problem_is_neither_ranked_nor_ranked_against() -> None:
    table = {"a": {"p": [1.0], "q": [2.0]}, "b": {"p": [2.0], "q": [1.0]}, "partial": {"p": [0.0]}}
    assert mean_ranks(table, ["p", "q"]) == {"a": 1.5, "b": 1.5}
    assert mean_ranks(table, ["p"])["partial"] == 1.0


def test_p_values_do_not_depend_on_a_problems_scale() -> None:
    first = {"p": [1.0, 2.0, 3.0, 4.0], "q": [5.0, 6.0, 7.0, 9.0]}
    second = {"p": [2.5, 2.6, 3.5, 5.0], "q": [6.5, 7.5, 8.5, 8.0]}
    stretched = [{"p": [1e6 * v for v in t["p"]], "q": t["q"]} for t in (first, second)]
    p = p_over_runs(first, second)
    assert p is not None
    assert 0.0 < p < 0.2
    assert p_over_runs(*stretched) == p
    assert p_over_runs(second, first) == pytest.approx(p)


def test_p_values_of_equal_runs_and_of_clear_differences() -> None:
    same = {f"p{i}": [1.0, 2.0] for i in range(9)}
    better = {f"p{i}": [0.1, 0.2] for i in range(9)}
    assert p_over_runs(same, same) is None
    assert p_over_problems(better, same) == pytest.approx(2 / 2**9)
