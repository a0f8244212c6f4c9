from __future__ import annotations

from hpo_pilot.optimizers.objective_models import last_step, refit_cut


def test_cuts_of_the_history_do_not_depend_on_the_way_there() -> None:
    assert [refit_cut(n) for n in (0, 5, 20, 21, 22, 41)] == [0, 5, 20, 21, 22, 40]
    assert refit_cut(10_000) > 9_400
    assert all(refit_cut(refit_cut(n)) == refit_cut(n) <= n for n in range(1, 500))


def test_a_coarser_ladder() -> None:
    assert [last_step(n, 10, 0.25) for n in (0, 10, 11, 12, 14, 15, 18)] == [0, 10, 10, 12, 12, 15, 18]
