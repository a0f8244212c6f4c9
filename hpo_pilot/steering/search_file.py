"""Reads search files: returns the search, or all mistakes with line and column.

`hpo_pilot.search.search_file` checks everything that needs only the file. The checks here need the site, this machine
or the optimizer.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil
from pydantic import ValidationError

from hpo_pilot.errors import InputError, Problem, SearchFileError
from hpo_pilot.files import first_program, folder_mistake, payload_notes, python_here, python_word
from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.hpc.site_files import SiteFileError, known_site, load_site, site_files, site_here, unknown_site_hint
from hpo_pilot.hpc.site_profile import SiteProfile
from hpo_pilot.jobs.resources import NodeShape
from hpo_pilot.pilot.machine import find_gpus
from hpo_pilot.plugins import PluginError
from hpo_pilot.report.documents import ExaminationDocument
from hpo_pilot.search import Mistake, OptimizerChoice, Payload, Resources, Search, SearchSpace, SiteChoice
from hpo_pilot.search.mistakes import FieldPath, closest, listing, mistakes_of
from hpo_pilot.search.payload import input_mistakes, missing_paths
from hpo_pilot.search.search import BUILT_IN_SITES
from hpo_pilot.search.search_file import ELSEWHERE, SearchFile
from hpo_pilot.search.space import feasibility_mistakes, is_seen_feasible
from hpo_pilot.search.values import show
from hpo_pilot.search.yaml_document import Document, decode_document, parse_document, read_document
from hpo_pilot.transformation.container import image_architecture, runs_on


@dataclass(frozen=True)
class Examination:
    """Result of the check of a search file.

    Attributes:
        search: the search; None if there are problems.
        problems: all mistakes, in the order of the file.
        notes: settings that are allowed but perhaps not intended, in the order of the file.
        named_files: files that the search file names; None if its payload section is wrong.
        earlier: earlier searches (`warm_start`), each with its place as a problem without a message.
    """

    search: Search | None
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]
    named_files: NamedFiles | None = None
    earlier: tuple[tuple[str, Problem], ...] = ()


@dataclass(frozen=True)
class NamedFiles:
    """Files that a search file names, for a check on the machine that has them.

    Attributes:
        files: `payload.files` as written; None: none.
        command: `payload.command`.
        files_place: place of `files`, as a problem without a message.
        command_place: place of `command` or `function`, as a problem without a message.
    """

    files: str | None
    command: str
    files_place: Problem
    command_place: Problem


def examine(path: str | Path) -> Examination:
    """Reads and checks the search file at `path`; does not raise for mistakes in it."""
    path = Path(path)
    return _examine(read_document(path), path.parent)


def examine_content(content: bytes, file: str) -> Examination:
    """Checks the bytes of a search file of another machine; does not check the files that it names.

    Args:
        content: content of the file.
        file: name of the file in messages.
    """
    return _examine(decode_document(content, file), None)


def load_search(path: str | Path) -> Search:
    """Returns the search of the file at `path`.

    Raises:
        SearchFileError: the file cannot be read or is wrong; `problems` has all mistakes with their places.
    """
    return _search(examine(path))


def examine_for(path: str | Path, site: str) -> Examination:
    """Reads and checks the search file at `path` with another site profile; does not raise for mistakes in it."""
    document = read_document(Path(path))
    whole = document.value
    section = whole.get("site") if isinstance(whole, dict) else None
    if isinstance(whole, dict) and (section is None or isinstance(section, dict)):
        whole["site"] = {**(section or {}), "profile": site}
    return _examine(document, Path(path).parent)


def parse_search(text: str, source: str) -> Search:
    """Returns the search of a YAML text. Paths in it are not checked, because they are relative to a file.

    Args:
        text: YAML.
        source: name of the text in messages.

    Raises:
        SearchFileError: the text is wrong; `problems` has all mistakes with their places.
    """
    return _search(_examine(parse_document(text, source), None))


def payload_folder(search: Search, search_file: str | Path) -> Path | None:
    """Returns the payload's folder as an absolute path; None if the search has none.

    Args:
        search: the search, with `payload.files` as written in the file.
        search_file: the search file; `payload.files` is relative to its folder.
    """
    if search.payload.files is None:
        return None
    return (Path(search_file).parent / Path(search.payload.files).expanduser()).resolve()


def _examine(document: Document, folder: Path | None) -> Examination:
    """Checks a document; paths in it are relative to `folder`, None: they are not checked."""
    file = SearchFile(document, _default_resources)
    space = file.section(SearchSpace)
    if space is not None:
        choice = file.section(OptimizerChoice)
        file.tell(*infeasible_mistakes(space, grid=choice is not None and choice.name == "grid"))
    _check_optimizer(file)
    _check_site(file)
    payload = file.section(Payload)
    named = None
    if payload is not None:
        _check_files(file, payload, folder)
        keys = ("files", "function" if payload.function else "command")
        named = NamedFiles(payload.files, payload.command, *(document.problem(("payload", key), "") for key in keys))
    search = file.search()
    earlier = tuple(
        (source, document.problem(("warm_start", index), ""))
        for index, source in enumerate(search.warm_start if search is not None else ())
    )
    return Examination(search, in_order(file.problems), in_order(file.notes), named, earlier)


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Returns problems in the order of the file."""
    return tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))


def _search(examination: Examination) -> Search:
    if examination.search is None:
        raise SearchFileError(examination.problems)
    return examination.search


def _check_files(file: SearchFile, payload: Payload, folder: Path | None) -> None:
    """Checks the files and programs that the payload names."""
    site = file.section(SiteChoice)
    is_local = site is not None and site.profile == "local"
    mistake = None
    if folder is not None and payload.files is not None:
        mistake = folder_mistake(payload.files, folder)
        if mistake is not None:
            file.tell(Mistake(("payload", "files"), *mistake))
        else:
            key = "function" if payload.function else "command"
            file.note(
                *(Mistake(("payload", key), *part) for part in payload_notes(payload.files, payload.command, folder))
            )
    places: dict[FieldPath, tuple[str, ...]] = {("payload", "inputs"): payload.inputs}
    for name, segment in (file.sections.get("segments") or {}).items():
        if segment.inputs is not None:
            places["segments", name, "inputs"] = segment.inputs
    for place, inputs in places.items():
        file.tell(*input_mistakes(inputs, payload, None if mistake else folder), under=place)
        for index, message in missing_paths(inputs, folder) if folder is not None else ():
            if is_local:
                file.tell(Mistake((*place, index), message, "a relative path starts at this file"))
            else:
                hint = "it must exist where the jobs run"
                file.note(Mistake((*place, index), f"{message} on this machine", hint))
    image = payload.container
    if folder is not None and image and Path(image).is_absolute() and not Path(image).exists():
        gone = Mistake(("payload", "container"), f"there is no image {image} on this machine")
        if is_local:
            file.tell(gone)
        else:
            file.note(replace(gone, hint="it must exist where the jobs run"))
    if folder is not None and image and site is not None and (known := known_site(site.profile)) is not None:
        wanted, found = known.node.architecture, image_architecture(str(Path(folder, payload.files or "", image)))
        if wanted and found and not runs_on(found, wanted):
            message = f"the image is of {found}, and the nodes of {known.name} are of {wanted}"
            file.tell(Mistake(("payload", "container"), message, f"name an image that was built for {wanted}"))
    if folder is not None and is_local and not image and not payload.is_none:
        _check_programs(file, payload)
    if folder is not None and site is not None and (profile := site_here(site.profile)) is not None:
        _check_launcher(file, payload, profile)


def _check_programs(file: SearchFile, payload: Payload) -> None:
    """Reports a missing Python, or another missing program, for jobs on this machine."""
    word = python_word(payload.command, payload.python)
    program = first_program(payload.command)
    if program is not None and program != word and shutil.which(program) is None:
        hint = "is the name right? a program in payload.files is ./NAME"
        file.note(Mistake(("payload", "command"), f"there is no {program} in PATH on this machine", hint))
    if word is None or shutil.which(word) or ("/" in word and not word.startswith("/")):  # a path inside the payload
        return
    if word == payload.python and word.startswith("/"):
        hint = "give the path of an existing Python, or leave payload.python out to use the Python in PATH"
        file.tell(Mistake(("payload", "python"), f"there is no program {word} on this machine", hint))
        return
    place = "python" if word == payload.python else "command"
    hint = "activate its environment before you submit, or give the path of the Python in payload.python"
    file.note(Mistake(("payload", place), f"there is no {word} in PATH on this machine", hint))


def _check_launcher(file: SearchFile, payload: Payload, site: SiteProfile) -> None:
    """Notes a missing launcher of ranks on this machine; their Python may bring it."""
    resources = file.section(Resources)
    if resources is None or not resources.ranks:
        return
    python, path = shutil.which(payload.python or ""), os.environ.get("PATH", os.defpath)
    path = f"{Path(python).parent}{os.pathsep}{path}" if python else path
    lacking, _, remedy = make_launcher(site.launcher.model_dump()).lacks(path).partition(": ")
    if lacking:
        file.note(Mistake(("resources",), f"{lacking} on this machine", remedy))


def _check_site(file: SearchFile) -> None:
    """Checks the choice of the site, and the resources of a job against it."""
    site, resources = file.section(SiteChoice), file.section(Resources)
    if site is None:
        return
    path, name, files = ("site", "profile"), site.profile, site_files()
    if name in files:
        try:
            profile = load_site(files[name])
        except SiteFileError as error:
            more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
            hint = f"`hpo-pilot sites check {files[name]}` lists all its mistakes"
            file.tell(Mistake(path, f"its file is wrong: {error.problems[0]}{more}", hint))
        else:
            if resources is not None:
                payload = file.section(Payload)
                checkpoints = payload is not None and bool(payload.checkpoint)
                file.tell(*site_mistakes(resources, profile, checkpoints=checkpoints), under=("resources",))
                notes = _allocation_notes(resources, profile, checkpoints=checkpoints)
                file.note(*(mistake.under("resources") for mistake in notes))
    elif name not in BUILT_IN_SITES:
        file.tell(Mistake(path, f"there is no site profile {name!r}", unknown_site_hint(name, files)))
    if resources is not None and name == "local":
        file.tell(*local_mistakes(resources, this_machine()), under=("resources",))


#: The share of a node's memory that jobs can have, for the default: the system needs the rest.
_FOR_JOBS = 0.8


def _default_resources(resources: Resources, site: SiteChoice) -> dict[str, int]:
    """Returns cores and memory of a node for a file that does not give them.

    It is one core for each rank, and the default memory. A job with GPUs gets the same share of the node's cores and
    memory as of its GPUs, if that is more.
    """
    profile = known_site(site.profile)
    node = None if profile is None else profile.node
    if node is None or not node.gpu_count:
        return {"cores": max(1, resources.ranks)}
    gpus = min(resources.gpus_per_node, node.gpu_count)
    cores, memory = (int((all_of_it or 0) * gpus // node.gpu_count) for all_of_it in (node.cores, node.memory_mb))
    return {"cores": max(1, resources.ranks, cores), "memory_mb": max(resources.memory_mb, int(_FOR_JOBS * memory))}


def site_mistakes(resources: Resources, profile: SiteProfile, *, checkpoints: bool) -> Iterator[Mistake]:
    """Yields why no allocation of the site fits one job; paths start at a resource.

    Args:
        resources: resources of the job.
        profile: site profile; only values given there are checked.
        checkpoints: whether the payload declares checkpoints; then a job may be longer than an allocation.
    """
    node = profile.node
    # A profile without cores says nothing about the node.
    gpus = node.gpu_count if node.gpus is not None or node.cores is not None else None
    yield from _too_large(resources, f"a node of {profile.name}", node.cores, node.memory_mb, gpus, ", on more nodes")
    # On the grid the sites' own pilots know how to start ranks.
    if profile.launcher.name == "plain" and resources.nodes * resources.ranks >= 2 and profile.name != "grid":
        message = f"{profile.name} has no launcher for {resources.nodes} x {resources.ranks} ranks"
        hint = "name one in the site's file under launcher, or use nodes: 1 and no ranks_per_node"
        yield Mistake(("nodes",) if resources.nodes > 1 else ("ranks_per_node",), message, hint)
    launcher = make_launcher(profile.launcher.model_dump())
    takes_step = profile.batch.system != "none" and launcher.needs_step(1, resources.ranks_per_node or 0)
    if resources.gpu_share > 1 and takes_step and launcher.chooses_gpus:
        message = f"{profile.launcher.name} of {profile.name} gives each job GPUs of its own"
        yield Mistake(("gpus_per_node",), message, "use a whole number, or a pilot on one machine (hpo-pilot pilot)")
    sizes = [size for size in (profile.batch.largest(), node.count) if size is not None]
    # An allocation runs many jobs; a larger one may be allowed to last longer.
    longest = profile.batch.longest(resources.nodes)
    if sizes and resources.nodes > min(sizes):
        message = f"a job at {profile.name} has at most {min(sizes)} nodes, not {resources.nodes}"
        yield Mistake(("nodes",), message, f"use {min(sizes)} or fewer")
    elif not checkpoints and longest is not None and resources.minutes > 60 * longest:
        lasts = f"no allocation at {profile.name} lasts longer than {60 * longest:g} minutes"
        hint = f"use {60 * longest:g} or less, or declare payload.checkpoint: then a job goes on in the next allocation"
        yield Mistake(("minutes",), f"{lasts}, not {resources.minutes:g}", hint)


def _too_large(
    resources: Resources, where: str, cores: int | None, memory_mb: int | None, gpus: int | None, remedy: str = ""
) -> Iterator[Mistake]:
    """Yields the resources of one node that exceed those of `where`; None: not known."""
    if cores is not None and resources.cores > cores:
        message = f"{where} has {cores} cores, not {resources.cores}"
        yield Mistake(("cores",), message, f"use {cores} or fewer{remedy}")
    if memory_mb is not None and resources.memory_mb > memory_mb:
        message = f"{where} has {memory_mb} MB of memory, not {resources.memory_mb}"
        yield Mistake(("memory_mb",), message, f"use {memory_mb} or less; the unit is MB")
    wanted = resources.gpus_per_node
    if gpus == 0 and wanted:
        message = f"{where} has no GPU, and a job asks for {wanted}"
        yield Mistake(("gpus_per_node",), message, "use 0, or a site with GPUs")
    elif gpus is not None and wanted > gpus:
        yield Mistake(("gpus_per_node",), f"{where} has {gpus} GPUs, not {wanted}", f"use {gpus} or fewer{remedy}")


def _allocation_notes(resources: Resources, profile: SiteProfile, *, checkpoints: bool) -> Iterator[Mistake]:
    if profile.node.gpu_count and not resources.gpus_per_node:
        gpus = f"a node of {profile.name} has {profile.node.gpu_count} GPUs"
        hint = "say how many a trial uses, or use a site profile of nodes without GPUs (`hpo-pilot sites`)"
        yield Mistake(("gpus_per_node",), f"is 0, and {gpus}, which stay idle and are charged", hint)
    needed = profile.batch.smallest(resources.nodes, resources.minutes / 60)
    if not checkpoints and needed is not None and needed > resources.nodes:
        message = f"at {profile.name} only allocations of {needed} nodes or more last {resources.minutes:g} minutes"
        yield Mistake(("minutes",), message, f"submit pilots for {needed} nodes or more, or use fewer minutes")


def this_machine() -> NodeShape:
    """Returns the resources of the machine of this process; GPUs as the local pilot counts them."""
    memory = int(psutil.virtual_memory().total // 1_000_000)
    return NodeShape(os.cpu_count() or 1, memory, len(find_gpus()))


def local_mistakes(resources: Resources, machine: NodeShape) -> Iterator[Mistake]:
    """Yields why one job does not fit `machine`, the only one of the local site; paths start at a resource."""
    if resources.nodes > 1:
        hint = "use nodes: 1, or the profile of a site with nodes"
        yield Mistake(("nodes",), f"the local site is one machine, not {resources.nodes} nodes", hint)
    yield from _too_large(resources, "this machine", machine.cores, machine.memory_mb, machine.gpus)


def _check_optimizer(file: SearchFile) -> None:
    """Checks the optimizer's name and settings, and whether it suits the search."""
    choice = file.section(OptimizerChoice)
    if choice is None:
        return
    # Imported here, because the optimizers' libraries take a second to load.
    from hpo_pilot.optimizers import optimizer_class, optimizer_names, several_takers  # noqa: PLC0415

    names = optimizer_names()
    try:
        optimizer = optimizer_class(choice.name)
    except InputError as error:
        from hpo_pilot.optimizers.optuna_sampler import SAMPLERS  # noqa: PLC0415 - as above

        path: FieldPath = ("optimizer", "name")
        message, hint = str(error), ""
        if not isinstance(error, PluginError):
            message = f"must be {listing(names, 'or')}, not {show(choice.name)}"
            hint = f"did you mean {meant}?" if (meant := closest(choice.name, names)) else ""
        if choice.name in SAMPLERS:
            sampler = f"optimizer: {{name: optuna, sampler: {choice.name}}}"
            hint = f"it is a sampler of optuna: {sampler}, after pip install 'hpo-pilot[optuna]'"
        file.tell(Mistake(path if path in file.document.values else path[:1], message, hint))
        return
    for key, can, fault in (
        ("warm_start", "learns_from_earlier", "learns nothing from earlier searches"),
        ("prior", "uses_prior", "does not use beliefs"),
    ):
        if file.sections.get(key) and not getattr(optimizer, can):
            able = [name for name in names if getattr(optimizer_class(name), can)]
            file.note(Mistake((key,), f"the optimizer {choice.name} {fault}", f"use {listing(able, 'or')}"))
    try:
        settings = optimizer.check_settings(choice.settings)
    except ValidationError as error:
        file.tell(*mistakes_of(error, choice.settings, optimizer.Settings, ELSEWHERE), under=("optimizer",))
        return
    single, objectives = optimizer.of_one_objective(settings), len(file.sections.get("objective", ()))
    if objectives > 1 and single:
        message = f"{single if optimizer.several_objectives else choice.name} takes one objective, not {objectives}"
        file.tell(Mistake(("objective",), message, f"use the optimizer {listing(several_takers(), 'or')}"))


def infeasible_mistakes(space: SearchSpace, *, grid: bool = False) -> list[Mistake]:
    """Returns why no point of the space is feasible; an empty list if the optimizers' method finds one.

    It finds a feasible share of 0.001% in a second or less. The search for the responsible constraint tries fewer
    points, one by one.

    Args:
        space: the space.
        grid: as for `feasibility_mistakes`.
    """
    if not space.constraints or is_seen_feasible(space):
        return []
    from hpo_pilot.optimizers.feasible_region import feasible_region  # noqa: PLC0415 - numpy takes its time to load

    return [] if feasible_region(space).share > 0.0 else feasibility_mistakes(space, grid=grid)


def examination_document(found: Examination) -> ExaminationDocument:
    """Returns the document of the check of a search file."""
    return {
        "valid": found.search is not None,
        "problems": [asdict(problem) for problem in found.problems],  # type: ignore[misc]  # the same fields
        "notes": [asdict(note) for note in found.notes],  # type: ignore[misc]
        "search": None if found.search is None else found.search.shown(),
        "python": None if found.search is None else python_here(found.search),
    }
