"""Records the learning curves of trainings.

    python -m tests.performance.learning_curves.record NAME [--python PYTHON] [--seconds CPU-SECONDS] [--seed SEED]

Draws points from the space of the payload's search.yaml, runs the payload's own train.py for each fold of each point
and keeps the values of progress.jsonl, the figure of merit and the CPU time, until the CPU time is used up. NAME is a
payload (digits, bdt, calo_gan, resnet50) or a data set of scikit-learn's that networks/ beside this trains on. calo_gan
and resnet50 need a PYTHON with torch (`python deploy/horovod/build.py` makes one). All trainings run in one process,
one after another, so that libraries are imported once. `make curves` records all of them anew.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.search import Search
from hpo_pilot.steering.search_file import load_search
from tests.performance.learning_curves import FOLDER

PAYLOADS = Path(__file__).parents[3] / "payloads"
POINTS, FOLDS = 96, 3
WITHOUT_FOLDS = ("resnet50",)
DATA_SETS = ("breast_cancer", "diabetes", "wine")
#: Of each payload: the steps of a whole training, what every point has besides, and the command line.
SETTINGS: dict[str, tuple[int, dict[str, Any], list[str]]] = {
    "digits": (81, {"epochs": 81}, []),
    # No patience of its own: all trainings have the same length.
    "bdt": (81, {"rounds": 81, "patience": 81, "events": 6000}, []),
    "calo_gan": (27, {}, ["--cells", "9", "--events", "240", "--epochs", "27"]),
    "resnet50": (9, {}, "--synthetic 320 --classes 10 --size 16 --depth 14 --width 8 --epochs 9".split()),  # noqa: SIM905
    **{name: (81, {"epochs": 81, "data": name}, []) for name in DATA_SETS},
}


def folder_of(name: str) -> Path:
    """The folder with the search.yaml and the train.py of a table."""
    return FOLDER / "networks" if name in DATA_SETS else PAYLOADS / name


#: Runs in the payload's Python: a line of JSON with point, fold and folder comes in, one with the CPU seconds goes out.
WORKER = """
import json, os, sys, time
out, sys.stdout = sys.stdout, sys.stderr
sys.path.insert(0, sys.argv[1])
sys.argv[:2] = ["train.py"]
import train
for line in sys.stdin:
    job = json.loads(line)
    os.chdir(job["folder"])
    os.environ.update(HPO_PILOT_FOLD=str(job["fold"]), HPO_PILOT_FOLDS=str(job["folds"]), HPO_PILOT_SEED=job["seed"])
    with open("input.json", "w") as file:
        json.dump(job["point"], file)
    begun = time.process_time()
    if "argv" in train.main.__code__.co_varnames:
        train.main(sys.argv[1:])
    else:
        train.main()
    print(time.process_time() - begun, file=out, flush=True)
"""


def record(name: str, python: str, budget: float, seed: int) -> dict[str, Any]:
    """The trainings that fit into `budget` CPU seconds."""
    steps, fixed, options = SETTINGS[name]
    search = load_search(folder_of(name) / "search.yaml")
    points = create_optimizer("random", search.space, seed=seed).ask(POINTS)
    folds_each = 1 if name in WITHOUT_FOLDS else FOLDS
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-c", WORKER, str(folder_of(name)), *options]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
        trained: list[dict[str, Any]] = []
        for number, point in enumerate(points, start=1):
            folds = list(_train(worker, search, {**point, **fixed}, number, folds_each, Path(folder)))
            trained.append({"point": point, "folds": folds})
            budget -= sum(fold["seconds"] for fold in folds)
            print(f"{name} {number}: {[fold['final'] for fold in folds]}, {budget:.0f} s left", flush=True)
            if budget <= 0:
                break
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()
    return {"goal": search.objective.goal, "steps": steps, "settings": [fixed, options], "points": trained}


def _train(
    worker: subprocess.Popen[str], search: Search, point: dict[str, Any], number: int, folds: int, base: Path
) -> Iterator[dict[str, Any]]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    metric = search.objective.metric
    for fold in range(folds):
        folder = base / f"{number}-{fold}"
        folder.mkdir()
        job = {"point": point, "fold": fold, "folds": folds, "seed": str(number), "folder": str(folder)}
        worker.stdin.write(json.dumps(job) + "\n")
        worker.stdin.flush()
        seconds = float(worker.stdout.readline())
        lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
        verdict = json.loads((folder / "output.json").read_text())
        found = {**verdict, **verdict.get("metrics", {})}
        final = found.get(metric, found["loss"]) if verdict["status"] == 0 else None
        curve = [_rounded(line.get(metric, line.get("value"))) for line in lines]
        yield {"curve": curve, "final": final and _rounded(final), "seconds": round(seconds, 3)}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SETTINGS)
    parser.add_argument("--python", default=sys.executable, help="that runs the payload")
    parser.add_argument("--seconds", type=float, default=400.0, help="of CPU for all trainings")
    parser.add_argument("--seed", type=int, default=14, help="of the points; others give curves to develop on")
    parser.add_argument("-o", "--output", type=Path, help="default: the file that benchmarks read")
    options = parser.parse_args()
    made = record(options.name, options.python, options.seconds, options.seed)
    output = options.output or FOLDER / f"{options.name}.json.gz"
    with output.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.write(json.dumps(made, separators=(",", ":")).encode())
    print(f"{len(made['points'])} points in {output}: {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
