"""Momentum SGD whose steps fit the size of each layer's weights: LARS and LARC, for batches of thousands of images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer


class _LayerWise(Optimizer):
    """What LARS and LARC have in common; all settings are those of the parameter groups, where Horovod looks for them.

    Groups with `adapt: False` (biases, scales of normalizations) are stepped by plain momentum SGD.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        adapt: bool = True,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": adapt}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step along the gradients; `closure` computes them anew, as for any optimizer of torch."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        decayed = parameter.grad.add(parameter, alpha=group["weight_decay"])
        rate: float | torch.Tensor = group["lr"]
        if group["adapt"]:
            weights, slope = parameter.norm(), parameter.grad.norm()
            local = group["trust"] * weights / (slope + group["weight_decay"] * weights)
            # Without weights or a gradient nothing is adapted. No .item(): it would wait for the GPU.
            adapted = self.layer_rate(group["lr"], local)
            rate = torch.where((weights > 0) & (slope > 0), adapted, torch.full_like(adapted, group["lr"]))
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(decayed.mul_(rate))
        parameter.sub_(velocity)

    @staticmethod
    @abstractmethod
    def layer_rate(lr: float, local: torch.Tensor) -> torch.Tensor:
        """A layer's learning rate: from that of all, and trust × ‖w‖ / (‖g‖ + weight_decay × ‖w‖)."""


class LARS(_LayerWise):
    """Layer-wise adaptive rate scaling: Y. You, I. Gitman, B. Ginsburg, arXiv:1708.03888, algorithm 1.

    A layer's rate is lr × trust × ‖w‖ / (‖g‖ + weight_decay × ‖w‖);
    v ← momentum × v + rate × (g + weight_decay × w); w ← w − v.
    """

    @staticmethod
    def layer_rate(lr: float, local: torch.Tensor) -> torch.Tensor:
        """See _LayerWise."""
        return lr * local


class LARC(_LayerWise):
    """Layer-wise adaptive rate clipping: as LARS, but a layer's rate is the smaller of lr and trust × ‖w‖ / (…).

    The variant of NVIDIA's Apex (`apex.parallel.LARC`, clip=True): lr is the highest rate, which needs no warm-up.
    """

    @staticmethod
    def layer_rate(lr: float, local: torch.Tensor) -> torch.Tensor:
        """See _LayerWise."""
        return local.clamp(max=lr)


def new_optimizer(point: dict[str, Any], model: nn.Module) -> Optimizer:
    """The point's optimizer; its learning rate is set before each step.

    Biases and the scales and shifts of normalizations have no weight decay (T. He et al., arXiv:1812.01187, sec. 3.1).
    """
    parameters = list(model.parameters())
    kernels = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"params": kernels, "weight_decay": point["weight_decay"]},
        {"params": vectors, "weight_decay": 0.0},
    ]
    rates = {"lr": point["learning_rate"], "momentum": point["momentum"]}
    if point["optimizer"] == "sgd":
        return SGD(groups, nesterov=point["momentum"] > 0, **rates)
    groups[1]["adapt"] = False
    return {"lars": LARS, "larc": LARC}[point["optimizer"]](groups, trust=point["trust"], **rates)
