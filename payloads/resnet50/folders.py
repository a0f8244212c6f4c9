"""Which images there are: a folder of class folders, and which of them a fold trains on. Needs no torch, no Pillow."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from point import TrainingError

SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp"}
SPLIT_SEED = 20_240_229  #: every trial, on any number of ranks, sees the same folds
PARTS_WITHOUT_FOLDS = 5


def list_images(folder: Path) -> tuple[list[Path], list[int], list[str]]:
    """The images below `folder`, laid out as torchvision's ImageFolder reads them: one folder for each class.

    Returns:
        Paths; the class of each, counted from 0; the classes' names in order.

    Raises:
        TrainingError: the folder is missing, has no class folders, or one of them has no image.
    """
    if not folder.is_dir():
        raise TrainingError(f"there is no folder {folder}: --data names one that holds a folder for each class")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if not classes:
        raise TrainingError(f"{folder} holds no folders: one is needed for each class, with the images in it")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in SUFFIXES)
        if not found:
            raise TrainingError(f"{folder / name} holds no image ({', '.join(sorted(SUFFIXES))})")
        paths += found
        labels += [label] * len(found)
    return paths, labels, classes


def split(labels: Sequence[int], fold: int, folds: int) -> tuple[list[int], list[int]]:
    """Indices of the images to train on and of those held out, each class in equal shares.

    Args:
        labels: the class of each image.
        fold: counted from 0.
        folds: how many there are; 1 holds out one part in five.

    Raises:
        TrainingError: there is no such fold, or it is empty.
    """
    if not 0 <= fold < folds:
        raise TrainingError(f"there is no fold {fold} of {folds}: HPO_PILOT_FOLD counts from 0")
    order = list(range(len(labels)))
    random.Random(SPLIT_SEED).shuffle(order)  # noqa: S311  no secret
    order.sort(key=lambda index: labels[index])  # stable: by class, and within a class as shuffled
    parts = folds if folds > 1 else PARTS_WITHOUT_FOLDS
    held_out = order[fold::parts]
    if not held_out:
        raise TrainingError(f"{len(labels)} images are too few for {parts} parts")
    return sorted(set(order) - set(held_out)), sorted(held_out)
