"""DDP under torchrun beside Horovod under horovodrun with gloo: the same small ResNet on two ranks of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_LAUNCHERS = {"DDP": "torchrun --standalone --nproc-per-node=2", "Horovod": "horovodrun -np 2 --gloo python"}
_OPTIONS = "--synthetic 640 --classes 4 --size 32 --depth 14 --width 16 --epochs 3"
_POINT = {"learning_rate": 0.3, "batch": 32}


def measure(*, quick: bool) -> dict[str, Any]:
    """Images per second of both, in turns, in the Python that `make horovod` made: the fastest turn of each."""
    build = [sys.executable, str(_ROOT / "deploy" / "horovod" / "build.py"), "--where"]
    python = Path(subprocess.run(build, capture_output=True, text=True, check=True).stdout.strip())
    env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    found: dict[str, list[float]] = {name: [] for name in _LAUNCHERS}
    for _ in range(1 if quick else 4):
        for name, launcher in _LAUNCHERS.items():
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "input.json").write_text(json.dumps(_POINT))
                command = f"{launcher} {_ROOT}/payloads/resnet50/train.py {_OPTIONS}"
                subprocess.run(command.split(), cwd=folder, env=env, capture_output=True, timeout=300, check=True)
                result = json.loads(Path(folder, "output.json").read_text())
            found[name].append(result["metrics"]["images_per_second"])
    figures: dict[str, Any] = {name: max(rates) for name, rates in found.items()}
    figures["ratio"] = figures["DDP"] / figures["Horovod"]
    print("\n".join(f"  {name:8} {figures[name]:6.0f} images/s" for name in _LAUNCHERS))
    print(f"  ratio    {figures['ratio']:6.2f}", flush=True)
    return figures | {"all": found}
