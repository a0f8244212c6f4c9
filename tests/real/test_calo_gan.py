"""The calorimeter GAN: what it learns, on one process and on two ranks, and from files."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.real.processes import missing

PAYLOAD = Path(__file__).parents[2] / "payloads" / "calo_gan"
#: 13 x 13 x 13 cells: a fifth of a minute of one core.
POINT = {
    "generator_rate": 3e-3,
    "discriminator_rate": 5e-4,
    "batch": 32,
    "latent": 8,
    "channels": 4,
    "smoothing": 0.1,
    "cells": 13,
    "events": 1000,
    "epochs": 5,
}
SMALL = {**POINT, "cells": 9, "events": 200, "epochs": 4, "channels": 2, "batch": 31}
TWO_RANKS = "torchrun --standalone --nproc-per-node=2 train.py"
HOROVOD = "horovodrun -np 2 --gloo python train.py"


@pytest.fixture
def seconds() -> float:
    return 300.0


@pytest.fixture
def payload_files() -> list[Path]:
    return [path for path in PAYLOAD.iterdir() if path.is_file()]


def lines_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def test_a_trained_generator_is_five_times_better_than_an_untrained_one(train, tmp_path):
    verdict = train("one", "python train.py", POINT)
    metrics = verdict["metrics"]
    assert verdict["status"] == 0
    assert verdict["loss"] == metrics["figure"] < metrics["untrained"] / 5
    assert metrics["untrained"] > 0.3
    # Not all alike either: a generator whose showers of one energy are one shower would have next to no spread.
    assert metrics["true_resolution"] / 2 < metrics["resolution"] < 3 * metrics["true_resolution"]
    lines = lines_of(tmp_path / "one")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[-1]["figure"] == verdict["loss"]
    # What is learnt is not there before: without learning nothing becomes better.
    still = train("still", "python train.py", {**POINT, "generator_rate": 0.0, "epochs": 1})
    assert still["loss"] == pytest.approx(metrics["untrained"])


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param(
            {"optimizer": "rmsprop", "generator_rate": 1e-3, "discriminator_steps": 2, "warmup": 2},
            marks=pytest.mark.long,
        ),
    ],
    ids=str,
)
def test_two_ranks_train_what_one_process_does(train, tmp_path, more):
    fold = {"HPO_PILOT_FOLD": "1", "HPO_PILOT_FOLDS": "3", "HPO_PILOT_SEED": "5"}
    point = {**SMALL, "scaling": "linear", **more}
    one = train("one", "python train.py", point, **fold)
    for name, command in (("ddp", TWO_RANKS), ("horovod", HOROVOD)):
        two = train(name, command, point, **fold)
        assert one["status"] == two["status"] == 0
        # Sums in another order, then GAN steps on them: they drift apart slowly.
        for a, b in zip(lines_of(tmp_path / "one"), lines_of(tmp_path / name), strict=True):
            assert b["figure"] == pytest.approx(a["figure"], rel=1e-2)
            assert b["untrained"] == pytest.approx(a["untrained"], rel=1e-5)
    other = train("other", "python train.py", point, **{**fold, "HPO_PILOT_SEED": "6"})
    assert other["loss"] != pytest.approx(one["loss"], rel=1e-2)


def test_a_level_goes_on_from_the_one_below(train):
    whole = train("whole", "python train.py", {**SMALL, "epochs": 4})
    for epochs in (2, 4):
        last = train("levels", "python train.py", {**SMALL, "epochs": epochs}, HPO_PILOT_LEVEL=str(epochs))
    assert "going on after epoch 2" in last["said"] and last["loss"] == whole["loss"]


@pytest.mark.long
def test_it_goes_on_from_a_checkpoint_with_another_number_of_ranks(train, kill_after_a_checkpoint, tmp_path):
    point = {**SMALL, "epochs": 12}
    undisturbed = train("undisturbed", "python train.py", point)
    kill_after_a_checkpoint("killed", "python train.py", point)
    shutil.copytree(tmp_path / "killed", tmp_path / "alone")
    again = train("alone", "python train.py", point)
    assert "going on after epoch" in again["said"]
    assert again["loss"] == undisturbed["loss"]
    assert not list((tmp_path / "alone" / "ckpt").iterdir()), "another training of this point would begin anew"
    two = train("killed", TWO_RANKS, point)
    assert "going on after epoch" in two["said"]
    assert two["metrics"]["epochs"] == 12
    assert two["loss"] < two["metrics"]["untrained"] / 3


@pytest.mark.long
def test_files_are_read_where_there_are_some(train, tmp_path, horovod, environment):
    asked = subprocess.run([horovod, "-c", "import h5py"], check=False, capture_output=True)
    if asked.returncode:
        missing("h5py beside Horovod")
    made = train("made", "python train.py", SMALL)
    folder = tmp_path / "read"
    folder.mkdir()
    code = (
        "from pathlib import Path; import train, point; from files import write_showers; "
        f"p = {{**point.DEFAULTS, **{SMALL!r}}}; "
        f"write_showers(Path({str(folder / 'a.h5')!r}), train.find_showers(p, [], Path()))"
    )
    subprocess.run([horovod, "-c", code], cwd=PAYLOAD, env={**environment, "PYTHONDONTWRITEBYTECODE": "1"}, check=True)
    read = train("read", "python train.py", {**SMALL, "events": 50, "cells": 4})
    assert read["loss"] == made["loss"]

    # As CLIC's older files are: no `energy`, and `target` has the kind of particle first.
    code = f"import h5py; f = h5py.File({str(folder / 'a.h5')!r}, 'r+'); del f['energy']; f.close()"
    subprocess.run([horovod, "-c", code], check=True)
    assert train("read", "python train.py --data a.h5", SMALL)["loss"] == made["loss"]
    code = f"import h5py; f = h5py.File({str(folder / 'a.h5')!r}, 'r+'); del f['target']; f.close()"
    subprocess.run([horovod, "-c", code], check=True)
    wrong = train("read", "python train.py", SMALL)
    assert wrong["status"] == 1
    assert "needs ECAL and energy or target; it has ECAL" in wrong["message"]
    (folder / "a.h5").write_bytes(b"no such thing")
    wrong = train("read", "python train.py", SMALL)
    assert wrong["status"] == 1
    assert "a.h5 cannot be read" in wrong["message"]


def test_what_cannot_be_trained_ends_on_all_ranks_with_one_verdict(train):
    wild = train("wild", TWO_RANKS, {**SMALL, "generator_rate": 1e30})
    assert (wild["status"], wild["loss"]) == (1, None)
    assert "the training diverged" in wild["message"]
    large = train("large", TWO_RANKS, {**SMALL, "batch": 5000})
    assert (large["status"], large["loss"]) == (1, None)
    assert "batch 5000 must be from 2 ranks to 160 showers" in large["message"]
