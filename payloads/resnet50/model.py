"""ResNet: deep residual networks with bottlenecks.

K. He, X. Zhang, S. Ren, J. Sun, Deep Residual Learning for Image Recognition, arXiv:1512.03385. Version 1.5: the stride
is in the 3 × 3 convolution, not in the first 1 × 1. The scale of each block's last normalization begins at 0, so that
each block begins as the identity (P. Goyal et al., arXiv:1706.02677, section 5.1).
"""

from __future__ import annotations

import math

import torch
from torch import nn

#: Blocks of the four stages by the number of layers; 14 and 26 are for small images and tests.
STAGES = {14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
EXPANSION = 4
GROUPS = 32  #: of GroupNorm (Y. Wu, K. He, arXiv:1803.08494), or as many as divide the channels


def _norm(kind: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(math.gcd(GROUPS, channels), channels)


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions beside a shortcut."""

    def __init__(self, inward: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        outward = width * EXPANSION
        self.inner = nn.Sequential(
            nn.Conv2d(inward, width, 1, bias=False),
            _norm(norm, width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            _norm(norm, width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outward, 1, bias=False),
            _norm(norm, outward),
        )
        nn.init.zeros_(self.inner[-1].weight)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inward != outward:
            self.shortcut = nn.Sequential(nn.Conv2d(inward, outward, 1, stride, bias=False), _norm(norm, outward))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """From shape (n, inward, h, w) to (n, 4 width, h / stride, w / stride)."""
        return torch.relu(self.inner(images) + self.shortcut(images))


class ResNet(nn.Module):
    """A residual network of torch's seed.

    Args:
        classes: how many there are.
        depth: layers, of STAGES.
        width: channels of the first stage.
        norm: `batch`, or `group`, whose results do not depend on which images are in a batch together.
    """

    def __init__(self, classes: int = 1000, depth: int = 50, width: int = 64, norm: str = "batch") -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            _norm(norm, width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        inward = width
        for stage, blocks in enumerate(STAGES[depth]):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Bottleneck(inward, width * 2**stage, stride, norm))
                inward = width * 2**stage * EXPANSION
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inward, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """From images of shape (n, 3, h, w) to the classes' scores of shape (n, classes)."""
        scores: torch.Tensor = self.classifier(self.features(images).mean(dim=(2, 3)))
        return scores
