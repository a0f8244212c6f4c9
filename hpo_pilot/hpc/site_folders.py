"""The folders of site profiles: the user's first, then the folder that comes with the product."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import hpo_pilot

#: Folders of profiles, separated as in PATH; of profiles with one name the first counts.
SITES_VARIABLE = "HPO_PILOT_SITES"

#: The installed folder of the profiles that come with the product: `data_files` of setup.cfg.
_SHARED = Path("share", "hpo_pilot", "sites")


def site_folders() -> tuple[Path, ...]:
    """Returns the folders of profiles, in search order; folders that the variable names may be missing."""
    named = [Path(name).expanduser() for name in os.environ.get(SITES_VARIABLE, "").split(os.pathsep) if name]
    home = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    own = Path(home) / "hpo_pilot" / "sites"
    # Not `Path.is_dir`: it raises for a home that this account may not read, as under sudo.
    return (*named, *(folder for folder in (own, *_shipped()) if os.path.isdir(folder)))  # noqa: PTH112


def shipped_folder(package: Path, data: Sequence[Path]) -> Path | None:
    """Returns the folder of the profiles that come with the product; None: this installation has none.

    Args:
        package: the folder of the package hpo_pilot.
        data: the data folders of Python installations, the likeliest first.
    """
    root = package.parent
    checkout = [root / "deploy" / "sites"] if (root / "setup.cfg").is_file() else []
    # `pip install --target` puts data files beside the package.
    folders = [*checkout, *(folder / _SHARED for folder in data), root / _SHARED]
    return next((folder for folder in folders if folder.is_dir()), None)


@cache  # the installation does not move, and a list of searches asks once for each
def _shipped() -> list[Path]:
    user = sysconfig.get_preferred_scheme("user")
    data = [Path(sysconfig.get_path("data")), Path(sysconfig.get_path("data", user))]
    found = shipped_folder(Path(hpo_pilot.__file__).parent, data)
    return [] if found is None else [found]
