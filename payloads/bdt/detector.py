"""What a detector sees of a collision, which collisions are kept, and the features of those."""

from __future__ import annotations

import numpy as np
from kinematics import Array, delta_phi, pair_mass, pseudorapidity, transverse
from processes import Decay

FEATURES = (
    "mass_collinear",
    "mass_transverse",
    "mass_visible",
    "pt_higgs",
    "pt_total",
    "pt_sum",
    "pt_ratio",
    "delta_r",
    "met",
    "met_centrality",
    "tau_pt",
    "tau_eta",
    "lepton_pt",
    "lepton_eta",
    "jets",
    "jet1_pt",
    "jet1_eta",
    "jet2_pt",
    "jet2_eta",
    "jets_mass",
    "jets_delta_eta",
    "jets_eta_product",
    "lepton_centrality",
)
#: The selection, GeV and pseudorapidity: a single-lepton trigger, a hadronic τ, jets.
LEPTON_PT, TAU_PT, VISIBLE_ETA, JET_PT, JET_ETA = 26.0, 20.0, 2.5, 30.0, 4.5


def detected(decay: Decay, rng: np.random.Generator) -> Decay:
    """The decay as a detector measures it, with the events and jets only that pass the selection."""
    count = len(decay.lepton)

    def smeared(momentum: Array, resolution: float) -> Array:
        shape = (*momentum.shape[:-1], 1)
        return momentum * np.clip(rng.normal(1.0, resolution, shape), 0.3, 1.7)

    lepton, tau, jets = smeared(decay.lepton, 0.02), smeared(decay.tau, 0.08), smeared(decay.jets, 0.12)
    with np.errstate(invalid="ignore"):
        jets[~((transverse(jets) > JET_PT) & (np.abs(pseudorapidity(jets)) < JET_ETA))] = np.nan
    hard = np.nan_to_num(transverse(jets)).sum(axis=1) + transverse(lepton) + transverse(tau)
    # Missing momentum is resolved to 0.5 √ΣE_T, pile-up and the underlying event adding some 200 GeV to the sum.
    width = 0.5 * np.sqrt(hard + rng.gamma(8.0, 25.0, count))
    met = decay.neutrinos + width[:, None] * rng.standard_normal((count, 2))
    # The jets in order of their momentum; where there is one, it is the first.
    swap = np.nan_to_num(transverse(jets[:, 1])) > np.nan_to_num(transverse(jets[:, 0]))
    jets[swap] = jets[swap][:, ::-1]
    kept = (transverse(lepton) > LEPTON_PT) & (transverse(tau) > TAU_PT)
    kept &= (np.abs(pseudorapidity(lepton)) < VISIBLE_ETA) & (np.abs(pseudorapidity(tau)) < VISIBLE_ETA)
    apart = np.hypot(delta_phi(lepton, tau), pseudorapidity(lepton) - pseudorapidity(tau))
    kept &= apart > 0.4  # else the τ is lost in the lepton
    return Decay(lepton[kept], tau[kept], met[kept], jets[kept])


def features_of(seen: Decay) -> Array:
    """(n, len(FEATURES)), in the order of FEATURES."""
    lepton, tau, met = seen.lepton, seen.tau, seen.neutrinos
    first, second = seen.jets[:, 0], seen.jets[:, 1]
    lepton_pt, tau_pt, met_pt = transverse(lepton), transverse(tau), np.hypot(*met.T)
    lepton_eta, tau_eta = pseudorapidity(lepton), pseudorapidity(tau)
    jet1_pt, jet2_pt, jet1_eta, jet2_eta = (
        transverse(first),
        transverse(second),
        pseudorapidity(first),
        pseudorapidity(second),
    )
    higgs = (lepton + tau)[:, :2] + met
    everything = higgs + np.nan_to_num(seen.jets).sum(axis=1)[:, :2]
    jets_mass, middle = pair_mass(first, second), (jet1_eta + jet2_eta) / 2
    columns = {
        "mass_collinear": _collinear_mass(lepton, tau, met),
        "mass_transverse": np.sqrt(2 * lepton_pt * met_pt * (1 - np.cos(delta_phi(lepton, met)))),
        "mass_visible": pair_mass(lepton, tau),
        "pt_higgs": np.hypot(*higgs.T),
        "pt_total": np.hypot(*everything.T),
        "pt_sum": lepton_pt + tau_pt + np.nan_to_num(jet1_pt) + np.nan_to_num(jet2_pt),
        "pt_ratio": lepton_pt / tau_pt,
        "delta_r": np.hypot(delta_phi(lepton, tau), lepton_eta - tau_eta),
        "met": met_pt,
        "met_centrality": _met_centrality(lepton, tau, met),
        "tau_pt": tau_pt,
        "tau_eta": tau_eta,
        "lepton_pt": lepton_pt,
        "lepton_eta": lepton_eta,
        "jets": np.isfinite(seen.jets[:, :, 0]).sum(axis=1).astype(float),
        "jet1_pt": jet1_pt,
        "jet1_eta": jet1_eta,
        "jet2_pt": jet2_pt,
        "jet2_eta": jet2_eta,
        "jets_mass": jets_mass,
        "jets_delta_eta": np.abs(jet1_eta - jet2_eta),
        "jets_eta_product": jet1_eta * jet2_eta,
        "lepton_centrality": np.exp(-4.0 * ((lepton_eta - middle) / (jet1_eta - jet2_eta)) ** 2),
    }
    return np.stack([columns[name] for name in FEATURES], axis=-1)


def _collinear_mass(lepton: Array, tau: Array, met: Array) -> Array:
    """Mass of the τ pair if the neutrinos fly along what is seen of each τ; NaN where that cannot be."""
    determinant = lepton[:, 0] * tau[:, 1] - lepton[:, 1] * tau[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        beside_lepton = (met[:, 0] * tau[:, 1] - met[:, 1] * tau[:, 0]) / determinant
        beside_tau = (lepton[:, 0] * met[:, 1] - lepton[:, 1] * met[:, 0]) / determinant
        mass = pair_mass(lepton, tau) * np.sqrt((1 + beside_lepton) * (1 + beside_tau))
    possible = (beside_lepton >= 0) & (beside_tau >= 0) & (mass < 1000.0)
    return np.where(possible, mass, np.nan)


def _met_centrality(lepton: Array, tau: Array, met: Array) -> Array:
    """Where the missing momentum lies between the two: √2 halfway, 1 along one of them, less outside."""
    sine = [np.arctan2(v[:, 1], v[:, 0]) for v in (lepton, tau, met)]
    across = np.sin(sine[1] - sine[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = np.sin(sine[2] - sine[0]) / across, np.sin(sine[1] - sine[2]) / across
        return (a + b) / np.hypot(a, b)
