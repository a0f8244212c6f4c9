"""The command `plan`: the time, nodes and budget that a search takes at a site."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpo_pilot.cli.options import MOST_NODES, JsonOption, client_of, option
from hpo_pilot.cli.output import dump, print_rows
from hpo_pilot.cli.pilots import site_named
from hpo_pilot.errors import InputError, SearchFileError
from hpo_pilot.report.formatting import cost_text, count
from hpo_pilot.report.trial_documents import cost_document

if TYPE_CHECKING:
    from hpo_pilot.hpc.plan import Plan, Workload
    from hpo_pilot.hpc.scaling import Advice, ScalingPoint
    from hpo_pilot.hpc.site_profile import SiteProfile
    from hpo_pilot.search import Resources, Search
    from hpo_pilot.search.trials import Cost


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The search file.", show_default=False)],
    site: Annotated[str, option("--site", metavar="S", help="The site profile (hpo-pilot sites), or its file.")],
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
    from hpo_pilot.hpc.batch_system import walltime_minutes
    from hpo_pilot.hpc.plan import Workload, make_plan
    from hpo_pilot.hpc.site_files import find_site
    from hpo_pilot.steering.search_file import examine_for

    site = site_named(site)
    profile = find_site(site)
    found = examine_for(file, site)
    search = found.search
    if search is None:
        raise SearchFileError(found.problems)
    work = Workload.of(search, minutes_per_trial)
    if profile.batch.system == "none":
        made = _without_batch_system(work, profile, nodes, walltime, queue)
        script = None
    else:
        minutes = None if walltime is None else walltime_minutes(walltime)
        made = make_plan(work, profile, queue=queue, nodes=nodes, minutes=minutes)
        script = _script(profile, made, account, search.resources)
    advice = None
    if scaling:
        advice = _advice(_points(scaling, workdir), search, made, profile)
    document = _document(search, profile, made, minutes_per_trial, advice)
    document |= {
        "notes": [*map(str, found.notes), *_site_notes(profile)],
        "launch": _launch_line(search, profile),
        "script": script,
    }
    if as_json:
        dump(document)
        return
    for note in document["notes"]:
        typer.echo(f"note: {note}")
    print_rows(plan_rows(document))
    if document["launch"] is not None:
        is_torchrun = document["launch"].startswith("torchrun ")
        start = "Agents start this on the trial's nodes, without job steps" if is_torchrun else "This starts one trial"
        typer.echo(f"\n# {start}; its pilot adds the nodes, the container and more variables:")
        typer.echo(document["launch"])
    elif script is not None:
        typer.echo("\n# An agent on each node starts its trials there, without job steps.")
    if script is not None:
        submit = "`hpo-pilot pilots submit`"
        if not profile.node.cores:
            submit = "`hpo-pilot pilots submit --node-cores N --node-gpus N`"
        typer.echo(f"\n# The job script; words in capitals are to be filled in, {submit} does it:")
        typer.echo(script, nl=False)


def _site_notes(profile: SiteProfile) -> list[str]:
    if profile.batch.system == "none" or profile.node.cores or profile.node.gpus:
        return []
    return [
        f"the profile of {profile.name} does not describe its nodes, so a job is assumed to fill a node: fill in "
        "`node` in a copy of it, and give that file to --site"
    ]


def _without_batch_system(
    work: Any, profile: SiteProfile, nodes: int | None, walltime: str | None, queue: str | None
) -> Plan:
    from hpo_pilot.hpc.plan import make_open_plan, node_shape, nodes_for
    from hpo_pilot.steering.search_file import this_machine

    given = [("--nodes", nodes), ("--walltime", walltime), ("--queue", queue)]
    if wrong := [name for name, value in given if value is not None]:
        raise InputError(f"{' and '.join(wrong)}: site {profile.name} has no batch system to ask; leave it out")
    if profile.name == "local":
        return make_open_plan(work, this_machine(), 1)
    shape = node_shape(profile, work.needs)
    return make_open_plan(work, shape, nodes_for(shape, work.needs, min(work.parallel, work.groups) * work.folds))


def _script(profile: SiteProfile, made: Plan, account: str | None, needs: Resources) -> str:
    from hpo_pilot.hpc.allocations import check_shape
    from hpo_pilot.hpc.batch_system import AllocationSpec
    from hpo_pilot.hpc.batch_systems import make_batch_system

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
        # A job is assumed to fill a node that the profile does not describe.
        node_cores=profile.node.cores or needs.cores,
        node_gpus=profile.node.gpu_count or needs.whole_gpus,
    )
    check_shape(spec)
    return make_batch_system(profile.batch.system).script(spec)


def _launch_line(search: Search, profile: SiteProfile) -> str | None:
    """Returns the command that starts one trial; None: pilot or agent starts the trial's command without a launcher."""
    from hpo_pilot.hpc.launcher import Placement
    from hpo_pilot.hpc.launchers import make_launcher

    needs, launcher = search.resources, make_launcher(profile.launcher.model_dump(), profile.node.threads_per_core)
    if profile.name == "grid" or (profile.batch.system == "none" and not needs.ranks):
        return None
    nodes = tuple(f"NODE{number}" for number in range(1, needs.nodes + 1))
    if profile.batch.system != "none" and not launcher.needs_step(needs.nodes, needs.ranks):
        if needs.nodes > 1:
            launcher = launcher.by_agents() or launcher
        elif launcher.on_node is None or not needs.ranks:
            return None
        else:
            launcher, nodes = launcher.on_node, ("localhost",)
    ranks = max(1, needs.ranks)
    placement = Placement(
        nodes=nodes,
        ranks_per_node=ranks,
        gpus_per_rank=needs.whole_gpus // ranks,
        cores_per_rank=needs.cores // ranks,
        gpu_kind=profile.node.gpu_kind if profile.node.gpus or not needs.gpus_per_node else "nvidia",
        environment=profile.environment,
        memory_mb=needs.memory_mb,
        port=1,
    )
    return f"{shlex.join(launcher.command([], placement))} {search.payload.command}".strip()


def _points(sources: list[str], workdir: Path | None) -> list[ScalingPoint]:
    from hpo_pilot.hpc.scaling import check_parts, read_points, search_points

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
            points += search_points(source, definition["resources"], client.trials(source, logs=False))
    check_parts(points, "--scaling")
    return points


def _advice(points: list[ScalingPoint], search: Search, made: Plan, profile: SiteProfile) -> Advice:
    from hpo_pilot.hpc.scaling import AdviceRequest, advise

    needs, work = search.resources, made.work
    longest = profile.batch.longest(needs.nodes)
    asked = AdviceRequest(
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
    """Returns the sum of the limits of all searches: each search of a family has its own limit."""
    return None if limit is None else work.searches * limit


def _document(
    search: Search, profile: SiteProfile, made: Plan, minutes_per_trial: float | None, advice: Advice | None
) -> dict[str, Any]:
    from hpo_pilot.search.trials import seconds_allowed

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
        "limits": {name: getattr(made.limits, name, None) for name in ("queued", "eligible", "running")},
        "generations": -(-made.work.jobs // max(1, allocation.at_once)),
        "hours": made.seconds / 3600,
        "node_hours": made.node_hours,
        "cores_used": made.cores_used,
        "gpus_used": made.gpus_used,
        "allocations_per_job": made.allocations_per_job,
        "cost": cost_document(_cost(search, profile, made)),
        "budget": {
            "gpu_hours": _of_all(search.budget.gpu_hours, made.work),
            "core_hours": _of_all(search.budget.core_hours, made.work),
            "hours": search.budget.hours,
            "trials_within": work.searches * within,
        },
        "advice": None if advice is None else asdict(advice),
    }


def _cost(search: Search, profile: SiteProfile, made: Plan) -> Cost:
    """Returns the cost of all jobs; the energy is that of whole nodes, which nobody else can use."""
    from hpo_pilot.hpc.site_files import site_price
    from hpo_pilot.search.trials import Spent

    needs, power = search.resources, profile.node.power
    cost = site_price(profile, needs).cost(Spent(made.job_seconds))
    if power is None or profile.batch.system == "none":
        return cost
    busy = needs.nodes * (power.watts(needs.cores, needs.gpus_per_node) - power.idle)
    return replace(cost, energy_kwh=(made.node_hours * power.idle + made.job_seconds / 3600 * busy) / 1000)


_Row = tuple[str, str]


def plan_rows(plan: Mapping[str, Any]) -> Iterator[_Row]:
    """Yields (heading, text) of each row of a plan."""
    layout, allocation = plan["layout"], plan["allocation"]
    family = f", {plan['searches']} segments side by side," if plan["searches"] > 1 else ""
    yield "search", f"{plan['search']}{family} at {plan['site']}"
    yield ("jobs", f"{count(plan['jobs'], 'job')} for {count(plan['trials'], 'trial')}, of {_minutes_text(plan)} each")
    yield "layout", _layout(layout)
    if allocation["minutes"]:
        yield from _allocation_rows(plan)
    elif plan["site"] == "local":
        yield "site", "this machine: no allocation; `hpo-pilot run FILE` is all"
        yield "at once", count(allocation["jobs_at_once"], "job")
    else:
        yield "site", "no batch system of ours: PanDA's brokerage finds queues, and their pilots start the jobs"
        yield "at once", f"{count(allocation['jobs_at_once'], 'job')}, where as many slots are free"
    yield "generations", f"{plan['generations']} after one another"
    yield "time", f"{plan['hours']:.3g} h, without waiting for nodes"
    yield "cost", cost_text(plan["cost"])
    yield from _budget_rows(plan)
    if plan["advice"] is not None:
        yield from _advice_rows(plan["advice"])


def _layout(layout: Mapping[str, Any]) -> str:
    """Returns the formula 1 + N_G x N_F x N_W in numbers; it counts folds if the number of trials is not whole."""
    jobs, of_trials = round(layout["points"] * layout["folds"]), ""
    running = f"N_G {layout['points']:g} x N_F {layout['folds']}"
    if layout["points"] != int(layout["points"]):
        running = f"{jobs} folds"
        of_trials = f"; a trial has {layout['folds']} folds (N_F), and {jobs} of them run at a time"
        if jobs > layout["folds"]:
            whole = count(jobs // layout["folds"], "trial")
            of_trials = f"; a trial has {layout['folds']} (N_F), so {whole} (N_G) and a part of another run at a time"
    return (
        f"1 + {running} x N_W {layout['workers']} = {layout['processes']} processes (the one is the steering "
        f"service{of_trials}); N_GPU {layout['gpus_per_worker']:g}: {layout['gpus']} GPUs"
    )


def _minutes_text(plan: Mapping[str, Any]) -> str:
    how = "" if plan["minutes_given"] else " (the limit; give --minutes-per-trial for a better estimate)"
    return f"{plan['minutes_per_job']:.4g} minutes{how}"


def _allocation_rows(plan: Mapping[str, Any]) -> Iterator[_Row]:
    allocation, limits = plan["allocation"], plan["limits"]
    hours, minutes = divmod(allocation["minutes"], 60)
    where = f" in queue {plan['queue']}" if plan["queue"] else ""
    yield "allocation", f"{count(allocation['nodes'], 'node')} for {hours}:{minutes:02d}{where}"
    yield "at once", count(allocation["jobs_at_once"], "job")
    said = [f"{value} {name}" for name, value in limits.items() if value is not None]
    beside = f"; the queue takes {', '.join(said)} of a user" if said else ""
    yield "submissions", f"{plan['submissions']}, one after another{beside}"
    if plan["allocations_per_job"] > 1:
        yield "each job", f"runs across {plan['allocations_per_job']} allocations, each time from its checkpoint"
    shares = [("cores", plan["cores_used"]), ("GPUs", plan["gpus_used"])]
    used = " and ".join(f"{100 * share:.0f}% of their {name}" for name, share in shares if share is not None)
    yield "node-hours", f"{plan['node_hours']:.4g}" + (f"; jobs use {used}" if used else "")


def _budget_rows(plan: Mapping[str, Any]) -> Iterator[_Row]:
    budget = plan["budget"]
    for name, unit in (("gpu_hours", "GPU-hours"), ("core_hours", "core-hours")):
        if budget[name] is not None and plan["cost"][name] > budget[name]:
            trials = count(budget["trials_within"], "trial")
            yield "budget", f"{budget[name]:g} {unit} are less than that: enough for {trials}"
    if budget["hours"] is not None and plan["hours"] > budget["hours"]:
        yield "budget", f"{budget['hours']:g} hours are less than it takes: the search ends before"


def _advice_rows(advice: Mapping[str, Any]) -> Iterator[_Row]:
    if model := advice["model"]:
        a, b, c, d = model["coefficients"]
        parts = f"compute {a:.4g} s, all-reduce {b:.4g} s + {c:.4g} s a rank, input and serial {d:.4g} s; "
        parts = parts if model["has_parts"] else ""
        yield (
            "scaling",
            f"{model['kind']}; {parts}off by at most {100 * model['error']:.1f}% on sizes "
            f"held out, {100 * model['error_beyond']:.1f}% on the largest",
        )
    if advice["why_not"]:
        yield "advice", f"none: {advice['why_not']}"
    for key, what in (("thriftiest", "most trials per node-hour"), ("quickest", "shortest search")):
        if (option := advice[key]) is not None:
            beyond = "" if option["measured"] else " (beyond what was measured)"
            yield (
                what,
                f"{count(option['nodes'], 'node')} a trial{beyond}: {option['minutes']:.3g} minutes a job, "
                f"{option['search_hours']:.3g} h, {option['gpu_hours']:.4g} GPU-hours",
            )
