"""Generator and discriminator: three-dimensional convolutions, conditioned on the particle's energy.

After the 3D GAN for CLIC's calorimeter: F. Carminati, G. Khattak, S. Vallecorsa et al., J. Phys. Conf. Ser. 1085 (2018)
032016; G. Khattak et al., Eur. Phys. J. C 82 (2022) 386. As there, the discriminator also estimates the energy, and the
seen energy has its own term of the loss. Unlike there, no layer looks at the other showers of a batch, so that a batch
may be shared out among ranks; the generator's cells are shares of a total; and the discriminator sees profiles too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

SLOPE = 0.2  #: of the leaky ReLUs
BRIGHTNESS = 100.0  #: cells that see more than 1/100 of a mean shower stand out in what convolutions see


@dataclass(frozen=True)
class Scale:
    """What the networks' numbers are in units of: means of the training showers.

    Attributes:
        energy: GeV of the particles.
        fraction: seen energy / particle energy.
    """

    energy: float
    fraction: float


class Generator(nn.Module):
    """Latent numbers and an energy in, a shower out.

    Args:
        grid: cells in x, y and depth.
        latent: how many latent numbers.
        channels: of the last but one convolution; the first has twice as many.
    """

    def __init__(self, grid: tuple[int, int, int], latent: int, channels: int, scale: Scale) -> None:
        super().__init__()
        self.grid, self.scale, self.channels = grid, scale, channels
        self.start = tuple(math.ceil(cells / 4) for cells in grid)
        self.dense = nn.Linear(latent + 2, 2 * channels * math.prod(self.start))
        self.first = nn.ConvTranspose3d(2 * channels, channels, 4, stride=2, padding=1)
        self.second = nn.ConvTranspose3d(channels, channels, 4, stride=2, padding=1)
        self.last = nn.Conv3d(channels + 1, 1, 3, padding=1)
        self.outer = nn.Sequential(nn.Linear(latent + 2, 32), nn.LeakyReLU(SLOPE), nn.Linear(32, sum(grid)))
        self.total = nn.Sequential(nn.Linear(latent + 2, 16), nn.LeakyReLU(SLOPE), nn.Linear(16, 1))

    def forward(self, latent: Tensor, grain: Tensor, energy: Tensor) -> Tensor:
        """Showers of particles.

        Args:
            latent: (n, latent) normal numbers.
            grain: (n, 1, x, y, depth) normal numbers, for what cells do on their own.
            energy: (n,) GeV.

        Returns:
            (n, x, y, depth) GeV seen, none negative.
        """
        logarithm = torch.log(energy / self.scale.energy)[:, None]
        given = torch.cat([latent, logarithm, torch.ones_like(logarithm)], dim=1)
        volume = self.dense(given).view(-1, 2 * self.channels, *self.start)
        volume = leaky_relu(self.first(leaky_relu(volume, SLOPE)), SLOPE)
        volume = leaky_relu(self.second(volume), SLOPE)[:, :, : self.grid[0], : self.grid[1], : self.grid[2]]
        # A shower is nearly a product of profiles: the convolutions need to find only what it is beside that.
        x, y, depth = self.outer(given).split(self.grid, dim=1)
        product = x[:, :, None, None] + y[:, None, :, None] + depth[:, None, None, :]
        shares = (self.last(torch.cat([volume, grain], dim=1))[:, 0] + product).flatten(1).softmax(dim=1)
        total = energy[:, None] * self.scale.fraction * torch.exp(self.total(given).clamp(-5, 5))
        return (shares * total).view(-1, *self.grid)


class Discriminator(nn.Module):
    """Tells real showers from generated ones, and estimates the particle's energy."""

    def __init__(self, grid: tuple[int, int, int], channels: int, scale: Scale) -> None:
        super().__init__()
        self.scale = scale
        ends = [math.ceil(cells / 4) for cells in grid]
        self.convolutions = nn.Sequential(
            nn.Conv3d(1, channels, 4, stride=2, padding=2),
            nn.LeakyReLU(SLOPE),
            nn.Conv3d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.LeakyReLU(SLOPE),
            nn.AdaptiveAvgPool3d(min(4, *ends)),
            nn.Flatten(),
            nn.Linear(2 * channels * min(4, *ends) ** 3, 32),
            nn.LeakyReLU(SLOPE),
        )
        self.profiles = nn.Sequential(nn.Linear(sum(grid) + 1, 64), nn.LeakyReLU(SLOPE), nn.Linear(64, 32))
        self.verdict = nn.Sequential(nn.Linear(65, 32), nn.LeakyReLU(SLOPE), nn.Linear(32, 1))
        self.regression = nn.Linear(64, 1)

    def forward(self, ecal: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
        """Verdicts on showers.

        Args:
            ecal: (n, x, y, depth) GeV seen.
            energy: (n,) GeV; the estimate does not use it.

        Returns:
            (n,) logit of being real, and (n,) estimate of ln(energy / mean energy).
        """
        unit = self.scale.energy * self.scale.fraction
        image = torch.log1p(ecal[:, None] * (BRIGHTNESS / unit)) / 4
        total = ecal.sum(dim=(1, 2, 3))[:, None].clamp_min(1e-6 * unit)
        profile = self.profiles(torch.cat([rows_of(ecal), torch.log(total / unit)], dim=1))
        features = torch.cat([self.convolutions(image), leaky_relu(profile, SLOPE)], dim=1)
        logarithm = torch.log(energy / self.scale.energy)[:, None]
        return self.verdict(torch.cat([features, logarithm], dim=1))[:, 0], self.regression(features)[:, 0]


def rows_of(ecal: Tensor) -> Tensor:
    """(n, x + y + depth) profiles of showers (n, x, y, depth): roots of the shares of the rows of x, of y, of layers.

    A root makes the tails of a profile visible beside its core.
    """
    total = ecal.sum(dim=(1, 2, 3))[:, None].clamp_min(1e-12)
    rows = [ecal.sum(dim=dims) / total for dims in ((2, 3), (1, 3), (1, 2))]
    return torch.cat([torch.sqrt(row + 1e-6) for row in rows], dim=1)
