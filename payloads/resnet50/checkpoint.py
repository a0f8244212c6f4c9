"""The state of a training after some epoch, in one file that rank 0 writes and reads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch


class Checkpoint:
    """One file; its name is a digest of what the training depends on. The number of ranks is no part of it."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        text = json.dumps({**identity, "torch": torch.__version__}, sort_keys=True, default=str)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.pt"

    def save(self, history: list[dict[str, float]], **parts: Any) -> None:
        """Replaces the file in one step: a kill leaves the old one or the new one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        torch.save({"history": history, **{name: part.state_dict() for name, part in parts.items()}}, partial)
        partial.replace(self.path)

    def load(self, device: torch.device, **parts: Any) -> list[dict[str, float]]:
        """Puts the file's state into the parts; returns the epochs done, none where there is no file."""
        if not self.path.exists():
            return []
        state = torch.load(self.path, map_location=device, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        history: list[dict[str, float]] = state["history"]
        return history

    def drop(self) -> None:
        """Removes the file when the training has ended: the next training of this point begins anew."""
        self.path.unlink(missing_ok=True)
