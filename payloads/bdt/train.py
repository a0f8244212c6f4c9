"""Trains gradient-boosted trees that tell signal from background: one fold of a cross-validation.

Reads `input.json` (the hyper-parameter point) and writes `progress.jsonl` (a line per round), `output.json` (the
verdict), `scores.npz` (what the test events scored) and `model/`. Events come from the files that --data names, from
those that the search file's `payload.inputs` brought, or else from collisions.py. It knows nothing of hpo-pilot but
names of files and environment variables, and runs by hand as well: see README.md beside it.
"""

from __future__ import annotations

import os

# Read once, when the libraries below are loaded. One thread for the one core that the search files ask for.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import hashlib
import json
import resource
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import joblib
    import numpy as np
    import sklearn
    from sklearn.model_selection import StratifiedKFold
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install scikit-learn, which brings numpy and joblib too") from None
from boosting import FAMILIES, Task, TrainingError, save_cut
from collisions import Events, collisions
from event_files import ENDINGS, Columns, read_events
from figures import ams_above, auc, best_cut, kolmogorov_smirnov, log_loss

#: Every trial sees the same events in the same parts: what differs between trials then comes from their points.
SAMPLE_SEED = 20_120_704
PARTS_WITHOUT_FOLDS = 5  #: a run without folds tests on one part in five
VALIDATION_PARTS = 4  #: one part in four of what is left validates: it stops the training and places the cut
FEWEST = 10  #: events of a class that each part must have
DEFAULTS: dict[str, Any] = {"model": "sklearn", "signal_weight": 1.0, "rounds": 400, "patience": 40, "events": 20_000}


def read_point(path: Path) -> dict[str, Any]:
    """The hyper-parameter point in `path`, with defaults for what it leaves out.

    Raises:
        TrainingError: the file is missing or is no point of this training.
    """
    try:
        point = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot read the point from {path.name}: {error}") from error
    if not isinstance(point, dict):
        raise TrainingError(f"{path.name} must hold an object of parameters, not {type(point).__name__}")
    point = DEFAULTS | point
    if point["model"] not in FAMILIES:
        raise TrainingError(f"{path.name}: model must be one of {', '.join(FAMILIES)}, not {point['model']!r}")
    wanted = FAMILIES[point["model"]].parameters
    missing, unknown = sorted(wanted - point.keys()), sorted(point.keys() - wanted - DEFAULTS.keys())
    if missing or unknown:
        # An unknown name is refused, not ignored: a misspelt parameter would be scanned without any effect.
        raise TrainingError(
            f"{path.name}, model {point['model']}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}"
        )
    for name, lowest in {"rounds": 1, "patience": 1, "events": 200, "signal_weight": 1e-6}.items():
        value = point[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= lowest:
            raise TrainingError(f"{path.name}: {name} must be a number of at least {lowest}, not {value!r}")
    return point


def find_events(arguments: argparse.Namespace, point: dict[str, Any], folder: Path) -> Events:
    """The user's events, or made ones where there are none.

    Raises:
        TrainingError: they cannot be read, or nothing can be learnt from them.
    """
    paths = [Path(name) for name in arguments.data]
    listed = folder / "input_ds.json"  # what payload.inputs brought
    if not paths and listed.exists():
        paths = [Path(name) for name in json.loads(listed.read_text()) if name.lower().endswith(ENDINGS)]
    if not paths:
        return collisions(point["events"], SAMPLE_SEED)
    left_out, missing = tuple(arguments.drop), arguments.missing
    return read_events(
        paths, Columns(arguments.label, arguments.signal, arguments.weight, left_out, missing, arguments.tree)
    )


def check(events: Events) -> None:
    """Refuses events that nothing can be learnt from.

    Raises:
        TrainingError: it says why.
    """
    if not np.isfinite(events.weights).all():
        raise TrainingError("some weights are no finite numbers")
    if np.isinf(events.features).any():
        raise TrainingError("some features are infinite: a missing value is NaN, or the number given by --missing")
    for label, name in ((1, "signal"), (0, "background")):
        mine = events.labels == label
        if mine.sum() < FEWEST * PARTS_WITHOUT_FOLDS:
            raise TrainingError(f"there are only {mine.sum()} {name} events: is --label and --signal right?")
        if not events.weights[mine].sum() > 0:
            raise TrainingError(f"the weights of the {name} add up to {events.weights[mine].sum():g}: nothing to find")


def split(events: Events, fold: int, folds: int) -> dict[str, Events]:
    """The parts `train`, `valid` and `test` of one fold.

    Weights of each part are scaled so that either class has the expected number of events of the whole sample: a
    significance found on a part is then that of all data.

    Args:
        events: the whole sample.
        fold: counted from 0.
        folds: how many there are; 1 tests on one part in five.
    """
    if not 0 <= fold < folds:
        raise TrainingError(f"there is no fold {fold} of {folds}: HPO_PILOT_FOLD counts from 0")
    if min(np.bincount(events.labels, minlength=2)) < FEWEST * max(folds, PARTS_WITHOUT_FOLDS):
        raise TrainingError(f"there are too few events for {folds} folds")
    outer = StratifiedKFold(folds if folds > 1 else PARTS_WITHOUT_FOLDS, shuffle=True, random_state=SAMPLE_SEED)
    rest, test = list(outer.split(events.features, events.labels))[fold]
    inner = StratifiedKFold(VALIDATION_PARTS, shuffle=True, random_state=SAMPLE_SEED + 1)
    train, valid = next(inner.split(rest, events.labels[rest]))
    return {
        name: _part(events, index) for name, index in (("train", rest[train]), ("valid", rest[valid]), ("test", test))
    }


def _part(events: Events, index: np.ndarray) -> Events:
    labels, weights = events.labels[index], events.weights[index].copy()
    for label in (0, 1):
        whole, part = events.weights[events.labels == label].sum(), weights[labels == label].sum()
        if not part > 0:
            raise TrainingError("the weights of a part add up to nothing: there are too many negative ones")
        weights[labels == label] *= whole / part
    return Events(events.features[index], events.names, labels, weights)


def learning_weights(part: Events, signal_weight: float) -> np.ndarray:
    """(n,) positive weights of mean 1: signal together weighs `signal_weight` times what background does.

    Trees cannot grow on negative weights, so an event counts by the size of its weight here; the figures of merit take
    the weights as they are.
    """
    weights = np.abs(part.weights)
    for label, share in ((1, signal_weight), (0, 1.0)):
        weights[part.labels == label] *= share / weights[part.labels == label].sum()
    return weights / weights.mean()


def train(point: dict[str, Any], events: Events, fold: int, folds: int, seed: int, folder: Path) -> dict[str, Any]:
    """Trains and writes `progress.jsonl`, `scores.npz` and `model/` into `folder`.

    Returns:
        The content of output.json.
    """
    started = time.perf_counter()
    check(events)
    parts = split(events, fold, folds)
    learnt, valid = parts["train"], parts["valid"]
    weights = learning_weights(learnt, point["signal_weight"])
    task = Task(learnt.features, learnt.labels, weights, valid.features, seed)
    kept = checkpoint_of(folder, point, fold, folds, seed)
    found = joblib.load(kept) if kept and kept.exists() else {"lines": [], "state": None}
    model, lines = FAMILIES[point["model"]](point, task, found["state"]), found["lines"]
    # Trees that learn with a weight on signal overrate its odds by just that factor.
    shift = np.log(point["signal_weight"])
    best, rounds = min(((line["loss"], line["step"]) for line in lines if line["loss"] < np.inf), default=(np.inf, 0))
    if lines:
        print(f"going on after round {len(lines)}: {kept} is of the level below", flush=True)
    with (folder / "progress.jsonl").open("w") as progress:
        progress.writelines(json.dumps(line) + "\n" for line in lines)
        further = model.grow(point["rounds"]) if len(lines) - rounds < point["patience"] else ()
        for number, margins in enumerate(further, len(lines) + 1):
            loss = log_loss(margins - shift, valid.labels, valid.weights)
            line = {
                "step": number,
                "auc": auc(margins, valid.labels, valid.weights),
                "ams": best_cut(margins, valid.labels, valid.weights)[1],
                "loss": loss,
            }
            lines.append(line)
            progress.write(json.dumps(line) + "\n")
            progress.flush()  # heartbeats carry the last line while the training goes on
            if loss < best:
                best, rounds = loss, number
            if number % 20 == 0:
                print(f"round {number:4d}  loss {loss:.4f}  AUC {line['auc']:.4f}  AMS {line['ams']:.2f}", flush=True)
            if number - rounds >= point["patience"]:
                break
    if rounds == 0:
        raise TrainingError("the training diverged: no round had a finite loss on the validation part")
    if kept:
        kept.parent.mkdir(exist_ok=True)
        joblib.dump({"lines": lines, "state": model.state()}, kept.with_suffix(".partial"))
        kept.with_suffix(".partial").replace(kept)  # a kill leaves the old one or the new one
    margins = {name: model.margins(part.features, rounds) for name, part in parts.items()}
    cut, _ = best_cut(margins["valid"], valid.labels, valid.weights)
    save(folder, model, parts["test"], margins["test"])
    save_cut(folder / "model", rounds, cut, point["signal_weight"])
    metrics = verdicts(parts, margins, shift, cut)
    metrics |= {"rounds": rounds, "events": len(events.labels), "seconds": time.perf_counter() - started}
    metrics["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"status": 0, "loss": metrics["loss"], "message": "", "metrics": metrics}


def checkpoint_of(folder: Path, point: dict[str, Any], fold: int, folds: int, seed: int) -> Path | None:
    """The file from which the next level of a search with `fidelity` goes on; None: the search has no levels.

    joblib can run code on loading, so the file is only for jobs of the point that wrote it.
    """
    if "HPO_PILOT_LEVEL" not in os.environ:
        return None
    text = json.dumps([dict(point, rounds=None), fold, folds, seed, sklearn.__version__], sort_keys=True)
    return folder / "ckpt" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.joblib"


def verdicts(parts: dict[str, Events], margins: dict[str, np.ndarray], shift: float, cut: float) -> dict[str, float]:
    """The figures of merit on the test part, and how they compare with those on the training part."""
    found: dict[str, float] = {}
    for prefix, name in (("", "test"), ("train_", "train"), ("valid_", "valid")):
        part, scores = parts[name], margins[name]
        found[prefix + "loss"] = log_loss(scores - shift, part.labels, part.weights)
        found[prefix + "auc"] = auc(scores, part.labels, part.weights)
        found[prefix + "ams"] = ams_above(cut, scores, part.labels, part.weights)
    for label, name in ((1, "signal"), (0, "background")):
        of = {part: parts[part].labels == label for part in ("train", "test")}
        distance, probability = kolmogorov_smirnov(
            margins["train"][of["train"]],
            margins["test"][of["test"]],
            (parts["train"].weights[of["train"]], parts["test"].weights[of["test"]]),
        )
        found |= {f"ks_{name}": distance, f"ks_{name}_p": probability}
    return found


def save(folder: Path, model: Any, test: Events, margins: np.ndarray) -> None:
    """Keeps the model, and what is needed to draw the curves of this fold."""
    (folder / "model").mkdir()
    model.save(folder / "model")
    np.savez_compressed(folder / "scores.npz", margins=margins, labels=test.labels, weights=test.weights)


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line: where the user's events are, and what their columns mean."""
    parser = argparse.ArgumentParser(description="Trains boosted trees on one fold; the point is in input.json.")
    parser.add_argument("--data", nargs="+", default=[], help="files of events: " + ", ".join(ENDINGS))
    parser.add_argument("--label", default="label", help="column that tells signal from background")
    parser.add_argument("--signal", default="1", help="the label of signal")
    parser.add_argument("--weight", default="", help="column of weights; none: each event counts once")
    parser.add_argument("--drop", nargs="+", default=[], help="columns that are no features")
    parser.add_argument("--missing", type=float, help="the number that stands for a missing value, such as -999")
    parser.add_argument("--tree", default="", help="tree of a ROOT file that has several")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """One job: the point in input.json, the verdict in output.json."""
    arguments, folder = arguments_of(argv), Path()
    output = folder / "output.json"
    # An earlier run's results must not pass for this one's.
    output.unlink(missing_ok=True)
    (folder / "scores.npz").unlink(missing_ok=True)
    shutil.rmtree(folder / "model", ignore_errors=True)
    try:
        point = read_point(folder / "input.json")
        result = train(
            point,
            find_events(arguments, point, folder),
            fold=int(os.environ.get("HPO_PILOT_FOLD", "0")),
            folds=int(os.environ.get("HPO_PILOT_FOLDS", "1")),
            seed=int(os.environ.get("HPO_PILOT_SEED", "0")),
            folder=folder,
        )
    except TrainingError as error:
        result = {"status": 1, "loss": None, "message": str(error)}
        print(error, flush=True)
    partial = folder / "output.json.partial"
    partial.write_text(json.dumps(result) + "\n")
    partial.replace(output)


if __name__ == "__main__":
    main()
