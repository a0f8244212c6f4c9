"""Points that may be proposed, and the feasible region."""

from __future__ import annotations

import random
import warnings
from contextlib import nullcontext

import numpy as np
import pytest

from hpo_pilot.errors import ExhaustedError, InputError
from hpo_pilot.optimizers import create_optimizer, feasible_region, optimizer_names
from hpo_pilot.optimizers.feasible_region import FeasibleRegion
from hpo_pilot.optimizers.proposals import Proposals, unit_vector
from hpo_pilot.search import SearchSpace, point_key
from hpo_pilot.steering.search_file import parse_search
from tests.optimizers.runs import REAL

SPACE = SearchSpace.from_dict({"x": REAL, "n": {"type": "integer", "low": 0, "high": 4}}, ["x + n >= 0.5"])


def test_only_what_may_be_proposed_is_taken() -> None:
    told, pending = {point_key({"x": 0.5, "n": 1})}, [{"x": 0.5, "n": 2}, {"x": 0.5, "n": 1}]
    proposals = Proposals(SPACE, 2, told, pending)
    assert proposals.known == 2
    assert not proposals.offer_point({"x": 0.5, "n": 1})  # told
    assert not proposals.offer_point({"x": 0.5, "n": 2})  # pending
    assert not proposals.offer_point({"x": 0.1, "n": 0})  # infeasible
    assert proposals.offer_point({"x": 0.5, "n": 3})
    assert not proposals.offer_point({"x": 0.5, "n": 3})  # a second time
    assert proposals.offer([0.5, 0.99])
    assert not proposals.offer([0.6, 0.99])  # none is missing any more
    assert proposals.points == [{"x": 0.5, "n": 3}, {"x": 0.5, "n": 4}]


def test_complete_stops_at_a_limit() -> None:
    proposals = Proposals(SPACE, 5, set(), [])
    assert len(proposals.complete(random.Random(1), limit=2)) == 2
    assert proposals.missing == 3
    assert len(proposals.complete(random.Random(2))) == 5


def test_the_last_points_of_a_large_finite_space_are_found() -> None:
    space = SearchSpace.from_dict({"a": {"type": "integer", "low": 1, "high": 20_000}})
    told = {point_key({"a": a}) for a in range(1, 20_001) if a not in (77, 19_999)}
    found = Proposals(space, 3, told, []).complete(random.Random(1))
    assert sorted(point["a"] for point in found) == [77, 19_999]
    with pytest.raises(ExhaustedError):
        Proposals(space, 1, told | {point_key(point) for point in found}, []).complete(random.Random(1))


def test_where_told_points_lie() -> None:
    space = SearchSpace.from_dict(
        {
            "x": {"type": "real", "low": 1, "high": 100, "scale": "log"},
            "c": {"type": "categorical", "choices": ["a", "b"]},
            "y": {"type": "real", "low": 0, "high": 1, "when": {"c": "b"}},
        }
    )
    assert unit_vector(space, {"x": 10, "c": "a"}) == pytest.approx((0.5, 0.25, 0.5))
    assert unit_vector(space, {"x": 1000.0, "c": "b", "y": -1.0}) == pytest.approx((1.5, 0.75, -1.0))
    for nowhere in (
        {"x": 0.0, "c": "a"},
        {"x": True, "c": "a"},
        {"x": "10", "c": "a"},
        {"x": 10, "c": "z"},
        {"x": 10, "c": "b"},
        {"x": 10, "c": "a", "y": 0.5},
        {"x": 10, "c": "a", "z": 0.5},
        {},
    ):
        assert unit_vector(space, nowhere) is None


# --- the feasible region ---


ALL_KINDS = {
    "x": {"type": "real", "low": -1.5, "high": 2.0},
    "lr": {"type": "real", "low": 1e-5, "high": 1.0, "scale": "log"},
    "n": {"type": "integer", "low": -3, "high": 5},
    "w": {"type": "integer", "low": 1, "high": 600, "scale": "log"},
    "big": {"type": "integer", "low": -(2**53), "high": 2**53},
    "st": {"type": "real", "low": 0.1, "high": 0.7, "step": 0.1},
    "c": {"type": "categorical", "choices": ["a", 1, True, 2.5, None]},
    "o": {"type": "ordinal", "choices": [32, 64, 128]},
    "b": {"type": "categorical", "choices": [True, False]},
    "m": {**REAL, "when": {"o": [64, 128]}},
    "d": {"type": "integer", "low": 1, "high": 3, "when": {"c": ["a", 1]}},
    "e": {**REAL, "when": {"d": [1, 2], "w": [100, 200, 300]}},
}
CONSTANTS = ["0", "1", "2", "3.5", "0.1", "-2", "1e300", "10**18", "True", "'a'", "None", "2**60"]
LISTS = ["(1, 2, 3)", "[0.5, True]", "'abc'", "()"]


def expression(numbers: random.Random, depth: int) -> str:
    """Any expression, most of them without sense."""
    if depth == 0 or numbers.random() < 0.15:
        return numbers.choice(list(ALL_KINDS) if numbers.random() < 0.7 else CONSTANTS)

    def part() -> str:
        return expression(numbers, depth - 1)

    match numbers.randrange(9):
        case 0 | 1 | 2:
            return f"({part()} {numbers.choice(['+', '-', '*', '/', '//', '%', '**', '&', '|'])} {part()})"
        case 3 | 4:
            more = f" {numbers.choice(['<', '<=', '!='])} {part()}" if numbers.random() < 0.3 else ""
            return f"({part()} {numbers.choice(['<', '<=', '==', '!=', '>', '>=', 'is', 'is not'])} {part()}{more})"
        case 5:
            return f"({part()} {numbers.choice(['and', 'or'])} {part()})"
        case 6:
            return numbers.choice([f"(not {part()})", f"(-{part()})", f"({part()} if {part()} else {part()})"])
        case 7:
            name = numbers.choice(["abs", "min", "max", "round", "sqrt", "log", "exp", "floor", "ceil", "int", "float"])
            return f"{name}({part()}, {part()})" if name in ("min", "max") else f"{name}({part()})"
    return f"({part()} {numbers.choice(['in', 'not in'])} {numbers.choice([*LISTS, f'({part()}, {part()})'])})"


def test_many_at_once_are_as_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feasible_region, "_CHUNK", 16)
    numbers = random.Random(11)
    base = SearchSpace.from_dict(ALL_KINDS)
    counts = {True: 0, False: 0}
    checked = 0
    warnings.simplefilter("ignore")  # "is" with a literal
    while checked < 300:
        text = expression(numbers, numbers.choice([1, 2, 3, 4])) + numbers.choice([" <= 1", " > 0", " != 2", ""])
        try:
            space = SearchSpace(dimensions=base.dimensions, constraints=(text,))
        except ValueError:
            continue
        checked += 1
        units = [
            [numbers.choice([0.0, 1.0, *(numbers.random() for _ in range(4))]) for _ in ALL_KINDS] for _ in range(24)
        ]
        expected = [space.is_feasible(space.decode(unit)) for unit in units]
        assert FeasibleRegion(space).mask(np.array(units)).tolist() == expected, text
        for one in expected:
            counts[one] += 1
    assert min(counts.values()) > 1000


def space_of(*constraints: str, dims: int = 2) -> SearchSpace:
    return SearchSpace.from_dict({f"x{index}": REAL for index in range(dims)}, constraints)


@pytest.mark.parametrize("share", [1e-2, 1e-3, 1e-5])
def test_small_regions_are_sampled_evenly(share: float) -> None:
    side = share**0.5
    space = space_of(f"x0 <= {side}", f"x1 >= {1 - side}")
    units = FeasibleRegion(space).sample(400, np.random.default_rng(1))
    assert units.shape == (400, 2)
    assert all(space.is_feasible(space.decode(unit)) for unit in units.tolist())
    within = np.stack([units[:, 0] / side, (1.0 - units[:, 1]) / side], axis=1)
    assert len({tuple(unit) for unit in units.tolist()}) == 400
    counts = np.histogram2d(*within.T, bins=4, range=[[0, 1], [0, 1]])[0]
    assert counts.min() >= (8 if share >= 1e-3 else 3)  # of 25 in each of 16 cells


def test_separate_feasible_regions_are_sampled_by_size() -> None:
    space = space_of("x0 <= 0.01 and x1 <= 0.01 or x0 >= 0.98 and x1 >= 0.99")  # one is twice as large
    units = FeasibleRegion(space).sample(600, np.random.default_rng(1))
    assert 0.55 < (units[:, 0] > 0.5).mean() < 0.78


def test_known_points_help_where_chance_does_not() -> None:
    space = space_of("x0 <= 1e-5", "x1 <= 1e-5")
    region = FeasibleRegion(space)
    anchors = np.array([[5e-6, 5e-6], [0.5, 0.5]])
    assert region.share == 0.0
    assert len(region.sample(10, np.random.default_rng(1))) == 0
    units = region.sample(10, np.random.default_rng(1), anchors)
    assert region.mask(units).all()
    assert len({tuple(unit) for unit in units.tolist()}) > 3


@pytest.mark.parametrize("name", ["random", "bayesian"])
def test_a_search_where_a_hundred_thousandth_is_feasible(name: str) -> None:
    space = space_of("x0 + x1 + x2 <= 0.039", dims=3)
    optimizer = create_optimizer(name, space, seed=1)
    for _ in range(2):
        points = optimizer.ask(8, [])
        assert len(points) == 8
        assert all(space.is_feasible(point) for point in points)
        optimizer.tell([(point, sum(point.values())) for point in points])


SEARCH = """search: a
space: {x: {type: real, low: 0, high: 1}, y: {type: real, low: 0, high: 1}}
payload: {command: 'true'}
"""


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ("constraints: ['0.2 < x < 0.204', '0.7 < y < 0.705']", None),
        ("constraints: ['0.2 < x < 0.204', 'x > 0.21']", r"a\.yaml:4:34: constraints\[1\]: no feasible point"),
        ("constraints: [x + y == 1]\noptimizer: grid", None),
        ("constraints: [x + y == 1]", r"abs\(x \+ y - 1\) <= TOLERANCE"),
    ],
)
def test_a_search_is_refused_only_if_its_optimizer_finds_no_point(lines: str, refused: str | None) -> None:
    with pytest.raises(InputError, match=refused) if refused else nullcontext():
        assert parse_search(SEARCH + lines, "a.yaml").constraints


@pytest.mark.parametrize("name", optimizer_names())
def test_that_no_point_was_ever_found_is_told_from_a_space_that_is_used_up(name: str) -> None:
    never = create_optimizer(name, space_of("x0 + x1 == 1.2345", dims=2), seed=1)
    with pytest.raises(ExhaustedError, match=r"no point of the grid .* satisfies|abs\(x0 \+ x1 - 1\.2345\) <="):
        never.ask(1, [])
    spent = create_optimizer(name, SearchSpace.from_dict({"n": {"type": "integer", "low": 1, "high": 3}}, ["n > 2"]))
    spent.tell([(point, 1.0) for point in spent.ask(1, [])])
    with pytest.raises(ExhaustedError, match="told or pending"):
        spent.ask(1, [])
