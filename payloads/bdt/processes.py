"""Four processes of proton collisions, as four-vectors: H → ττ, Z → ττ, W with a jet, and pairs of top quarks.

README.md beside this file has the formulae, their sources, and what is of our own choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from kinematics import Array, cartesian, transverse

#: Masses and widths in GeV (Particle Data Group).
HIGGS_MASS, Z_MASS, Z_WIDTH, W_MASS, TOP_MASS = 125.0, 91.188, 2.495, 80.37, 172.6
VBF_SHARE = 0.07  #: of the signal: two forward jets (vector-boson fusion)
SOFTEST_JET = 30.0  #: GeV, of radiated and of forward jets


@dataclass(frozen=True)
class Decay:
    """What a collision leaves: momenta of n events, (n, 3) in GeV, masses neglected.

    Attributes:
        lepton: the electron or muon.
        tau: what is seen of a τ that decays to hadrons, or what is taken for it.
        neutrinos: their sum in the transverse plane, (n, 2).
        jets: (n, 2, 3); NaN where there is none.
    """

    lepton: Array
    tau: Array
    neutrinos: Array
    jets: Array


def falling_pt(scale: float, power: float, count: int, rng: np.random.Generator) -> Array:
    """Transverse momenta with density ∝ pt · (1 + pt² / scale²)^-power, by inversion."""
    return scale * np.sqrt((1.0 - rng.random(count)) ** (-1.0 / (power - 1.0)) - 1.0)


def _boson(mass: Array, pt_scale: float, spread: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Energy (n,) and momentum (n, 3) of produced particles; `spread` is the width of their rapidity."""
    count = len(mass)
    pt = falling_pt(pt_scale, 2.6, count, rng)
    transverse_mass, rapidity = np.hypot(mass, pt), rng.normal(0.0, spread, count)
    phi = rng.uniform(-np.pi, np.pi, count)
    momentum = np.stack([pt * np.cos(phi), pt * np.sin(phi), transverse_mass * np.sinh(rapidity)], axis=-1)
    return transverse_mass * np.cosh(rapidity), momentum


def _two_body(
    mass: Array, energy: Array, momentum: Array, rng: np.random.Generator, remnant: float = 0.0
) -> tuple[Array, Array]:
    """Isotropic decay in the rest frame, boosted: a massless daughter, and one of mass `remnant`; (n, 3) each."""
    cosine, phi = rng.uniform(-1.0, 1.0, len(mass)), rng.uniform(-np.pi, np.pi, len(mass))
    sine = np.sqrt(1.0 - cosine**2)
    size = (mass**2 - remnant**2) / (2 * mass)
    own = size[:, None] * np.stack([sine * np.cos(phi), sine * np.sin(phi), cosine], axis=-1)
    along = (own * momentum).sum(axis=-1)
    first = own + momentum * ((along / (energy + mass) + size) / mass)[:, None]
    return first, momentum - first


def _lepton_share(count: int, rng: np.random.Generator) -> Array:
    """The share of a τ's energy that the lepton of τ → ℓνν has: density (5 - 9x² + 4x³) / 3."""
    grid = np.linspace(0.0, 1.0, 513)
    return np.interp(rng.random(count), (5 * grid - 3 * grid**3 + grid**4) / 3, grid)


def _hadron_share(count: int, rng: np.random.Generator) -> Array:
    """The share of a τ's energy that its hadrons have: flat for one pion, higher for heavier ones."""
    return np.where(rng.random(count) < 0.17, rng.random(count), rng.beta(3.0, 1.5, count))


def _radiated_jets(recoil: Array, mean: float, rng: np.random.Generator) -> Array:
    """Jets beside a system of transverse momentum `recoil`: the first balances it, more are radiated; (n, 2, 3)."""
    count = len(recoil)
    balance = -recoil[:, :2] * rng.normal(0.9, 0.15, count)[:, None] + rng.normal(0.0, 5.0, (count, 2))
    size, phi = np.hypot(*balance.T), np.arctan2(balance[:, 1], balance[:, 0])
    first = cartesian(size, rng.normal(0.0, 1.8, count), phi)
    second = cartesian(
        SOFTEST_JET + rng.exponential(20.0, count), rng.normal(0.0, 2.0, count), rng.uniform(-np.pi, np.pi, count)
    )
    second[rng.random(count) > mean] = np.nan
    return np.stack([first, second], axis=1)


def _forward_jets(recoil: Array, rng: np.random.Generator) -> Array:
    """The two jets of vector-boson fusion, on either side and far apart; together they balance the boson; (n, 2, 3)."""
    count = len(recoil)
    side, phi = rng.choice([-1.0, 1.0], count), rng.uniform(-np.pi, np.pi, count)
    size = SOFTEST_JET + rng.exponential(45.0, count)
    other = -recoil[:, :2] - size[:, None] * np.stack([np.cos(phi), np.sin(phi)], axis=-1)
    first = cartesian(size, side * np.abs(rng.normal(2.4, 0.9, count)), phi)
    phi = np.arctan2(other[:, 1], other[:, 0])
    second = cartesian(np.hypot(*other.T), -side * np.abs(rng.normal(2.4, 0.9, count)), phi)
    return np.stack([first, second], axis=1)


def _tau_pair(
    mass: Array, pt_scale: float, spread: float, jets: float, rng: np.random.Generator, fused: float = 0.0
) -> Decay:
    """A boson that decays to two τ, one of them to a lepton, the other to hadrons, each along its τ.

    Args:
        mass: (n,) GeV.
        pt_scale: of the boson's transverse momentum, GeV.
        spread: width of its rapidity.
        jets: the share of events in which a second jet is radiated.
        rng: the source of chance.
        fused: the share of events that have two forward jets instead.
    """
    energy, momentum = _boson(mass, pt_scale, spread, rng)
    first, second = _two_body(mass, energy, momentum, rng)
    x, y = _lepton_share(len(mass), rng)[:, None], _hadron_share(len(mass), rng)[:, None]
    neutrinos = (1 - x) * first + (1 - y) * second
    radiated, forward = _radiated_jets(momentum, jets, rng), _forward_jets(momentum, rng)
    chosen = np.where((rng.random(len(mass)) < fused)[:, None, None], forward, radiated)
    return Decay(x * first, y * second, neutrinos[:, :2], chosen)


def _higgs(count: int, rng: np.random.Generator) -> Decay:
    return _tau_pair(np.full(count, HIGGS_MASS), 45.0, 1.0, 0.25, rng, fused=VBF_SHARE)


def _z(count: int, rng: np.random.Generator) -> Decay:
    mass = np.clip(Z_MASS + 0.5 * Z_WIDTH * rng.standard_cauchy(count), 66.0, 150.0)
    return _tau_pair(mass, 24.0, 1.4, 0.15, rng)


def _w(count: int, rng: np.random.Generator) -> Decay:
    """W → ℓν with a jet that is taken for a τ: the jet balances the W, or is a softer one."""
    energy, momentum = _boson(np.full(count, W_MASS), 24.0, 1.4, rng)
    lepton, neutrino = _two_body(np.full(count, W_MASS), energy, momentum, rng)
    jets = _radiated_jets(momentum, 0.15, rng)
    fake = cartesian(
        15.0 + rng.exponential(12.0, count), rng.normal(0.0, 1.6, count), rng.uniform(-np.pi, np.pi, count)
    )
    balancing = rng.random(count) < 0.5
    tau = np.where(balancing[:, None], jets[:, 0], fake)
    jets[balancing, 0] = np.nan
    return Decay(lepton, tau, neutrino[:, :2], jets)


def _top(count: int, rng: np.random.Generator) -> Decay:
    """A pair of top quarks: t → Wb twice, one W → ℓν, the other W → τν."""
    mass = np.full(count, TOP_MASS)
    energy, momentum = _boson(mass, 160.0, 1.0, rng)
    recoil = momentum * np.array([-1.0, -1.0, 1.0])  # the other top balances it in the transverse plane
    recoil[:, 2] = np.hypot(mass, transverse(momentum)) * np.sinh(rng.normal(0.0, 1.0, count))
    visible, neutrinos, quarks = [], np.zeros((count, 2)), []
    for top in (momentum, recoil):
        energy = np.sqrt(mass**2 + (top**2).sum(axis=-1))
        quark, boson = _two_body(mass, energy, top, rng, remnant=W_MASS)
        w_energy = np.sqrt(W_MASS**2 + (boson**2).sum(axis=-1))
        charged, neutrino = _two_body(np.full(count, W_MASS), w_energy, boson, rng)
        visible.append(charged)
        quarks.append(quark)
        neutrinos += neutrino[:, :2]
    share = _hadron_share(count, rng)[:, None]
    neutrinos += ((1 - share) * visible[1])[:, :2]
    return Decay(visible[0], share * visible[1], neutrinos, np.stack(quarks, axis=1))


#: Draws n collisions of a process.
PROCESSES: dict[str, Callable[[int, np.random.Generator], Decay]] = {"higgs": _higgs, "z": _z, "w": _w, "top": _top}
