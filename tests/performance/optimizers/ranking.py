"""Who is ahead: expected ranks, and how sure a difference is.

A table holds the final regrets of each runner on each problem, a number a seed; runners may have different numbers of
seeds, and a problem may be missing.

The rank of a runner on a problem is the rank it has on average when one run of each runner is drawn at random, so
``1 + Σ P(the other is better) + ½ Σ P(equal)`` over the others, estimated from all pairs of runs (the Mann-Whitney
statistic). That needs no pairing by seed, which means nothing between different algorithms, and takes any number of
seeds. Mean ranks average it over the problems, each of equal weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from scipy.stats import rankdata, wilcoxon

#: runner -> problem -> final regrets, one a seed.
Table: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]


def beaten(mine: Sequence[float], others: Sequence[float]) -> float:
    """The probability that a run of the other is better than one of mine; equal ones count half."""
    a, b = np.asarray(mine)[:, None], np.asarray(others)[None, :]
    return float(np.mean((b < a) + 0.5 * (b == a)))


def ranks(table: Table, problem: str) -> dict[str, float]:
    """The expected rank of each runner that has the problem; 1 is best."""
    present = {runner: runs[problem] for runner, runs in table.items() if runs.get(problem)}
    return {
        runner: 1.0 + sum(beaten(mine, others) for other, others in present.items() if other != runner)
        for runner, mine in present.items()
    }


def mean_ranks(table: Table, problems: Sequence[str]) -> dict[str, float]:
    """The mean over the problems of each runner that has them all; nobody else is ranked, nor ranked against."""
    complete = {r: runs for r, runs in table.items() if all(runs.get(problem) for problem in problems)}
    by_problem = [ranks(complete, problem) for problem in problems]
    return {runner: float(np.mean([found[runner] for found in by_problem])) for runner in complete}


def p_over_runs(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> float | None:
    """Wilcoxon's signed-rank p, two-sided, over pairs (problem, seed); None where there is nothing to compare.

    Regrets of different problems have different scales, so each is replaced by its rank among both runners' runs on
    its problem, as a share of their number.
    """
    differences: list[float] = []
    for problem in first.keys() & second.keys():
        n = min(len(first[problem]), len(second[problem]))
        if n:
            both = np.concatenate([first[problem][:n], second[problem][:n]])
            places = rankdata(both) / (2 * n)
            differences += (places[:n] - places[n:]).tolist()
    return _p(differences)


def p_over_problems(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> float | None:
    """The same over problems: of each the probability that the first is beaten, less a half."""
    shared = [problem for problem in first.keys() & second.keys() if first[problem] and second[problem]]
    return _p([beaten(first[problem], second[problem]) - 0.5 for problem in sorted(shared)])


def _p(differences: Sequence[float]) -> float | None:
    if not any(differences):
        return None
    return float(wilcoxon(differences, zero_method="zsplit").pvalue)
