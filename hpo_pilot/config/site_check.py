"""Whether the site that a search names is known, and can hold its jobs."""

from __future__ import annotations

from hpo_pilot.config.site_file import SiteFileError, load_site, site_files, unknown_site_hint
from hpo_pilot.jobs.site_profile import SiteProfile
from hpo_pilot.search import Resources
from hpo_pilot.search.misfit import Misfit

#: What every installation knows, even one without the files.
_BUILT_IN = ("local", "grid")

#: What starts the ranks of a training.
_LAUNCHERS = frozenset({"flux", "horovodrun", "jsrun", "mpiexec", "mpirun", "srun", "torchrun"})


def check_site(name: str, resources: Resources | None) -> tuple[list[Misfit], list[Misfit]]:
    """What is wrong with the choice of a site, and what is allowed but perhaps not meant; paths as in a search file.

    Args:
        name: `site.profile`.
        resources: of one job; None: they are wrong themselves.
    """
    path = ("site", "profile")
    ranks = [] if resources is None else [misfit.under("resources") for misfit in rank_misfits(resources)]
    files = site_files()
    if name not in files:
        known = [Misfit(path, f"there is no site profile {name!r}", unknown_site_hint(name, files))]
        return [*ranks, *([] if name in _BUILT_IN else known)], []
    try:
        profile = load_site(files[name])
    except SiteFileError as error:
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        hint = f"`hpo-pilot sites check {files[name]}` says all that is wrong with it"
        return [*ranks, Misfit(path, f"its file is wrong: {error.problems[0]}{more}", hint)], []
    if resources is None:
        return [], []
    return (
        [*ranks, *(misfit.under("resources") for misfit in site_misfits(resources, profile))],
        [misfit.under("resources") for misfit in _allocation_notes(resources, profile)],
    )


def rank_misfits(resources: Resources) -> list[Misfit]:
    """Why the cores and GPUs of a node cannot be shared out over the job's ranks there; paths start at a resource.

    Searches of stores from before there were ranks may have such resources: their model takes them.
    """
    ranks, gpus = resources.ranks, resources.gpus_per_node
    if gpus and ranks and gpus % ranks:
        fewer = max(count for count in range(1, ranks) if gpus % count == 0)
        message = f"{gpus} GPUs of a node cannot be shared out evenly over {ranks} ranks"
        return [Misfit(("ranks_per_node",), message, f"use {fewer}, or gpus_per_node: {ranks}")]
    if resources.cores < ranks:
        why = "" if resources.ranks_per_node is not None or not gpus else " (one for each GPU)"
        message = f"{ranks} ranks on a node{why} need a core each, and the job has {resources.cores} there"
        hint = f"use {ranks} or more, for cores are per node"
        return [Misfit(("cores",), message, hint)]
    return []


def launcher_notes(command: str, resources: Resources) -> list[Misfit]:
    """Whether a command starts ranks by itself that the site's launcher starts too; paths are a search file's."""
    word = next((word for word in command.split() if "=" not in word), "").rsplit("/", 1)[-1]
    if not resources.ranks or word not in _LAUNCHERS:
        return []
    message = f"the site's launcher starts {resources.ranks} ranks on a node, and each of them would start {word}"
    hint = "write what one rank runs, as 'python train.py'"
    return [Misfit(("payload", "command"), message, hint)]


def site_misfits(resources: Resources, profile: SiteProfile) -> list[Misfit]:
    """Why no allocation of the site could hold one job; paths start at a resource.

    Args:
        resources: of the job.
        profile: of the site; what it does not say is not checked.
    """
    return [
        *_node_misfits(resources, profile),
        *_launcher_misfits(resources, profile),
        *_batch_misfits(resources, profile),
    ]


def _node_misfits(resources: Resources, profile: SiteProfile) -> list[Misfit]:
    node, misfits = profile.node, []
    if node.cores is not None and resources.cores > node.cores:
        message = f"a node of {profile.name} has {node.cores} cores, not {resources.cores}"
        misfits.append(Misfit(("cores",), message, f"use {node.cores} or fewer, on more nodes"))
    if node.memory_mb is not None and resources.memory_mb > node.memory_mb:
        message = f"a node of {profile.name} has {node.memory_mb} MB of memory, not {resources.memory_mb}"
        misfits.append(Misfit(("memory_mb",), message, f"use {node.memory_mb} or less; the unit is MB"))
    # Where not even the cores are said, nothing is known of the node.
    if resources.gpus_per_node > node.gpu_count and (node.gpus is not None or node.cores is not None):
        have = f"{node.gpu_count} GPUs" if node.gpu_count else "no GPU"
        message = f"a node of {profile.name} has {have}, not {resources.gpus_per_node}"
        hint = f"use {node.gpu_count} or fewer, on more nodes" if node.gpu_count else "use 0, or a site with GPUs"
        misfits.append(Misfit(("gpus_per_node",), message, hint))
    return misfits


def _launcher_misfits(resources: Resources, profile: SiteProfile) -> list[Misfit]:
    # At the grid's sites the pilots there know how they start ranks.
    if profile.launcher.name != "plain" or resources.nodes * resources.ranks < 2 or profile.name == "grid":
        return []
    message = f"{profile.name} has no launcher for {resources.nodes} x {resources.ranks} ranks"
    hint = "name one in the site's file under launcher, or use nodes: 1 and no ranks_per_node"
    return [Misfit(("nodes",) if resources.nodes > 1 else ("ranks_per_node",), message, hint)]


def _batch_misfits(resources: Resources, profile: SiteProfile) -> list[Misfit]:
    sizes = [size for size in (profile.batch.largest(), profile.node.count) if size is not None]
    if sizes and resources.nodes > min(sizes):
        message = f"a job at {profile.name} has at most {min(sizes)} nodes, not {resources.nodes}"
        return [Misfit(("nodes",), message, f"use {min(sizes)} or fewer")]
    # Many jobs run in one allocation, which may be larger than the job, and then last longer.
    longest = profile.batch.longest(resources.nodes)
    if longest is None or resources.minutes <= 60 * longest:
        return []
    message = f"no allocation at {profile.name} lasts longer than {60 * longest:g} minutes, not {resources.minutes:g}"
    hint = f"use {60 * longest:g} or less, and payload.checkpoint, so that a further attempt goes on from there"
    return [Misfit(("minutes",), message, hint)]


def _allocation_notes(resources: Resources, profile: SiteProfile) -> list[Misfit]:
    needed = profile.batch.smallest(resources.nodes, resources.minutes / 60)
    if needed is None or needed <= resources.nodes:
        return []
    message = f"at {profile.name} only allocations of {needed} nodes or more last {resources.minutes:g} minutes"
    return [Misfit(("minutes",), message, f"submit pilots for {needed} nodes or more, or use fewer minutes")]
