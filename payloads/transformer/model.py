"""A small transformer that predicts the next character of a text."""

from __future__ import annotations

from typing import Any

import torch
from point import ALPHABET, CONTEXT
from torch import nn


class Transformer(nn.Module):
    """Blocks of causal attention and a feed-forward network, normalized before each of them."""

    def __init__(self, point: dict[str, Any]) -> None:
        super().__init__()
        width = point["heads"] * point["head_width"]
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, point["heads"], 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(point["layers"])
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(ALPHABET)))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores (n, length, characters) of the character after each of `text` (n, length)."""
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        values = self.characters(text) + self.places(torch.arange(length, device=text.device))
        for block in self.blocks:
            values = block(values, src_mask=mask, is_causal=True)
        scores: torch.Tensor = self.head(values).clone()  # FSDP warns of outputs that are views
        return scores
