"""Compiles and times a matrix multiplication as a point says: auto-tuning of a compiled kernel.

Reads `input.json` (tile sizes, unrolling, vectors, memory layout, threads, compiler options) and writes `output.json`:
the median run time, its uncertainty, and what else was found. It needs a C compiler and Python's standard library. It
knows nothing of hpo-pilot but file names, and runs by hand as well: see README.md beside it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from compiler import Compiler, TuningError, code_bytes
from measurement import WARM_UP, own_processors, run, summary

CHOICES: dict[str, tuple[Any, ...]] = {
    "vector": (8, 16, 32, 64),
    "layout": ("plain", "packed_b", "packed"),
    "optimize": ("O1", "O2", "O3"),
    "cpu": ("generic", "native"),
    "fast_math": (False, True),
    "schedule": ("static", "dynamic"),
}
NUMBERS = ("tile_i", "tile_j", "tile_k", "rows", "columns", "unroll", "threads", "size", "samples")
MOST = 8192  #: of any number: what is more is a slip of the pen
OPTIONAL: dict[str, Any] = {"threads": 1, "schedule": "static", "size": 384, "samples": 50, "seconds": 1.0}
REQUIRED = {*CHOICES, *NUMBERS} - OPTIONAL.keys()
#: Counters of the energy that the processors have used; only root can read them on most systems.
ENERGY_COUNTERS = "/sys/class/powercap"


def read_point(path: Path) -> dict[str, Any]:
    """The point in `path`, with defaults for what it leaves out.

    Raises:
        TuningError: the file is missing or is no point of this kernel.
    """
    try:
        point = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TuningError(f"cannot read the point from {path.name}: {error}") from error
    if not isinstance(point, dict):
        raise TuningError(f"{path.name} must hold an object of parameters, not {type(point).__name__}")
    point = OPTIONAL | point
    missing, unknown = sorted(REQUIRED - point.keys()), sorted(point.keys() - REQUIRED - OPTIONAL.keys())
    if missing or unknown:
        # An unknown name is refused, not ignored: a misspelt parameter would be scanned without any effect.
        raise TuningError(f"{path.name}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
    for name, choices in CHOICES.items():
        if point[name] not in choices or isinstance(point[name], bool) != isinstance(choices[0], bool):
            listed = ", ".join(map(json.dumps, choices))
            raise TuningError(f"{path.name}: {name} must be one of {listed}, not {json.dumps(point[name])}")
    for name in NUMBERS:
        if type(point[name]) is not int or not 1 <= point[name] <= MOST:
            raise TuningError(f"{path.name}: {name} must be a whole number from 1 to {MOST}, not {point[name]!r}")
    lanes = point["columns"] * (point["vector"] // 8)
    if point["tile_i"] % point["rows"] or point["tile_j"] % lanes:
        raise TuningError(
            f"{path.name}: rows ({point['rows']}) must divide tile_i ({point['tile_i']}), and {lanes} numbers in "
            f"columns x vector must divide tile_j ({point['tile_j']}): put both among the search's constraints"
        )
    return point


def padded(size: int, tile: int) -> int:
    """The least multiple of the tile that holds `size`."""
    return -(-size // tile) * tile


def energy_counters() -> list[str]:
    """Folders of counters that can be read here, one for each processor package; not those of its parts."""
    folder = Path(os.environ.get("AUTOTUNE_ENERGY_COUNTERS", ENERGY_COUNTERS))
    packages = [path for path in sorted(folder.glob("*-rapl:*")) if path.name.count(":") == 1]
    return [str(path) for path in packages if os.access(path / "energy_uj", os.R_OK)]


def tune(point: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Compiles, checks and times the kernel of a point.

    Args:
        point: as `read_point` gives it.
        folder: where the program is built.

    Returns:
        The content of output.json.

    Raises:
        TuningError: it cannot be compiled, does not run, or computes something else.
    """
    compiler = Compiler(folder)
    options = [f"-{point['optimize']}"]
    options += [compiler.native_option()] if point["cpu"] == "native" else []
    options += ["-ffast-math"] if point["fast_math"] else []
    sizes = {side: padded(point["size"], point[f"tile_{at}"]) for side, at in (("M", "i"), ("N", "j"), ("K", "k"))}
    macros = {name.upper(): str(point[name]) for name in ("rows", "columns", "vector", "unroll", "threads", "schedule")}
    macros |= {f"TILE_{at}": str(point[f"tile_{at.lower()}"]) for at in "IJK"} | {k: str(v) for k, v in sizes.items()}
    macros |= {"PACK_A": str(int(point["layout"] == "packed")), "PACK_B": str(int(point["layout"] != "plain"))}
    started = time.perf_counter()
    program = compiler.build(options, macros, point["threads"])
    compiled = time.perf_counter() - started
    arguments = [point["size"], *sizes.values(), point["samples"], point["seconds"], WARM_UP]
    with own_processors(point["threads"]) as pinned:
        found = run(program, [*map(str, arguments), *energy_counters()])
    metrics = summary(found["quiet"], found["disturbed"])
    useful = 2.0 * point["size"] ** 3
    metrics |= {
        "gflops": useful / metrics["seconds"] / 1e9,
        "padding": 2.0 * sizes["M"] * sizes["N"] * sizes["K"] / useful - 1.0,
        "pinned": pinned,
        "error": float(found["error"]),
        "compile_seconds": compiled,
    }
    size = code_bytes(folder / "kernel.o")
    metrics |= {"code_bytes": size} if size is not None else {}
    metrics |= {"joules": found["joules"]} if found.get("joules") else {}
    return {"status": 0, "loss": metrics["seconds"], "message": "", "metrics": metrics}


def main() -> None:
    """One job: the point in input.json, the verdict in output.json."""
    output = Path("output.json")
    output.unlink(missing_ok=True)  # an earlier run's result must not pass for this one's
    try:
        point = read_point(Path("input.json"))
        with tempfile.TemporaryDirectory(dir=".") as folder:
            result = tune(point, Path(folder))
        metrics = result["metrics"]
        print(
            f"{metrics['seconds']:.6g} ± {metrics['seconds_error']:.2g} s, {metrics['gflops']:.2f} GFLOP/s", flush=True
        )
    except TuningError as error:
        result = {"status": 1, "loss": None, "message": str(error)}
        print(error, flush=True)
    partial = Path("output.json.partial")
    partial.write_text(json.dumps(result) + "\n")
    partial.replace(output)


if __name__ == "__main__":
    main()
