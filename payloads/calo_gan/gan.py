"""The adversarial training: what one step has, what both networks learn from it, and how good they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from figure import Profiles, figure_of_merit, profiles
from networks import Discriminator, Generator, Scale, rows_of
from problem import TrainingError
from ranks import Ranks
from showers import Showers
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

EVALUATED_AT_ONCE = 256  #: showers
BETAS = (0.5, 0.9)  #: of Adam, as is usual for GANs (Radford et al., arXiv:1511.06434)


@dataclass(frozen=True)
class Step:
    """What one rank has for one step.

    Attributes:
        ecal: (n, x, y, depth) this rank's real showers.
        energy: (n,) GeV of them; the generated ones have the same.
        noise: latent numbers and grains for two generations, one to learn from by each network.
        together: showers of all ranks.
    """

    ecal: Tensor
    energy: Tensor
    noise: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    together: int


class Batches:
    """This rank's share of each batch of an epoch; what is left over after the last whole batch is left out."""

    def __init__(self, point: dict[str, Any], showers: Showers, ranks: Ranks, seed: int) -> None:
        self.batch, self.latent, self.ranks, self.seed = point["batch"], point["latent"], ranks, seed
        self.ecal, self.energy = torch.from_numpy(showers.ecal), torch.tensor(showers.energy, dtype=torch.float32)
        if not ranks.size <= self.batch <= len(showers):
            raise TrainingError(f"batch {self.batch} must be from {ranks.size} ranks to {len(showers)} showers")

    def __len__(self) -> int:
        return len(self.energy) // self.batch

    def epoch(self, epoch: int) -> Iterator[Step]:
        """The steps of an epoch; their numbers do not depend on the rank that draws them."""
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        device, mine = self.ranks.device, slice(self.ranks.rank, None, self.ranks.size)
        order = torch.randperm(len(self.energy), generator=random)
        for i in range(len(self)):
            part = order[i * self.batch : (i + 1) * self.batch][mine]
            noise = [noise_of(self.batch, self.latent, self.ecal.shape[1:], random) for _ in range(2)]
            first, second = ((latent[mine].to(device), grain[mine].to(device)) for latent, grain in noise)
            yield Step(self.ecal[part].to(device), self.energy[part].to(device), (first, second), self.batch)


def noise_of(showers: int, latent: int, grid: Sequence[int], random: torch.Generator) -> tuple[Tensor, Tensor]:
    """The input of a generator for a number of showers."""
    return torch.randn(showers, latent, generator=random), torch.randn(showers, 1, *grid, generator=random)


class Gan:
    """Both networks and their optimizers."""

    def __init__(self, point: dict[str, Any], grid: tuple[int, int, int], scale: Scale, ranks: Ranks) -> None:
        self.point, self.ranks, self.steps = point, ranks, 0
        self.generator = Generator(grid, point["latent"], point["channels"], scale).to(ranks.device)
        self.discriminator = Discriminator(grid, point["channels"], scale).to(ranks.device)
        #: The networks as they are called where their gradients are wanted.
        self.trained: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        for name, model in (("generator", self.generator), ("discriminator", self.discriminator)):
            optimizer = self._optimizer(model, point[f"{name}_rate"])
            self.trained[name], self.optimizers[name] = ranks.distribute(model, optimizer, name=name)

    def _optimizer(self, model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
        if self.point["optimizer"] == "adam":
            return torch.optim.Adam(model.parameters(), lr=rate, betas=BETAS)
        return torch.optim.RMSprop(model.parameters(), lr=rate)

    def parts(self) -> list[tuple[torch.nn.Module, torch.optim.Optimizer]]:
        """Each network with its optimizer."""
        return [
            (self.generator, self.optimizers["generator"]),
            (self.discriminator, self.optimizers["discriminator"]),
        ]

    def set_rates(self, factor: float) -> None:
        """Both learning rates, as the point gives them times `factor`."""
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = self.point[f"{name}_rate"] * factor

    def learn(self, step: Step) -> None:
        """One step of the discriminator, and where it is its turn one of the generator."""
        self.steps += 1
        is_turn = self.steps % self.point["discriminator_steps"] == 0
        with torch.set_grad_enabled(is_turn):
            made = self.trained["generator"](*step.noise[0], step.energy)
        self._discriminator_step(step, made.detach())
        if is_turn:
            self._generator_step(step, made)

    def _discriminator_step(self, step: Step, made: Tensor) -> None:
        both, energies = torch.cat([step.ecal, made]), torch.cat([step.energy, step.energy])
        real = len(step.energy)
        self.optimizers["discriminator"].zero_grad()
        logits, estimates = self.trained["discriminator"](both, energies)
        wanted = torch.zeros_like(logits)
        wanted[:real] = 1 - self.point["smoothing"]  # one-sided (Salimans et al., arXiv:1606.03498)
        verdict = binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
        auxiliary = self._energy_error(estimates[:real], step.energy)
        self._share(verdict + self.point["auxiliary_weight"] * auxiliary, step).backward()
        self.optimizers["discriminator"].step()

    def _generator_step(self, step: Step, made: Tensor) -> None:
        self.optimizers["generator"].zero_grad()
        # Else ranks would exchange gradients of the discriminator too, in a step that is not its own.
        self.discriminator.requires_grad_(False)
        logits, estimates = self.discriminator(made, step.energy)
        verdict = binary_cross_entropy_with_logits(logits, torch.ones_like(logits), reduction="sum")
        seen, target = made.sum(dim=(1, 2, 3)), step.ecal.sum(dim=(1, 2, 3))
        total = ((seen - target).abs() / target.clamp_min(1e-6)).sum()
        auxiliary = self._energy_error(estimates, step.energy)
        loss = verdict + self.point["auxiliary_weight"] * auxiliary + self.point["total_weight"] * total
        if self.point["profile_weight"] > 0:
            other = self.trained["generator"](*step.noise[1], step.energy)
            score = energy_score(rows_of(made), rows_of(other), rows_of(step.ecal))
            loss = loss + self.point["profile_weight"] * score
        self._share(loss, step).backward()
        self.optimizers["generator"].step()
        self.discriminator.requires_grad_(True)

    def _share(self, loss: Tensor, step: Step) -> Tensor:
        """This rank's loss such that the ranks' mean is the mean over all showers; shares differ by a shower."""
        return loss * self.ranks.size / step.together

    def _energy_error(self, estimates: Tensor, energy: Tensor) -> Tensor:
        return (estimates - torch.log(energy / self.generator.scale.energy)).abs().sum()

    def make(self, energy: np.ndarray, seed: int) -> Showers:
        """This rank's share of showers of particles with these energies (n,); together they do not depend on ranks."""
        random, mine = torch.Generator().manual_seed(seed), slice(self.ranks.rank, None, self.ranks.size)
        grid, device = self.generator.grid, self.ranks.device
        made, energies = [np.empty((0, *grid), np.float32)], [np.empty(0)]
        for start in range(0, len(energy), EVALUATED_AT_ONCE):
            part = energy[start : start + EVALUATED_AT_ONCE]
            latent, grain = noise_of(len(part), self.point["latent"], grid, random)
            energies.append(part[mine])
            if len(energies[-1]) == 0:
                continue
            given = torch.tensor(energies[-1], dtype=torch.float32)
            with torch.no_grad():
                made.append(
                    self.generator(latent[mine].to(device), grain[mine].to(device), given.to(device)).cpu().numpy()
                )
        return Showers(np.concatenate(made), np.concatenate(energies))

    def evaluate(self, showers: Showers, truth: Profiles, edges: np.ndarray, seed: int) -> dict[str, float]:
        """Figures of merit against `showers`, at their energies; each rank makes its share of them.

        Raises:
            TrainingError: what is made are no numbers; all ranks raise it, for all know the sums.
        """
        made = self.make(showers.energy, seed)
        sums = profiles(made.ecal, made.energy, edges)
        together = truth.refilled(self.ranks.sum(sums.flat()))
        try:
            found = figure_of_merit(together, truth)
        except TrainingError as error:
            raise TrainingError(f"the training diverged: {error}") from error
        return {**found, "resolution": together.resolution()}


def energy_score(first: Tensor, second: Tensor, real: Tensor) -> Tensor:
    """The sum over showers of how badly two draws (n, k) go with the real one; least for the right distribution.

    A proper score (Gneiting and Raftery, J. Am. Stat. Assoc. 102 (2007) 359), as in Cramér GANs (Bellemare et al.,
    arXiv:1705.10743): unlike a mean distance from the real ones it does not reward draws for being all alike.
    """
    apart = [((a - b).square().sum(dim=1) + 1e-12).sqrt() for a, b in ((first, real), (second, real), (first, second))]
    return ((apart[0] + apart[1] - apart[2]) / 2).sum()
