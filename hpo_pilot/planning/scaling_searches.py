"""Points of a scaling run from finished searches: the same training, once with each number of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.planning.scaling_points import PARTS, ScalingPoint, read_point


def points_of(name: str, resources: Mapping[str, Any], trials: Iterable[Mapping[str, Any]]) -> list[ScalingPoint]:
    """A point for each good fold of the trials.

    By images per second where the training tells them, else by the run time of the whole fold.

    Args:
        name: the search's.
        resources: of its definition, as JSON.
        trials: as the documents of its trials.

    Raises:
        InputError: none has come to its end, or only some tell images per second.
    """
    folds = [fold for trial in trials for fold in trial["folds"] if fold["value"] is not None and fold["seconds"]]
    if not folds:
        raise InputError(f"search {name!r} has no trial with a figure of merit: it measured nothing")
    told = [fold for fold in folds if fold["metrics"].get("images_per_second")]
    if told and len(told) < len(folds):
        raise InputError(f"only {len(told)} of {len(folds)} folds of search {name!r} tell images_per_second")
    return [_point(f"search {name!r}", resources, fold) for fold in folds]


def _point(source: str, resources: Mapping[str, Any], fold: Mapping[str, Any]) -> ScalingPoint:
    metrics, nodes = fold["metrics"], int(resources["nodes"])
    per_node = resources.get("ranks_per_node") or (resources["gpus_per_node"] or 1 if nodes > 1 else 1)
    row = {"nodes": nodes, "ranks": metrics.get("ranks") or nodes * per_node}
    if metrics.get("images_per_second"):
        row["images_per_second"] = metrics["images_per_second"]
    else:
        row["seconds"] = fold["seconds"]
    if all(metrics.get(part) is not None for part in PARTS):
        row |= {part: metrics[part] for part in PARTS}
    return read_point({key: str(value) for key, value in row.items()}, source)
