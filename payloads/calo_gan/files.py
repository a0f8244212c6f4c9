"""Showers in HDF5 files as CLIC's are: `ECAL` (n, x, y, depth) in GeV, and `energy` or `target`; h5py only here.

`python files.py showers.h5 --events 2000 --seed 1` makes one.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from problem import TrainingError
from showers import MAXIMUM_OFFSETS, Calorimeter, ShowerMaker, Showers, flat_energies

ENDINGS = (".h5", ".hdf5")


def read_showers(paths: Sequence[Path]) -> Showers:
    """The events of one or more files.

    `energy` is taken where there is one; else `target`, whose second column is the energy where it has several (the
    first is then the kind of particle).

    Raises:
        TrainingError: a file cannot be read, or is none of this kind.
    """
    parts = [_read(path) for path in paths]
    for path, part in zip(paths, parts):
        if part.ecal.shape[1:] != parts[0].ecal.shape[1:]:
            raise TrainingError(
                f"{path} has showers of {part.ecal.shape[1:]} cells, {paths[0]} of {parts[0].ecal.shape[1:]}"
            )
    return Showers(np.concatenate([part.ecal for part in parts]), np.concatenate([part.energy for part in parts]))


def write_showers(path: Path, showers: Showers) -> None:
    """A file that read_showers reads, complete or not at all."""
    partial = path.with_name(path.name + ".partial")
    with _h5py(path).File(partial, "w") as file:
        file.create_dataset("ECAL", data=showers.ecal, compression="gzip")
        file.create_dataset("energy", data=showers.energy[:, None])
        # Photons and electrons look alike here; 22 is the photon's number.
        file.create_dataset("target", data=np.stack([np.full(len(showers), 22.0), showers.energy], axis=1))
    partial.replace(path)


def _h5py(path: Path) -> ModuleType:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise TrainingError(
            f"{path} needs the package h5py, which cannot be imported here ({error}): `pip install h5py`"
        ) from error


def _read(path: Path) -> Showers:
    if not path.is_file():
        raise TrainingError(f"there is no file {path}")
    h5py = _h5py(path)
    try:
        with h5py.File(path, "r") as file:
            names = sorted(file)
            energies = next((name for name in ("energy", "target") if name in file), None)
            if "ECAL" not in file or energies is None:
                raise TrainingError(f"{path} needs ECAL and energy or target; it has {', '.join(names) or 'nothing'}")
            ecal, energy = file["ECAL"][()], np.asarray(file[energies][()], float)
    except (OSError, TypeError, ValueError) as error:
        raise TrainingError(f"{path} cannot be read: {error}") from error
    if energy.ndim > 1:
        energy = energy.reshape(len(energy), -1)
        energy = energy[:, min(1, energy.shape[1] - 1)] if energies == "target" else energy[:, 0]
    if ecal.ndim != 4 or min(ecal.shape[1:]) < 4 or len(ecal) != len(energy):
        raise TrainingError(f"{path}: ECAL must be (events, x, y, depth), one for each energy; it is {ecal.shape}")
    if not (np.isfinite(energy).all() and (energy > 0).all() and np.isfinite(ecal).all()):
        raise TrainingError(f"{path} has energies that are not above 0, or cells that are not numbers")
    return Showers(np.maximum(ecal, 0).astype(np.float32), energy)


def main(argv: Sequence[str] | None = None) -> None:
    """Makes a file of showers."""
    parser = argparse.ArgumentParser(description="Makes a file of showers.")
    parser.add_argument("path", type=Path, help="where: .h5")
    parser.add_argument("--events", type=int, default=2000, help="how many")
    parser.add_argument("--cells", type=int, default=25, help="of each of x, y and depth")
    parser.add_argument("--low", type=float, default=10.0, help="lowest energy, GeV")
    parser.add_argument("--high", type=float, default=500.0, help="highest energy, GeV")
    parser.add_argument("--particle", choices=sorted(MAXIMUM_OFFSETS), default="photon")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    maker = ShowerMaker(Calorimeter(given.cells), given.particle)
    try:
        write_showers(
            given.path, maker.draw(flat_energies(given.events, given.low, given.high, given.seed), given.seed)
        )
    except TrainingError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
