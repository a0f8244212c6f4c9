"""Electromagnetic showers in a sampling calorimeter, from textbook formulae: numpy alone, no simulation is run.

Sources. [P] Particle Data Group, Review of Particle Physics, "Passage of particles through matter", section
"Electromagnetic cascades". [G] G. Grindhammer and S. Peters, hep-ex/0001020, the parameterised homogeneous shower.

* Along the depth t in radiation lengths, dE/dt = E b (bt)^(a-1) exp(-bt) / Γ(a) (E. Longo and I. Sestili, Nucl.
  Instrum. Meth. 128 (1975) 283), with b = 0.5 and the maximum at t_max = (a-1)/b = ln(E/Ec) + C, where C is +0.5 for
  photons and -0.5 for electrons [P].
* Across it, two exponentials of the area density, a core and a halo. Their three constants are ours, solved from what
  [P] says of the Molière radius: 90% of the energy is within one, 99% within 3.5. Both grow linearly with the shower's
  age t / t_max, as the core's radius does in [G]; there the halo's follows two exponentials, and the area density is a
  rational function. The slope is ours, and the mean width is that of [P].
* t_max fluctuates from shower to shower, log-normally with σ = 1 / (1.26 ln(E/Ec) - 1.4) [G].
* Of the energy in a cell the active layers see a fraction, and it fluctuates as a Gamma variable: independent in all
  cells, and such that the sum of a shower has the resolution `stochastic` / √E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from problem import TrainingError

SHAPE_B = 0.5  #: [P], near 0.5 for all absorbers but the lightest
MAXIMUM_OFFSETS = {"photon": 0.5, "electron": -0.5}  #: [P], C of the shower maximum
CORE_SHARE, CORE_LENGTH, HALO_LENGTH = 0.87, 0.165, 0.831  #: share of the core; decay lengths in Molière radii
WIDENING = 0.25  #: growth of the width by one t_max of depth
LOWEST_ENERGY = 1.0  #: GeV; below it the formulae of [P] and [G] do not hold
STEPS = 8  #: of the integration, to a cell's side
WIDTHS = np.linspace(0.3, 3.0, 46)  #: widths, in units of the mean one, for which the lateral shares are tabulated


@dataclass(frozen=True)
class Calorimeter:
    """A block of tungsten and silicon that a particle enters in the middle of one side.

    The block is the same whatever the number of cells: 25 X0 deep and 7.5 Molière radii wide, as the 25 layers and the
    window of CLIC's data are, roughly.

    Attributes:
        cells: of each of x, y and depth.
        depth: in radiation lengths.
        width: in Molière radii.
        critical_energy: GeV; 610 MeV / (Z + 1.24) of solids [P] for tungsten.
        sampling_fraction: of the energy in a cell, what is seen of it on average.
        stochastic: relative resolution at 1 GeV.
    """

    cells: int = 25
    depth: float = 25.0
    width: float = 7.5
    critical_energy: float = 0.610 / (74 + 1.24)
    sampling_fraction: float = 0.025
    stochastic: float = 0.17


@dataclass(frozen=True)
class Showers:
    """Events, as files have them.

    Attributes:
        ecal: (n, x, y, depth) GeV seen in each cell, 32-bit.
        energy: (n,) GeV of the particles.
    """

    ecal: np.ndarray
    energy: np.ndarray

    def __len__(self) -> int:
        return len(self.energy)

    def part(self, index: np.ndarray) -> Showers:
        """The events of an index or mask."""
        return Showers(self.ecal[index], self.energy[index])


@dataclass(frozen=True)
class ShowerMaker:
    """Draws showers.

    Attributes:
        calorimeter: where.
        particle: `photon` or `electron`.
        shift: added to t_max; not 0 makes wrong showers, for tests of the figure of merit.
    """

    calorimeter: Calorimeter = field(default_factory=Calorimeter)
    particle: str = "photon"
    shift: float = 0.0

    def maximum(self, energy: np.ndarray) -> np.ndarray:
        """(n,) t_max of the mean shower, in radiation lengths."""
        logarithm = np.log(energy / self.calorimeter.critical_energy)
        return logarithm + MAXIMUM_OFFSETS[self.particle] + self.shift

    def longitudinal(self, maximum: np.ndarray) -> np.ndarray:
        """(n, layers) share of the energy in each layer, for showers with these t_max; the rest leaks out behind."""
        steps = self.calorimeter.cells * STEPS
        width = self.calorimeter.depth / steps
        t = (np.arange(steps) + 0.5) * width
        a = 1 + SHAPE_B * maximum[:, None]
        normal = np.array([math.lgamma(value) for value in a[:, 0]])[:, None]
        density = SHAPE_B * np.exp((a - 1) * np.log(SHAPE_B * t) - SHAPE_B * t - normal)
        return (density * width).reshape(len(maximum), self.calorimeter.cells, STEPS).sum(axis=-1)

    def lateral(self) -> np.ndarray:
        """(widths, x, y) share of a layer's energy in each of its cells, for each of WIDTHS."""
        steps = self.calorimeter.cells * STEPS
        side = self.calorimeter.width / steps
        x = (np.arange(steps) + 0.5) * side - self.calorimeter.width / 2
        radius = np.hypot(x[:, None], x[None, :])
        shares = []
        for width in WIDTHS:
            density = sum(
                share * np.exp(-radius / (length * width)) / (2 * np.pi * (length * width) ** 2)
                for share, length in ((CORE_SHARE, CORE_LENGTH), (1 - CORE_SHARE, HALO_LENGTH))
            )
            cells = self.calorimeter.cells
            shares.append((density * side**2).reshape(cells, STEPS, cells, STEPS).sum(axis=(1, 3)))
        return np.array(shares)

    def widths(self, maximum: np.ndarray) -> np.ndarray:
        """(n, layers) width of the showers in each layer, in units of the mean one."""
        t = (np.arange(self.calorimeter.cells) + 0.5) * self.calorimeter.depth / self.calorimeter.cells
        # Energy is deposited at t_max + 1/b in the mean: there the width is 1.
        return 1 + WIDENING * (t - maximum[:, None] - 1 / SHAPE_B) / maximum[:, None]

    def draw(self, energy: np.ndarray, seed: int) -> Showers:
        """Showers of particles with these energies.

        Args:
            energy: (n,) GeV.
            seed: the same one gives the same showers.
        """
        if len(energy) == 0 or not (np.isfinite(energy).all() and energy.min() >= LOWEST_ENERGY):
            raise TrainingError(f"showers need energies of {LOWEST_ENERGY:g} GeV or more")
        rng, detector = np.random.default_rng(seed), self.calorimeter
        spread = 1 / (1.26 * np.log(energy / detector.critical_energy) - 1.4)
        # The mean of a log-normal variable is above its median by σ²/2; at least 1, where a shift is large.
        maximum = np.maximum(self.maximum(energy) * np.exp(spread * rng.normal(size=len(energy)) - spread**2 / 2), 1.0)
        position = (np.clip(self.widths(maximum), WIDTHS[0], WIDTHS[-1]) - WIDTHS[0]) / (WIDTHS[1] - WIDTHS[0])
        lower = np.minimum(position.astype(int), len(WIDTHS) - 2)
        part = (position - lower)[..., None, None]
        table, shares = self.lateral(), self.longitudinal(maximum)
        quantum = detector.stochastic**2 * detector.sampling_fraction
        ecal = np.empty((len(energy), *[detector.cells] * 3), np.float32)
        for i in range(len(energy)):  # one at a time: a million cells in double precision would fill the memory
            layers = table[lower[i]] * (1 - part[i]) + table[lower[i] + 1] * part[i]
            seen = energy[i] * detector.sampling_fraction * shares[i][:, None, None] * layers
            ecal[i] = np.moveaxis(rng.gamma(seen / quantum) * quantum, 0, -1)
        return Showers(ecal, energy)


def flat_energies(events: int, low: float, high: float, seed: int) -> np.ndarray:
    """(events,) GeV, evenly distributed."""
    return np.random.default_rng([seed, 1]).uniform(low, high, events)
