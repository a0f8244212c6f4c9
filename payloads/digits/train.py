"""Trains a neural network on scikit-learn's handwritten digits: one fold of a cross-validation.

Reads `input.json` (the hyper-parameter point) and writes `progress.jsonl` (a line per epoch), `output.json` (the
verdict), `model.npz` (the weights) and, every few epochs, a checkpoint in `ckpt/` from which it goes on after a
kill, to the same result bit for bit. It knows nothing of hpo-pilot but the names of a few environment
variables, and runs by hand as well: see README.md beside it.
"""

from __future__ import annotations

import os

# The thread count is read once, when numpy's BLAS is loaded: it must be set before the imports below. One thread for
# the one core that the search file asks for (`resources: cores`): jobs side by side would else fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hashlib
import json
import signal
from pathlib import Path
from typing import Any

try:
    import joblib
    import numpy as np
    import sklearn
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold
    from sklearn.neural_network import MLPClassifier
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install scikit-learn, which brings numpy and joblib too") from None

#: Every trial sees the same folds: differences between trials then come from their points, not from their data.
SPLIT_SEED = 20_240_229
#: A run without folds holds out one part in five.
PARTS_WITHOUT_FOLDS = 5
CHECKPOINT_EVERY = 5  #: epochs
DEFAULT_EPOCHS = 30
SOLVERS = ("adam", "sgd")
REQUIRED = {"learning_rate", "layers", "width", "alpha", "solver", "batch"}
OPTIONAL = {"momentum", "epochs"}


class TrainingError(Exception):
    """The training gives no figure of merit; the message says why and goes to output.json."""


def read_point(path: Path) -> dict[str, Any]:
    """The hyper-parameter point in `path`.

    Raises:
        TrainingError: the file is missing or is no point of this training.
    """
    try:
        point = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot read the point from {path.name}: {error}") from error
    if not isinstance(point, dict):
        raise TrainingError(f"{path.name} must hold an object of parameters, not {type(point).__name__}")
    missing = sorted(REQUIRED - point.keys())
    unknown = sorted(point.keys() - REQUIRED - OPTIONAL)
    if missing or unknown:
        # An unknown name is refused, not ignored: a misspelt parameter would be scanned without any effect.
        raise TrainingError(f"{path.name}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
    if point["solver"] not in SOLVERS:
        raise TrainingError(f"{path.name}: solver must be one of {', '.join(SOLVERS)}, not {point['solver']!r}")
    if point.get("epochs", DEFAULT_EPOCHS) < 1:
        raise TrainingError(f"{path.name}: epochs must be 1 or more, not {point['epochs']}")
    return point


def load_fold(fold: int, folds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images, training labels, validation images, validation labels of one fold.

    Args:
        fold: counted from 0.
        folds: how many there are; 1 holds out one part in five.

    Returns:
        Images of shape (n, 64) with values in [0, 1]; labels of shape (n,), 0 to 9.
    """
    if not 0 <= fold < folds:
        raise TrainingError(f"there is no fold {fold} of {folds}: HPO_PILOT_FOLD counts from 0")
    images, labels = load_digits(return_X_y=True)
    parts = StratifiedKFold(folds if folds > 1 else PARTS_WITHOUT_FOLDS, shuffle=True, random_state=SPLIT_SEED)
    train, valid = list(parts.split(images, labels))[fold]
    return images[train] / 16.0, labels[train], images[valid] / 16.0, labels[valid]


def new_model(point: dict[str, Any], seed: int) -> MLPClassifier:
    """An untrained network for `point`."""
    return MLPClassifier(
        hidden_layer_sizes=(point["width"],) * point["layers"],
        learning_rate_init=point["learning_rate"],
        alpha=point["alpha"],
        solver=point["solver"],
        batch_size=point["batch"],
        momentum=point.get("momentum", 0.9),
        # A generator, not a number: scikit-learn would seed itself anew in each epoch and shuffle all of them alike.
        random_state=np.random.RandomState(seed),
    )


class Checkpoint:
    """The state of one training after some epoch, in one file.

    The file's name is a digest of what the training depends on, so that a file of another point, fold, seed or
    version of scikit-learn is never picked up. joblib is how scikit-learn's guide keeps models; it can run code on
    loading, so it is only for files that the same job wrote.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        text = json.dumps({**identity, "sklearn": sklearn.__version__, "numpy": np.__version__}, sort_keys=True)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.joblib"

    def save(self, model: MLPClassifier, history: list[dict[str, float]]) -> None:
        """Replaces the file in one step: a kill leaves the old one or the new one, never half of one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        joblib.dump({"model": model, "history": history}, partial)
        partial.replace(self.path)

    def load(self) -> tuple[MLPClassifier, list[dict[str, float]]] | None:
        """The model and the epochs done, or None where there is no checkpoint."""
        if not self.path.exists():
            return None
        state = joblib.load(self.path)
        return state["model"], state["history"]

    def end(self, model: MLPClassifier, history: list[dict[str, float]]) -> None:
        """Keeps the last state for the next level of a search with `fidelity`; otherwise removes the file."""
        if "HPO_PILOT_LEVEL" in os.environ:
            self.save(model, history)
        else:
            self.path.unlink(missing_ok=True)


def run_epoch(model: MLPClassifier, images: np.ndarray, labels: np.ndarray, epoch: int) -> None:
    """One pass over the training data.

    Raises:
        TrainingError: the weights are no longer finite.
    """
    try:
        with np.errstate(all="ignore"):  # a diverging training is reported below, once, not by a warning per batch
            model.partial_fit(images, labels, classes=np.arange(10))
    except ValueError as error:
        if all(np.isfinite(weights).all() for weights in model.coefs_ + model.intercepts_):
            raise
        raise TrainingError(f"training diverged in epoch {epoch}: the weights are no longer finite") from error


def validate(model: MLPClassifier, images: np.ndarray, labels: np.ndarray, epoch: int) -> dict[str, float]:
    """The epoch's line of progress.jsonl: validation log-loss and accuracy.

    Raises:
        TrainingError: the predictions are not numbers.
    """
    with np.errstate(all="ignore"):
        probabilities = model.predict_proba(images)
    if not np.isfinite(probabilities).all():
        raise TrainingError(f"training diverged in epoch {epoch}: the predictions are not numbers")
    loss = float(log_loss(labels, probabilities, labels=np.arange(10)))
    accuracy = float((probabilities.argmax(axis=1) == labels).mean())
    return {"step": epoch, "value": loss, "accuracy": accuracy}


def train(point: dict[str, Any], fold: int, folds: int, seed: int, folder: Path) -> dict[str, Any]:
    """Trains in `folder`, going on from its checkpoint if there is one.

    Returns:
        The content of output.json.

    Raises:
        TrainingError: the training diverged.
    """
    epochs = point.get("epochs", DEFAULT_EPOCHS)
    train_images, train_labels, valid_images, valid_labels = load_fold(fold, folds)
    same = dict(point, epochs=None) if "HPO_PILOT_LEVEL" in os.environ else point  # the next level goes on
    checkpoint = Checkpoint(folder / "ckpt", {"point": same, "fold": fold, "folds": folds, "seed": seed})
    history: list[dict[str, float]] = []
    model = new_model(point, seed)
    found = checkpoint.load()
    if found is not None:
        model, history = found
        print(f"going on after epoch {len(history)}: {checkpoint.path} is of a training that was ended", flush=True)

    with (folder / "progress.jsonl").open("w") as progress:
        progress.writelines(json.dumps(line) + "\n" for line in history)
        for epoch in range(len(history) + 1, epochs + 1):
            run_epoch(model, train_images, train_labels, epoch)
            line = validate(model, valid_images, valid_labels, epoch)
            history.append(line)
            progress.write(json.dumps(line) + "\n")
            progress.flush()  # heartbeats carry the last line while the training goes on
            print(f"epoch {epoch:3d}  loss {line['value']:.4f}  accuracy {line['accuracy']:.4f}", flush=True)
            if epoch % CHECKPOINT_EVERY == 0:
                checkpoint.save(model, history)

    weights = {f"coef_{i}": array for i, array in enumerate(model.coefs_)}
    biases = {f"intercept_{i}": array for i, array in enumerate(model.intercepts_)}
    np.savez(folder / "model.npz", **weights, **biases)
    checkpoint.end(model, history)
    last = history[-1]
    return {
        "status": 0,
        "loss": last["value"],
        "message": "",
        "metrics": {
            "accuracy": last["accuracy"],
            "epochs": len(history),
            "parameters": sum(array.size for array in (weights | biases).values()),
        },
    }


def main() -> None:
    """One job: the point in input.json, the verdict in output.json."""
    # scikit-learn takes Ctrl-C for the end of an epoch and trains on; the default ends the process, as one expects.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    folder = Path()
    output = folder / "output.json"
    for earlier in (output, folder / "model.npz"):
        earlier.unlink(missing_ok=True)  # an earlier run's results must not pass for this one's
    try:
        result = train(
            read_point(folder / "input.json"),
            fold=int(os.environ.get("HPO_PILOT_FOLD", "0")),
            folds=int(os.environ.get("HPO_PILOT_FOLDS", "1")),
            seed=int(os.environ.get("HPO_PILOT_SEED", "0")),
            folder=folder,
        )
    except TrainingError as error:
        result = {"status": 1, "loss": None, "message": str(error)}
        print(error, flush=True)
    output.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
