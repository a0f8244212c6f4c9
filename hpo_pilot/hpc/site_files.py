"""Reads site files, finds site profiles by name, and estimates the power that a search's jobs draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hpo_pilot.errors import InputError, SearchFileError
from hpo_pilot.hpc.site_folders import SITES_VARIABLE, site_folders
from hpo_pilot.hpc.site_profile import SiteProfile
from hpo_pilot.search import Resources, Search
from hpo_pilot.search.mistakes import Mistake, did_you_mean, keys_of
from hpo_pilot.search.trials import Price
from hpo_pilot.search.yaml_document import read_model

_SECTIONS = {
    name: field.annotation
    for name, field in SiteProfile.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}

#: The section of each key, for keys at the top level by mistake; without keys of several sections.
_ELSEWHERE = {
    key: f"under {section}"
    for section, model in _SECTIONS.items()
    for key in keys_of(model)
    if sum(key in keys_of(other) for other in _SECTIONS.values()) == 1
}


class SiteFileError(SearchFileError):
    """A site file has mistakes; the message lists all of them, one per line, in the order of the file."""


def load_site(path: Path) -> SiteProfile:
    """Reads the profile in the file at `path`.

    Raises:
        SiteFileError: the file cannot be read or has mistakes; `problems` has all of them with their places.
    """
    return read_model(path, SiteProfile, SiteFileError, _ELSEWHERE, lambda value: _misnamed(value, path.stem))


def find_site(name: str) -> SiteProfile:
    """Reads the profile with that name, the value of `site.profile` or `--site`.

    Raises:
        InputError: there is no such profile.
        SiteFileError: its file has mistakes.
    """
    files = site_files()
    if name not in files:
        raise InputError(f"there is no site profile {name!r}: {unknown_site_hint(name, files)}")
    return load_site(files[name])


def site_files() -> dict[str, Path]:
    """Returns the files of all profiles, sorted by name; of files with one name the first in search order."""
    return dict(_site_files(tuple((folder, _changed(folder)) for folder in site_folders())))


def known_site(name: str) -> SiteProfile | None:
    """Returns the profile with that name; None: there is none, or its file has mistakes."""
    path = site_files().get(name)
    return None if path is None else _profile(path, path.stat().st_mtime_ns)


def site_here(name: str) -> SiteProfile | None:
    """Returns the profile with that name if jobs of it can run on this machine: no batch system, and not the grid."""
    profile = None if name == "grid" else known_site(name)
    return profile if profile is not None and profile.batch.system == "none" else None


def unknown_site_hint(name: str, files: Mapping[str, Path]) -> str:
    """Returns the hint for an unknown profile name: similar names, and where to put a new profile."""
    own = f"a site's own file goes into ~/.config/hpo_pilot/sites, or a folder that --sites or {SITES_VARIABLE} names"
    return f"{did_you_mean(name, files)} ({own})" if files else own


def _misnamed(value: Any, name: str) -> Iterator[Mistake]:
    if isinstance(value, Mapping) and isinstance(value.get("name"), str) and value["name"] != name:
        message = f"is {value['name']!r}, and the file's name says {name!r}"
        yield Mistake(("name",), message, f"call the file {value['name']}.yaml, or the site {name}")


def price_of(search: Search) -> Price:
    """Returns the price of one job of the search; its site profile may have figures of power and carbon."""
    return site_price(known_site(search.site.profile), search.resources)


def site_price(profile: SiteProfile | None, resources: Resources) -> Price:
    """Returns the price of one job with these resources at a site; None: the site has no profile."""
    watts = None if profile is None else _job_watts(profile, resources)
    carbon = None if profile is None or profile.carbon is None else profile.carbon.grams_per_kwh / 1000
    return Price(resources.gpus, resources.all_cores, watts, carbon)


def _job_watts(profile: SiteProfile, resources: Resources) -> float | None:
    """Returns the power of one job on all its nodes, in watts; None: the profile has no power figures.

    A job counts a share of the idle power of its nodes: the largest of its shares of cores, GPUs and memory. Other jobs
    may use the rest.
    """
    node, power = profile.node, profile.node.power
    if power is None:
        return None
    asked = (
        (resources.cores, node.cores),
        (resources.gpus_per_node, node.gpu_count),
        (resources.memory_mb, node.memory_mb),
    )
    share = max((wanted / all_of_it for wanted, all_of_it in asked if all_of_it), default=1.0)
    busy = power.watts(resources.cores, resources.gpus_per_node) - power.idle
    return resources.nodes * (min(1.0, share) * power.idle + busy)


@lru_cache(maxsize=8)
def _site_files(folders: tuple[tuple[Path, int], ...]) -> dict[str, Path]:
    """Lists the folders again when one of them has changed."""
    found: dict[str, Path] = {}
    for folder, _ in folders:
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def _changed(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=32)
def _profile(path: Path, _changed: int) -> SiteProfile | None:
    """Reads a profile again when its file has changed; None: it has mistakes, which `hpo-pilot sites` shows."""
    try:
        return load_site(path)
    except SiteFileError:
        return None
