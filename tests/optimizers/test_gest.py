"""gest-api both ways: a foreign generator as optimizer, and our optimizers as generators, also in libEnsemble."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("gest_api")
from gest_api.generator import Generator
from gest_api.vocs import VOCS

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.gest_generator import HpoPilotGenerator
from hpo_pilot.search import SearchSpace

SPACE = SearchSpace.from_dict(
    {
        "lr": {"type": "real", "low": 1e-4, "high": 1.0, "scale": "log"},
        "kind": {"type": "categorical", "choices": ["a", "b"]},
    }
)


class Fixed(Generator):
    """Suggests the middle, or what its options say, and notes what it ingested."""

    ingested: list[dict[str, float]] = []  # noqa: RUF012 - of the last generator, for the tests

    def __init__(self, vocs, lr=0.5, size=None):
        super().__init__(vocs)
        self.lr, self.size, Fixed.ingested = float(lr), size, []

    def _validate_vocs(self, vocs):
        assert {tuple(one.domain) for one in vocs.variables.values()} == {(0.0, 1.0)}

    def suggest(self, num_points):
        if self.size and num_points not in (None, self.size):
            raise ValueError("wrong size")
        return [{"lr": self.lr, "kind": 0.9}] * (self.size or num_points)

    def ingest(self, results):
        Fixed.ingested += results


class Broken(Fixed):
    def suggest(self, num_points):
        raise ZeroDivisionError("no point")


@pytest.fixture(autouse=True)
def _module(monkeypatch):
    found = ModuleType("my_generators")
    found.Fixed, found.Broken = Fixed, Broken
    monkeypatch.setitem(sys.modules, "my_generators", found)


def optimizer(name: str = "Fixed", objectives: int = 1, **options):
    settings = {"generator": f"my_generators:{name}", "options": options}
    return create_optimizer("gest", SPACE, settings=settings, objectives=objectives)


def test_it_learns_what_the_standard_can_say() -> None:
    """Units of the space's scales; pending points by the mean; neither failed trials nor points outside."""
    one = optimizer(size=1)
    assert one.ask(2, [])[0] == {"lr": pytest.approx(0.01), "kind": "b"}, "the second point is random"
    one.tell([({"lr": 1.0, "kind": "a"}, 3.0), ({"lr": 1e-4, "kind": "b"}, 1e300), ({"lr": 0.1, "kind": "b"}, None)])
    one.tell([({"lr": 10.0, "kind": "a"}, 1.0)])
    one.ask(1, [{"lr": 0.01, "kind": "a"}])
    seen = [tuple(round(value, 6) for value in row.values()) for row in Fixed.ingested]
    assert seen == [(1.0, 0.25, 3.0), (0.0, 0.75, 1e100), (0.5, 0.25, 5e99)]


def test_a_generator_that_fails_is_named() -> None:
    with pytest.raises(InputError, match="my_generators:Broken failed: ZeroDivisionError: no point"):
        optimizer("Broken").ask(1, [])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "generator: is missing"),
        ({"generator": "my_generators"}, "generator"),
        ({"generator": "no_such:Class"}, "install its package"),
        ({"generator": "pathlib:Path"}, "no subclass"),
        ({"generator": "my_generators:Fixed", "options": {"lr": "high"}}, "options: .*could not convert"),
        ({"generator": "my_generators:Fixed", "options": {"speed": 1}}, "options: .*unexpected keyword"),
    ],
)
def test_mistakes_in_settings(settings, said: str) -> None:
    with pytest.raises(InputError, match=said):
        create_optimizer("gest", SPACE, settings=settings)


BOX = {"x": [0.0, 1.0], "n": {"type": "ContinuousVariable", "domain": [1, 4], "dtype": "int"}, "kind": {"b", "a"}}


def generator(**vocs) -> HpoPilotGenerator:
    given = {"variables": dict(BOX), "objectives": {"f": "MAXIMIZE"}, "constants": {"c": 7}, **vocs}
    return HpoPilotGenerator(VOCS(**given), optimizer="random", seed=3)


def test_ours_as_a_generator() -> None:
    ours = generator(constraints={"g": ["LESS_THAN", 1.0]})
    points = ours.suggest(3)
    assert [point.pop("c") for point in points] == [7, 7, 7]
    twin = create_optimizer("random", ours._optimizer.space, seed=3)
    assert points == twin.ask(3) and all(type(point["n"]) is int for point in points)
    with pytest.raises(ValueError, match="has no n"):
        ours.ingest([{"x": 0.5, "kind": "a", "f": 1.0, "g": 0.0}])
    outputs = [{"f": 2.0, "g": 0.0}, {"f": 2.0, "g": 2.0}, {"f": float("nan"), "g": 0.0}]
    ours.ingest([{**point, **output, "other": "text"} for point, output in zip(points, outputs, strict=True)])
    assert [seen.values for seen in ours._optimizer.history] == [(-2.0,), None, None]
    assert len(ours.suggest()) == 1


def test_a_space_with_too_few_points_suggests_none() -> None:
    ours = generator(variables={"x": {1, 2, 3}})
    with pytest.raises(ValueError, match="3 points"):
        ours.suggest(4)
    assert sorted(point["x"] for point in ours.suggest(3)) == [1, 2, 3]
    with pytest.raises(ValueError, match="no point is left"):
        ours.suggest(1)


@pytest.mark.parametrize(
    "vocs",
    [
        {"objectives": {}},
        {"objectives": {"f": "EXPLORE"}},
        {"variables": {"x": [0.0, float("inf")]}},
        {"variables": {"x": {"type": "ContinuousVariable", "domain": [0, 1], "dtype": (float, (3,))}}},
    ],
)
def test_what_it_cannot_take(vocs) -> None:
    with pytest.raises(ValueError, match=r"objectives|x"):
        generator(**vocs)


def loss(row, *_):
    return {"f": (row["x"] - 0.3) ** 2 + row["y"]}


def test_in_libensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LibEnsemble 1.6 runs it as it is: all its points are evaluated, and the optimizer is told of them."""
    pytest.importorskip("libensemble")
    from libensemble import Ensemble
    from libensemble.alloc_funcs.start_only_persistent import only_persistent_gens
    from libensemble.specs import AllocSpecs, ExitCriteria, GenSpecs, LibeSpecs, SimSpecs

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run"])
    vocs = VOCS(variables={"x": [0.0, 1.0], "y": [1.0, 2.0]}, objectives={"f": "MINIMIZE"})
    ours = HpoPilotGenerator(vocs, optimizer="bayesian", trials=12)
    ensemble = Ensemble(
        libE_specs=LibeSpecs(comms="threads", nworkers=2, gen_on_manager=True, disable_log_files=True),
        gen_specs=GenSpecs(generator=ours, vocs=vocs, initial_batch_size=4, batch_size=2),
        sim_specs=SimSpecs(simulator=loss, vocs=vocs),
        alloc_specs=AllocSpecs(alloc_f=only_persistent_gens),
        exit_criteria=ExitCriteria(sim_max=12),
    )
    history, _, status = ensemble.run()
    done = history[history["sim_ended"]]
    assert status == 0 and len(done) >= 12
    assert len({(x, y) for x, y in zip(done["x"], done["y"], strict=True)}) == len(done)
    told = {(seen.point["x"], seen.point["y"]): seen.value for seen in ours._optimizer.history}
    assert len(told) >= 8 and all(told[point] == loss({"x": point[0], "y": point[1]})["f"] for point in told)
