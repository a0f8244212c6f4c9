"""`hpo-pilot plan`: what a search would take at a site; nothing is submitted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hpo_pilot.cli.options import MOST_NODES, JsonOption, client_of, option
from hpo_pilot.cli.plan_text import plan_rows
from hpo_pilot.cli.show import console, dump

if TYPE_CHECKING:
    from hpo_pilot.jobs.site_profile import SiteProfile
    from hpo_pilot.planning.advice import Advice
    from hpo_pilot.planning.plan import Plan
    from hpo_pilot.planning.scaling_points import ScalingPoint
    from hpo_pilot.planning.workload import Workload
    from hpo_pilot.search import Search


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(plan)


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The search file.", show_default=False)],
    site: Annotated[str, option("--site", metavar="S", help="The site profile (hpo-pilot sites).")],
    nodes: Annotated[
        int | None, option("--nodes", min=1, max=MOST_NODES, help="Nodes of one allocation. Default: they are chosen.")
    ] = None,
    walltime: Annotated[
        str | None, option("--walltime", metavar="H:MM", help="Of one allocation. Default: as long as it helps.")
    ] = None,
    queue: Annotated[str | None, option("--queue", help="The batch queue. Default: the profile's.")] = None,
    account: Annotated[str | None, option("--account", help="The project to charge, for the script.")] = None,
    minutes_per_trial: Annotated[
        float | None,
        option("--minutes-per-trial", min=0.001, help="How long one fold runs. Default: as long as it may."),
    ] = None,
    scaling: Annotated[
        list[str] | None,
        option(
            "--scaling",
            metavar="CSV|ID",
            help="Measured points of a scaling run: a file, or a finished search of one number of nodes. Repeatable.",
        ),
    ] = None,
    workdir: Annotated[Path | None, option("--workdir", help="Where the searches of --scaling are.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a search would take at a site: layout, nodes, time, cost, and the job script. Submits nothing."""
    from hpo_pilot.config.search_file import load_search_for
    from hpo_pilot.config.site_file import find_site
    from hpo_pilot.config.site_power import job_watts
    from hpo_pilot.planning.plan import make_plan
    from hpo_pilot.planning.workload import Workload
    from hpo_pilot.search.cost import Price

    profile = find_site(site)
    search = load_search_for(file, site)
    work = Workload.of(search, minutes_per_trial)
    price = Price(search.resources.gpus, search.resources.all_cores, job_watts(profile, search.resources))
    if profile.batch.system == "none":
        made = _without_batch_system(work, profile, nodes, walltime, queue)
        script = None
    else:
        minutes = _minutes(walltime)
        made = make_plan(work, profile, queue=queue, nodes=nodes, minutes=minutes)
        script = _script(profile, made, account)
    advice = None
    if scaling:
        advice = _advice(_points(scaling, workdir), search, made, profile)
    document = _document(search, profile, made, price, minutes_per_trial, advice, script)
    if as_json:
        dump(document)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for heading, text in plan_rows(document):
        table.add_row(heading, text)
    console().print(table)
    if script is not None:
        typer.echo("\n# The job script; words in capitals are to be filled in, `hpo-pilot pilots submit` does it:")
        typer.echo(script, nl=False)


def _minutes(walltime: str | None) -> int | None:
    from hpo_pilot.batch.walltime import minutes_of

    return None if walltime is None else minutes_of(walltime)


def _without_batch_system(
    work: Any, profile: SiteProfile, nodes: int | None, walltime: str | None, queue: str | None
) -> Plan:
    from hpo_pilot.config.machine import this_machine
    from hpo_pilot.errors import InputError
    from hpo_pilot.planning.packing import node_shape, nodes_for
    from hpo_pilot.planning.plan import make_open_plan
    from hpo_pilot.scheduling import NodeShape

    given = [("--nodes", nodes), ("--walltime", walltime), ("--queue", queue)]
    if wrong := [name for name, value in given if value is not None]:
        raise InputError(f"{' and '.join(wrong)}: site {profile.name} has no batch system to ask; leave it out")
    if profile.name == "local":
        here = this_machine()
        return make_open_plan(work, NodeShape(here.cores, here.memory_mb, here.gpus), 1)
    shape = node_shape(profile, work.needs)
    return make_open_plan(work, shape, nodes_for(shape, work.needs, min(work.parallel, work.groups) * work.folds))


def _script(profile: SiteProfile, made: Plan, account: str | None) -> str:
    from hpo_pilot.batch import make_batch_system
    from hpo_pilot.batch.allocation_spec import AllocationSpec

    words = ("--server", "SERVER", "--queue", "PANDA_QUEUE", "--token-file", "TOKEN_FILE", "--site", "SITE_FILE")
    spec = AllocationSpec(
        profile,
        made.allocation.nodes,
        made.allocation.minutes,
        "hpo-plan",
        Path("/FOLDER"),
        ("hpo-pilot", "pilot", *words, "--allocation"),
        made.queue,
        account or profile.batch.account or ("ACCOUNT" if profile.batch.account_required else None),
    )
    return make_batch_system(profile.batch.system).script(spec)


def _points(sources: list[str], workdir: Path | None) -> list[ScalingPoint]:
    from hpo_pilot.errors import InputError
    from hpo_pilot.planning.scaling_points import check_parts, read_points
    from hpo_pilot.planning.scaling_searches import points_of

    points: list[ScalingPoint] = []
    for source in sources:
        path = Path(source)
        if path.suffix == ".csv" or path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise InputError(f"--scaling {source}: cannot be read: {error}") from error
            points += read_points(text, source)
            continue
        with client_of(workdir=workdir) as client:
            definition = client.status(source)["definition"]
            points += points_of(source, definition["resources"], client.trials(source, logs=False))
    check_parts(points, "--scaling")
    return points


def _advice(points: list[ScalingPoint], search: Search, made: Plan, profile: SiteProfile) -> Advice:
    from hpo_pilot.planning.advice import Asked, advise

    needs, work = search.resources, made.work
    longest = profile.batch.longest(needs.nodes)
    asked = Asked(
        nodes=needs.nodes,
        minutes=work.seconds / 60 / needs.trials_per_job,
        ranks_per_node=work.needs.ranks_per_node,
        gpus_per_node=needs.gpus_per_node,
        folds=search.folds.k,
        trials=work.trials,
        parallel=work.searches * search.budget.parallel,
        all_nodes=made.allocation.nodes,
        gpu_hours=_of_all(search.budget.gpu_hours, work),
        longest=None if longest is None else 60 * longest,
    )
    return advise(points, asked)


def _of_all(limit: float | None, work: Workload) -> float | None:
    """The limits of all searches together: each of a family has its own."""
    return None if limit is None else work.searches * limit


def _document(
    search: Search,
    profile: SiteProfile,
    made: Plan,
    price: Any,
    minutes_per_trial: float | None,
    advice: Advice | None,
    script: str | None,
) -> dict[str, Any]:
    from dataclasses import asdict

    from hpo_pilot.client.cost_documents import cost_document
    from hpo_pilot.search.cost import Spent, seconds_allowed

    layout, allocation = made.layout, made.allocation
    work, allowed = made.work, seconds_allowed(search.budget, search.resources)
    each = work.trials // work.searches
    within = each if allowed == math.inf else min(each, int(allowed // (work.job_seconds / work.trials)))
    return {
        "search": search.name,
        "searches": made.work.searches,
        "site": profile.name,
        "batch_system": profile.batch.system,
        "queue": made.queue,
        "layout": {
            "points": layout.points,
            "folds": layout.folds,
            "workers": layout.workers,
            "gpus_per_worker": layout.gpus,
            "processes": layout.processes,
            "gpus": layout.all_gpus,
        },
        "trials": made.work.trials,
        "jobs": made.work.jobs,
        "minutes_per_job": made.work.seconds / 60,
        "minutes_given": minutes_per_trial is not None,
        "allocation": {"nodes": allocation.nodes, "minutes": allocation.minutes, "jobs_at_once": allocation.at_once},
        "submissions": len(made.runs) if allocation.minutes else 0,
        "limits": made.limits.model_dump(),
        "generations": -(-made.work.jobs // max(1, allocation.at_once)),
        "hours": made.seconds / 3600,
        "node_hours": made.node_hours,
        "node_hours_used": made.share_used,
        "cost": cost_document(price.cost(Spent(made.work.job_seconds))),
        "budget": {
            "gpu_hours": _of_all(search.budget.gpu_hours, made.work),
            "core_hours": _of_all(search.budget.core_hours, made.work),
            "hours": search.budget.hours,
            "trials_within": work.searches * within,
        },
        "advice": None if advice is None else asdict(advice),
        "script": script,
    }
