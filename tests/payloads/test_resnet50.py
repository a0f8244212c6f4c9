"""The ResNet-50 payload without torch: its search files, its points, its learning rates, its folders and folds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot import load_search
from tests.payloads.conftest import PAYLOADS

PAYLOAD = PAYLOADS / "resnet50"


@pytest.fixture
def read(of: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The point as the training has it, of what input.json holds."""

    def reading(**point: Any) -> dict[str, Any]:
        (tmp_path / "input.json").write_text(json.dumps(point))
        return dict(of("point").read_point(tmp_path / "input.json"))

    return reading


def test_the_large_search_uses_all_of_its_nodes() -> None:
    search = load_search(PAYLOAD / "search-summit.yaml")
    assert search.site.profile == "summit"
    assert search.resources.ranks == search.resources.gpus_per_node == 6
    assert search.payload.command.startswith("python train.py ")
    assert search.payload.checkpoint == ("ckpt",)


def test_calo_gan_has_the_same_ranks() -> None:
    """A payload's folder is copied whole, so each has the file."""
    assert (PAYLOADS / "calo_gan" / "ranks.py").read_text() == (PAYLOAD / "ranks.py").read_text()


# --- the learning rate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scaling", "reached"), [("linear", 0.8), ("sqrt", 0.1 * 8**0.5), ("none", 0.1)])
def test_the_rate_grows_with_the_images_of_a_step_and_is_reached_gradually(
    of: Any, read: Any, scaling: str, reached: float
) -> None:
    point = read(learning_rate=0.1, batch=512, accumulation=4, scaling=scaling, warmup=4)
    rate = of("point").learning_rate
    assert rate(point, 1, 20) == pytest.approx(reached / 4)
    assert rate(point, 3, 20) == pytest.approx(reached * 3 / 4)
    assert rate(point, 4, 20) == pytest.approx(reached)


def test_the_rate_falls_as_the_schedule_says(of: Any, read: Any) -> None:
    def rates(schedule: str) -> list[float]:
        point = read(learning_rate=1.0, batch=256, warmup=10, schedule=schedule)
        return [of("point").learning_rate(point, done, 90) for done in (10, 29.9, 50, 70, 80, 90)]

    assert rates("cosine") == pytest.approx([1, 0.8549, 0.5, 0.1464, 0.0381, 0], abs=1e-4)
    assert rates("polynomial") == pytest.approx([1, 0.5643, 0.25, 0.0625, 0.0156, 0], abs=1e-4)
    assert rates("steps") == pytest.approx([1, 1, 0.1, 0.01, 0.001, 0.001])
    assert rates("stable") == [1] * 6


def test_a_stable_rate_depends_on_the_end_only_after_it(of: Any, read: Any) -> None:
    point, rate = read(learning_rate=1.0, batch=256, warmup=2, schedule="stable"), of("point").learning_rate
    assert [rate(point, done, 1) for done in (0.5, 1, 1.025, 1.1, 1.2)] == pytest.approx([0.25, 0.5, 0.25, 0, 0])
    assert [rate(point, done, 9) for done in (0.5, 1, 1.5, 2, 9, 9.9)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0])


def test_a_warm_up_longer_than_the_training_is_all_of_it(of: Any, read: Any) -> None:
    point = read(learning_rate=1.0, batch=256, warmup=10)
    assert of("point").learning_rate(point, 1.5, 2) == pytest.approx(0.75)


# --- folders and folds ------------------------------------------------------------------------------------------------


def test_the_folders_are_the_classes(of: Any, tmp_path: Path) -> None:
    for name in ("b/2.JPEG", "b/notes.txt", "a/x.png", "a/deep/y.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    paths, labels, classes = of("folders").list_images(tmp_path)
    assert classes == ["a", "b"]
    assert [(str(path.relative_to(tmp_path)), label) for path, label in zip(paths, labels, strict=True)] == [
        ("a/deep/y.jpg", 0),
        ("a/x.png", 0),
        ("b/2.JPEG", 1),
    ]


def test_a_wrong_folder_is_refused(of: Any, tmp_path: Path) -> None:
    listing, error = of("folders").list_images, of("point").TrainingError
    with pytest.raises(error, match="there is no folder"):
        listing(tmp_path / "absent")
    with pytest.raises(error, match="holds no folders: one is needed for each class"):
        listing(tmp_path)
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "notes.txt").touch()
    with pytest.raises(error, match="cats holds no image"):
        listing(tmp_path)


def test_each_image_is_held_out_by_one_fold_and_each_class_in_equal_shares(of: Any) -> None:
    labels = [index % 3 for index in range(90)]
    held_out: list[int] = []
    for fold in range(3):
        train, valid = of("folders").split(labels, fold, 3)
        assert sorted(train + valid) == list(range(90))
        assert [sum(labels[index] == label for index in valid) for label in range(3)] == [10, 10, 10]
        held_out += valid
    assert sorted(held_out) == list(range(90))
    assert len(of("folders").split(labels, 0, 1)[1]) == 18, "without folds a fifth"


def test_folds_that_are_none_are_refused(of: Any) -> None:
    with pytest.raises(of("point").TrainingError, match="there is no fold 3 of 3"):
        of("folders").split([0] * 10, 3, 3)
    with pytest.raises(of("point").TrainingError, match="2 images are too few for 4 parts"):
        of("folders").split([0, 0], 3, 4)
