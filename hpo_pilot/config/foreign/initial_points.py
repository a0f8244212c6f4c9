"""Points that come with a request: those to be tried first, and those whose results are known."""

from __future__ import annotations

from typing import Any

from hpo_pilot.config.foreign.draft import Draft
from hpo_pilot.config.foreign.foreign_file import ForeignFile
from hpo_pilot.config.foreign.foreign_space import ForeignSpace
from hpo_pilot.errors import InputError
from hpo_pilot.search import Point, SearchSpace, point_key
from hpo_pilot.search.misfit import Path
from hpo_pilot.search.point import is_number, show


def put_initial_points(draft: Draft, file: ForeignFile, path: Path, points: Any, space: ForeignSpace) -> None:
    """Sets `start` and `known` to a list of `[{name: value}, loss or null]`."""
    if not isinstance(points, list):
        file.wrong(path, f"must be a list of [point, loss], not {show(points)}")
        return
    if not space.dimensions or file.problems:
        return
    checked, shape = SearchSpace.from_dict(space.dimensions), space.shape
    start: dict[str, Point] = {}
    known: list[dict[str, Any]] = []
    for index, item in enumerate(points):
        place = (*path, index)
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], dict)):
            file.wrong(place, f"must be [point, loss or null], not {show(item)}")
            continue
        try:
            point = checked.canonical(shape.search_point(item[0]))
        except (InputError, ValueError) as error:
            file.warn(place, f"is left out, for it is not a point of the space: {error}")
            continue
        loss = item[1]
        if loss is None:
            if point_key(point) in start:
                file.warn(place, "is the same point as one before it, and is tried once")
            start.setdefault(point_key(point), point)
        elif is_number(loss):
            known.append({"point": point, "value": float(loss)})
        else:
            file.wrong((*place, 1), f"must be a number or null, not {show(loss)}")
    if start:
        draft.put("start", list(start.values()), origin="points without a loss")
    if known:
        draft.put("known", known, origin="points with their losses")
