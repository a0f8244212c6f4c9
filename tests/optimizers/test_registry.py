from __future__ import annotations

import subprocess
import sys

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers import create_optimizer, optimizer_class, optimizer_names
from hpo_pilot.search import SearchSpace

SPACE = SearchSpace.from_dict({"x": {"type": "real", "low": 0, "high": 1}})


def test_every_name_makes_its_optimizer() -> None:
    assert optimizer_names() == ("auto", "random", "grid", "bayesian", "evolutionary", "cma", "optuna")
    for name in optimizer_names():
        assert type(create_optimizer(name, SPACE)) is optimizer_class(name)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [("bayesan", "did you mean 'bayesian'"), ("Random", "did you mean 'random'"), ("xyz", "there are")],
)
def test_an_unknown_name_gets_a_hint(wrong: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        create_optimizer(wrong, SPACE)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("evolutionary", {"population": 1}, "population: must be 2 or more, not 1"),
        ("evolutionary", {"elite": 1.5}, "elite"),
        ("evolutionary", {"mate": "cxNothing"}, "cxNothing.*cxBlend"),
        ("evolutionary", {"mate": {"name": "cxBlend", "beta": 1}}, "cxBlend takes no argument 'beta'"),
        ("evolutionary", {"select": "recipe"}, "selTournament"),
        ("cma", {"sigma": 0}, "sigma"),
        ("bayesian", {"start_points": "many"}, "start_points: must be a whole number"),
        ("grid", {"points_per_dimension": 0}, "points_per_dimension"),
    ],
)
def test_wrong_settings_are_named(name: str, settings: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        create_optimizer(name, SPACE, settings=settings)


def test_a_library_is_imported_only_for_its_optimizer() -> None:
    code = (
        "import sys; from hpo_pilot.optimizers import create_optimizer, optimizer_class\n"
        "from hpo_pilot.search import SearchSpace; optimizer_class('optuna')\n"
        "create_optimizer('random', SearchSpace.from_dict({'x': {'type': 'real', 'low': 0, 'high': 1}})).ask(2)\n"
        "print([m for m in ('skopt', 'sklearn', 'scipy', 'deap', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
