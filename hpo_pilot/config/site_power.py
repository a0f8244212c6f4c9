"""The power that a search's jobs are taken to draw, by the figures of its site's profile."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from hpo_pilot.config.site_file import SiteFileError, load_site, site_files
from hpo_pilot.jobs.site_profile import SiteProfile
from hpo_pilot.search import Resources, Search
from hpo_pilot.search.cost import Price


def price_of(search: Search) -> Price:
    """What a second of one of the search's jobs takes; its watts where the profile of its site has figures for that."""
    resources = search.resources
    path = site_files().get(search.site.profile)
    profile = None if path is None else _profile(path, path.stat().st_mtime_ns)
    watts = None if profile is None else job_watts(profile, resources)
    return Price(resources.gpus, resources.all_cores, watts)


def job_watts(profile: SiteProfile, resources: Resources) -> float | None:
    """What one job draws on all its nodes, in watts; None: the profile has no figures.

    Of what a node draws when it does nothing, a job counts the share that it has of the node: of its cores, GPUs and
    memory the largest. Others may use the rest.
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


@lru_cache(maxsize=32)
def _profile(path: Path, _changed: int) -> SiteProfile | None:
    """A profile, read anew when its file changes; None: it is wrong, as `hpo-pilot sites` says."""
    try:
        return load_site(path)
    except SiteFileError:
        return None
