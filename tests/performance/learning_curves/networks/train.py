"""Trains a network on a data set that scikit-learn contains, one fold of three, and writes a line per epoch.

Reads `input.json`, writes `progress.jsonl` and `output.json`, as payloads do.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import KFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

LOADERS = {"breast_cancer": load_breast_cancer, "diabetes": load_diabetes, "wine": load_wine}


def main() -> None:
    """One training: the loss on the held-out part after each epoch."""
    point: dict[str, Any] = json.loads(Path("input.json").read_text())
    inputs, targets = LOADERS[point["data"]](return_X_y=True)
    if point["data"] == "diabetes":
        targets = (targets - targets.mean()) / targets.std()
    folds = KFold(int(os.environ.get("HPO_PILOT_FOLDS", "3")), shuffle=True, random_state=1).split(inputs)
    trained, held = list(folds)[int(os.environ.get("HPO_PILOT_FOLD", "0"))]
    scaler = StandardScaler().fit(inputs[trained])
    inputs = scaler.transform(inputs)
    kind = MLPRegressor if point["data"] == "diabetes" else MLPClassifier
    model = kind(
        hidden_layer_sizes=[point["width"]] * point["layers"],
        activation=point["activation"],
        solver=point["solver"],
        learning_rate_init=point["learning_rate"],
        alpha=point["alpha"],
        batch_size=point["batch"],
        momentum=point.get("momentum", 0.9),
        random_state=int(os.environ.get("HPO_PILOT_SEED", "0")),
    )
    classes = {} if kind is MLPRegressor else {"classes": np.unique(targets)}
    dice = np.random.default_rng(int(os.environ.get("HPO_PILOT_SEED", "0")))
    loss, message = float("nan"), ""
    with Path("progress.jsonl").open("w") as progress:
        for epoch in range(1, point["epochs"] + 1):
            order = dice.permutation(trained)
            try:
                model.partial_fit(inputs[order], targets[order], **classes)
                loss = _loss(model, inputs[held], targets[held], classes)
            except (ValueError, FloatingPointError) as error:  # weights that are not numbers
                message = str(error).splitlines()[0]
                break
            progress.write(json.dumps({"step": epoch, "loss": loss}) + "\n")
    verdict = {"status": int(bool(message)), "loss": loss, "message": message}
    Path("output.json").write_text(json.dumps(verdict))


def _loss(model: Any, inputs: Any, targets: Any, classes: dict[str, Any]) -> float:
    if classes:
        return float(log_loss(targets, model.predict_proba(inputs), labels=classes["classes"]))
    return float(mean_squared_error(targets, model.predict(inputs)))


if __name__ == "__main__":
    main()
