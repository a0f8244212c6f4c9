"""A plan for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpo_pilot.cli.costs import cost_text
from hpo_pilot.cli.show import counted

_Row = tuple[str, str]


def plan_rows(plan: Mapping[str, Any]) -> Iterator[_Row]:
    """(heading, text) of a plan's document."""
    layout, allocation = plan["layout"], plan["allocation"]
    family = f", {plan['searches']} segments side by side," if plan["searches"] > 1 else ""
    yield "search", f"{plan['search']}{family} at {plan['site']}"
    yield "jobs", f"{counted(plan['jobs'], 'job')} for {counted(plan['trials'], 'trial')}, of {_minutes(plan)} each"
    yield "layout", _layout(layout)
    if allocation["minutes"]:
        yield from _allocation_rows(plan)
    elif plan["site"] == "local":
        yield "site", "this machine: no allocation; `hpo-pilot run FILE` is all"
        yield "at once", counted(allocation["jobs_at_once"], "job")
    else:
        yield "site", "no batch system of ours: PanDA's brokerage finds queues, and their pilots start the jobs"
        yield "at once", f"{counted(allocation['jobs_at_once'], 'job')}, where as many slots are free"
    yield "generations", f"{plan['generations']} after one another"
    yield "time", f"{plan['hours']:.3g} h, without waiting for nodes"
    yield "cost", cost_text(plan["cost"])
    yield from _budget_rows(plan)
    if plan["advice"] is not None:
        yield from _advice_rows(plan["advice"])


def _layout(layout: Mapping[str, Any]) -> str:
    """The seeds' formula; of parts of trials it would make fractions."""
    jobs, of_trials = round(layout["points"] * layout["folds"]), ""
    running = f"N_G {layout['points']:g} x N_F {layout['folds']}"
    if layout["points"] != int(layout["points"]):
        running = f"{jobs} folds"
        of_trials = f"; a trial has {layout['folds']} (N_F), of which {jobs} run at a time"
        if jobs > layout["folds"]:
            whole = counted(jobs // layout["folds"], "trial")
            of_trials = f"; a trial has {layout['folds']} (N_F), so {whole} (N_G) and a part of another run at a time"
    return (
        f"1 + {running} x N_W {layout['workers']} = {layout['processes']} processes (the one is the steering "
        f"service{of_trials}); N_GPU {layout['gpus_per_worker']:g}: {layout['gpus']} GPUs"
    )


def _minutes(plan: Mapping[str, Any]) -> str:
    how = "" if plan["minutes_given"] else " (as long as they may; --minutes-per-trial says it better)"
    return f"{plan['minutes_per_job']:.4g} minutes{how}"


def _allocation_rows(plan: Mapping[str, Any]) -> Iterator[_Row]:
    allocation, limits = plan["allocation"], plan["limits"]
    hours, minutes = divmod(allocation["minutes"], 60)
    where = f" in queue {plan['queue']}" if plan["queue"] else ""
    yield "allocation", f"{counted(allocation['nodes'], 'node')} for {hours}:{minutes:02d}{where}"
    yield "at once", counted(allocation["jobs_at_once"], "job")
    said = [f"{value} {name}" for name, value in limits.items() if value is not None]
    beside = f"; the queue takes {', '.join(said)} of a user" if said else ""
    yield "submissions", f"{plan['submissions']}, one after another{beside}"
    yield "node-hours", f"{plan['node_hours']:.4g}, of which jobs have {100 * plan['node_hours_used']:.0f}%"


def _budget_rows(plan: Mapping[str, Any]) -> Iterator[_Row]:
    budget = plan["budget"]
    for name, unit in (("gpu_hours", "GPU-hours"), ("core_hours", "core-hours")):
        if budget[name] is not None and plan["cost"][name] > budget[name]:
            trials = counted(budget["trials_within"], "trial")
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
                f"{counted(option['nodes'], 'node')} a trial{beyond}: {option['minutes']:.3g} minutes a job, "
                f"{option['search_hours']:.3g} h, {option['gpu_hours']:.4g} GPU-hours",
            )
