"""Sharded checkpoints: each rank writes and reads its part, and another number of ranks can go on from them."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class Checkpoint:
    """Folders `<digest>/<step>` with torch.distributed.checkpoint's files; all ranks must see them.

    The digest is of what the training depends on; the number of ranks is no part of it.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        text = json.dumps({**identity, "torch": torch.__version__}, sort_keys=True)
        self.folder = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
        self.is_first = not dist.is_initialized() or dist.get_rank() == 0

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, history: list[dict[str, float]]) -> None:
        """Writes the state after the last step of `history`, and removes the one before. All ranks call it."""
        weights, state = get_state_dict(model, optimizer)
        target = self.folder / f"{history[-1]['step']:.0f}"
        partial = target.with_suffix(".partial")
        dcp.save(
            {"model": weights, "optimizer": state, "history": json.dumps(history)},
            checkpoint_id=partial,
            no_dist=not dist.is_initialized(),
        )
        if self.is_first:  # its call ends when all parts are written
            partial.replace(target)
            for other in self.folder.iterdir():
                if other != target:
                    shutil.rmtree(other)

    def load(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, float]]:
        """Puts the newest state into model and optimizer; returns its history, empty without one. All ranks call it."""
        steps = [int(path.name) for path in self.folder.glob("*") if path.name.isdigit()] if self.is_first else []
        newest = [max(steps, default=0)]
        if dist.is_initialized():
            dist.broadcast_object_list(newest, 0)  # the ranks of a node may see a folder later than rank 0
        if not newest[0]:
            return []
        weights, state = get_state_dict(model, optimizer)
        found: dict[str, Any] = {"model": weights, "optimizer": state, "history": ""}
        dcp.load(found, checkpoint_id=self.folder / str(newest[0]), no_dist=not dist.is_initialized())
        set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
        history: list[dict[str, float]] = json.loads(found["history"])
        return history

    def drop(self) -> None:
        """Removes all when the training has ended: the next training of this point begins anew."""
        if self.is_first:
            shutil.rmtree(self.folder, ignore_errors=True)
