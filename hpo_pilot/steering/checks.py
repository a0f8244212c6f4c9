"""Checks of a search that need the site, this machine or the optimizer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import psutil
from pydantic import ValidationError

from hpo_pilot.hpc.site_files import SiteFileError, load_site, site_files, unknown_site_hint
from hpo_pilot.hpc.site_profile import SiteProfile
from hpo_pilot.pilot.machine import find_gpus
from hpo_pilot.search import Mistake, OptimizerChoice, Resources, SearchSpace
from hpo_pilot.search.mistakes import FieldPath, closest, listing, mistakes_of
from hpo_pilot.search.space import feasibility_mistakes
from hpo_pilot.search.values import show

#: Profiles of every installation, also without their files.
_BUILT_IN = ("local", "grid")

#: Programs that start the ranks of a training.
_LAUNCHERS = frozenset({"flux", "horovodrun", "jsrun", "mpiexec", "mpirun", "srun", "torchrun"})


def check_site(name: str, resources: Resources | None) -> tuple[list[Mistake], list[Mistake]]:
    """Returns mistakes in the choice of a site, and notes; paths are those of a search file.

    Args:
        name: `site.profile`.
        resources: resources of one job; None: the section is wrong.
    """
    path = ("site", "profile")
    ranks = [] if resources is None else [mistake.under("resources") for mistake in rank_mistakes(resources)]
    files = site_files()
    if name not in files:
        known = [Mistake(path, f"there is no site profile {name!r}", unknown_site_hint(name, files))]
        return [*ranks, *([] if name in _BUILT_IN else known)], []
    try:
        profile = load_site(files[name])
    except SiteFileError as error:
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        hint = f"`hpo-pilot sites check {files[name]}` says all that is wrong with it"
        return [*ranks, Mistake(path, f"its file is wrong: {error.problems[0]}{more}", hint)], []
    if resources is None:
        return [], []
    return (
        [*ranks, *(mistake.under("resources") for mistake in site_mistakes(resources, profile))],
        [mistake.under("resources") for mistake in _allocation_notes(resources, profile)],
    )


def rank_mistakes(resources: Resources) -> list[Mistake]:
    """Returns why the cores and GPUs of a node cannot be divided among its ranks; paths start at a resource.

    Searches stored before ranks existed may have such resources, so the model accepts them.
    """
    ranks, gpus = resources.ranks, resources.gpus_per_node
    if gpus and ranks and gpus % ranks:
        fewer = max(count for count in range(1, ranks) if gpus % count == 0)
        message = f"{gpus} GPUs of a node cannot be shared out evenly over {ranks} ranks"
        return [Mistake(("ranks_per_node",), message, f"use {fewer}, or gpus_per_node: {ranks}")]
    if resources.cores < ranks:
        why = "" if resources.ranks_per_node is not None or not gpus else " (one for each GPU)"
        message = f"{ranks} ranks on a node{why} need a core each, and the job has {resources.cores} there"
        hint = f"use {ranks} or more, for cores are per node"
        return [Mistake(("cores",), message, hint)]
    return []


def launcher_notes(command: str, resources: Resources) -> list[Mistake]:
    """Returns a note if the command starts ranks that the site's launcher starts too; paths are a search file's."""
    word = next((word for word in command.split() if "=" not in word), "").rsplit("/", 1)[-1]
    if not resources.ranks or word not in _LAUNCHERS:
        return []
    message = f"the site's launcher starts {resources.ranks} ranks on a node, and each of them would start {word}"
    hint = "write what one rank runs, as 'python train.py'"
    return [Mistake(("payload", "command"), message, hint)]


def site_mistakes(resources: Resources, profile: SiteProfile) -> list[Mistake]:
    """Returns why no allocation of the site fits one job; paths start at a resource.

    Args:
        resources: resources of the job.
        profile: site profile; only values given there are checked.
    """
    return [
        *_node_mistakes(resources, profile),
        *_launcher_mistakes(resources, profile),
        *_batch_mistakes(resources, profile),
    ]


def _node_mistakes(resources: Resources, profile: SiteProfile) -> list[Mistake]:
    node, mistakes = profile.node, []
    if node.cores is not None and resources.cores > node.cores:
        message = f"a node of {profile.name} has {node.cores} cores, not {resources.cores}"
        mistakes.append(Mistake(("cores",), message, f"use {node.cores} or fewer, on more nodes"))
    if node.memory_mb is not None and resources.memory_mb > node.memory_mb:
        message = f"a node of {profile.name} has {node.memory_mb} MB of memory, not {resources.memory_mb}"
        mistakes.append(Mistake(("memory_mb",), message, f"use {node.memory_mb} or less; the unit is MB"))
    # A profile without cores says nothing about the node.
    if resources.gpus_per_node > node.gpu_count and (node.gpus is not None or node.cores is not None):
        have = f"{node.gpu_count} GPUs" if node.gpu_count else "no GPU"
        message = f"a node of {profile.name} has {have}, not {resources.gpus_per_node}"
        hint = f"use {node.gpu_count} or fewer, on more nodes" if node.gpu_count else "use 0, or a site with GPUs"
        mistakes.append(Mistake(("gpus_per_node",), message, hint))
    return mistakes


def _launcher_mistakes(resources: Resources, profile: SiteProfile) -> list[Mistake]:
    # On the grid the sites' own pilots know how to start ranks.
    if profile.launcher.name != "plain" or resources.nodes * resources.ranks < 2 or profile.name == "grid":
        return []
    message = f"{profile.name} has no launcher for {resources.nodes} x {resources.ranks} ranks"
    hint = "name one in the site's file under launcher, or use nodes: 1 and no ranks_per_node"
    return [Mistake(("nodes",) if resources.nodes > 1 else ("ranks_per_node",), message, hint)]


def _batch_mistakes(resources: Resources, profile: SiteProfile) -> list[Mistake]:
    sizes = [size for size in (profile.batch.largest(), profile.node.count) if size is not None]
    if sizes and resources.nodes > min(sizes):
        message = f"a job at {profile.name} has at most {min(sizes)} nodes, not {resources.nodes}"
        return [Mistake(("nodes",), message, f"use {min(sizes)} or fewer")]
    # An allocation runs many jobs; a larger one may be allowed to last longer.
    longest = profile.batch.longest(resources.nodes)
    if longest is None or resources.minutes <= 60 * longest:
        return []
    message = f"no allocation at {profile.name} lasts longer than {60 * longest:g} minutes, not {resources.minutes:g}"
    hint = f"use {60 * longest:g} or less, and payload.checkpoint, so that a further attempt goes on from there"
    return [Mistake(("minutes",), message, hint)]


def _allocation_notes(resources: Resources, profile: SiteProfile) -> list[Mistake]:
    needed = profile.batch.smallest(resources.nodes, resources.minutes / 60)
    if needed is None or needed <= resources.nodes:
        return []
    message = f"at {profile.name} only allocations of {needed} nodes or more last {resources.minutes:g} minutes"
    return [Mistake(("minutes",), message, f"submit pilots for {needed} nodes or more, or use fewer minutes")]


@dataclass(frozen=True)
class Machine:
    """Resources of one machine.

    Attributes:
        cores: logical CPU cores.
        memory_mb: memory in MB.
        gpus: GPUs that jobs may use.
    """

    cores: int
    memory_mb: int
    gpus: int


def this_machine() -> Machine:
    """Returns the resources of the machine of this process."""
    return Machine(
        cores=os.cpu_count() or 1,
        memory_mb=int(psutil.virtual_memory().total // 1_000_000),
        gpus=len(find_gpus()),  # as the local pilot counts them
    )


def local_mistakes(resources: Resources, machine: Machine) -> list[Mistake]:
    """Returns why one job does not fit `machine`, the only one of the local site; paths start at a resource."""
    mistakes = []
    if resources.nodes > 1:
        hint = "use nodes: 1, or the profile of a site with nodes"
        mistakes.append(Mistake(("nodes",), f"the local site is one machine, not {resources.nodes} nodes", hint))
    if resources.cores > machine.cores:
        message = f"this machine has {machine.cores} cores, not {resources.cores}"
        mistakes.append(Mistake(("cores",), message, f"use {machine.cores} or fewer"))
    if resources.memory_mb > machine.memory_mb:
        message = f"this machine has {machine.memory_mb} MB of memory, not {resources.memory_mb}"
        mistakes.append(Mistake(("memory_mb",), message, f"use {machine.memory_mb} or less; the unit is MB"))
    if resources.gpus_per_node > machine.gpus:
        have = f"{machine.gpus} GPUs" if machine.gpus else "no GPU"
        hint = f"use {machine.gpus}, or the profile of a site with GPUs"
        mistakes.append(Mistake(("gpus_per_node",), f"this machine has {have}, not {resources.gpus_per_node}", hint))
    return mistakes


def check_optimizer(
    choice: OptimizerChoice, name_path: FieldPath, objectives: int, *, warm: bool, elsewhere: Mapping[str, str]
) -> tuple[list[Mistake], list[Mistake]]:
    """Returns mistakes in the `optimizer` section, and notes on settings that are perhaps not intended.

    Args:
        choice: the section.
        name_path: path of the optimizer's name.
        objectives: number of objectives; 0 if their section is wrong.
        warm: whether the search starts from earlier searches.
        elsewhere: the right place of other keys, as for `mistakes_of`.
    """
    # Imported here, because the optimizers' libraries take a second to load.
    from hpo_pilot.optimizers import optimizer_class, optimizer_names, several_takers  # noqa: PLC0415

    names = optimizer_names()
    if choice.name not in names:
        meant = closest(choice.name, names)
        hint = f"did you mean {meant}?" if meant else ""
        return [Mistake(name_path, f"must be {listing(names, 'or')}, not {show(choice.name)}", hint)], []
    optimizer = optimizer_class(choice.name)
    notes = []
    if warm and not optimizer.learns_from_earlier:
        able = [name for name in names if optimizer_class(name).learns_from_earlier]
        message = f"the optimizer {choice.name} learns nothing from earlier searches"
        notes.append(Mistake(("warm_start",), message, f"use {listing(able, 'or')}"))
    try:
        settings = optimizer.check_settings(choice.settings)
    except ValidationError as error:
        wrong = mistakes_of(error, choice.settings, optimizer.Settings, elsewhere)
        return [mistake.under("optimizer") for mistake in wrong], notes
    single = optimizer.of_one_objective(settings)
    if objectives <= 1 or not single:
        return [], notes
    message = f"{single if optimizer.several_objectives else choice.name} takes one objective, not {objectives}"
    return [Mistake(("objective",), message, f"use the optimizer {listing(several_takers(), 'or')}")], notes


def infeasible_mistakes(space: SearchSpace) -> list[Mistake]:
    """Returns why no point of the space is feasible; an empty list if the optimizers' method finds one.

    It finds a feasible share of 0.001% in a second or less. The search for the responsible constraint tries fewer
    points, one by one.
    """
    if not space.constraints:
        return []
    from hpo_pilot.optimizers.feasible_region import feasible_region  # noqa: PLC0415 - numpy takes its time to load

    return [] if feasible_region(space).share > 0.0 else feasibility_mistakes(space)
