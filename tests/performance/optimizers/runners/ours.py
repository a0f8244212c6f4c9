"""This product's own optimizers, by name."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers import create_optimizer
from tests.performance.optimizers.problem import Evaluation, Problem
from tests.performance.optimizers.runners.runner import Proposal, Runner
from tests.performance.optimizers.setting import Setting


class Ours(Runner):
    """`create_optimizer(name, …)`, told the budget as a search file tells it."""

    def __init__(self, name: str, problem: Problem, setting: Setting, seed: int) -> None:
        super().__init__(problem, setting, seed)
        self._optimizer = create_optimizer(name, problem.space, seed=seed, trials=setting.evaluations)
        self._pending: dict[int, Proposal] = {}

    def ask(self, n: int) -> list[Proposal]:
        """Everything that is out is handed in as pending."""
        try:
            points = self._optimizer.ask(n, [proposal.point for proposal in self._pending.values()])
        except ExhaustedError:
            return []
        proposals = [Proposal(point) for point in points]
        self._pending.update((id(proposal), proposal) for proposal in proposals)
        return proposals

    def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
        """An infeasible point would be told as failed; there should be none."""
        for proposal, _ in results:
            del self._pending[id(proposal)]
        self._optimizer.tell([(p.point, e.value if e.feasible else None) for p, e in results])
