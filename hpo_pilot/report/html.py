"""Renders the report: one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from hpo_pilot import __version__
from hpo_pilot.advice import Place
from hpo_pilot.report import formatting
from hpo_pilot.report.catalogue import build, kinds
from hpo_pilot.report.figure import PROJECTED, Figure, FigureData
from hpo_pilot.report.summary import RANK_MEASURES, efficiencies, failure_groups, search_gain
from hpo_pilot.report.trial_documents import best_document
from hpo_pilot.search import KnownResult, Search, Trial, TrialState
from hpo_pilot.search.progress import SearchProgress
from hpo_pilot.search.ranking import Standing, best_remarks, front_of, ranking
from hpo_pilot.search.trials import NO_COST, Cost


@dataclass(frozen=True)
class ReportFacts:
    """Facts about the run of a search that are not in its trials.

    Attributes:
        started: start of the search; None if it has not started.
        ended: end of the search; None while it runs.
        state: the search's state, as commands show it.
        message: the reason for the state, for people; may be empty.
        command: the command line that ran it, to copy.
        place: the store or service that commands in the report name.
        versions: software by name, for example ``{"hpo-pilot": "0.1.0", "Python": "3.11.7"}``.
        cost: the cost of all jobs, including lost and repeated attempts.
        repeated: number of attempts of folds after the first ones.
        store: the store of the search, for people; without passwords.
        earlier: for each earlier search, a sentence on the results taken from it.
        remarks: notes for the reader.
    """

    started: datetime | None = None
    ended: datetime | None = None
    state: str = ""
    message: str = ""
    command: str = ""
    place: Place = field(default_factory=Place)
    versions: Mapping[str, str] = field(default_factory=dict)
    cost: Cost = NO_COST
    repeated: int = 0
    store: str = ""
    earlier: Sequence[str] = ()
    remarks: Sequence[str] = ()


def citation(search: Search, facts: ReportFacts, definition: str) -> str:
    """Returns a sentence for a paper: the search with its dates, budget, seed and definition, and our version.

    Args:
        search: the search.
        facts: facts about its run.
        definition: the search as its report prints it; the sentence contains the start of its SHA-256.
    """
    digest = hashlib.sha256(definition.encode()).hexdigest()[:16]
    when, kind = "", "point" if search.fidelity else "trial"
    if facts.started is not None:
        end = f" to {facts.ended:%Y-%m-%d}" if facts.ended and facts.ended.date() != facts.started.date() else ""
        when = f", {facts.started:%Y-%m-%d}{end}"
    return (
        f'Hyper-parameter search "{search.name}"{when}: optimizer {search.optimizer.name}, budget of '
        f"{formatting.count(search.budget.trials, kind)}, seed {search.seed}, definition SHA-256 {digest}. "
        f"Made with hpo-pilot, version {__version__}."
    )


#: Limits of the table of versions: names, different versions of one name, and characters of each.
_NAMES, _DIFFERENT, _LENGTH = 40, 5, 60


#: Trials whose metadata are searched for software versions, an even sample.
VERSION_TRIALS = 1000


def payload_versions(trials: Sequence[Trial]) -> dict[str, str]:
    """Returns the software versions that payloads reported, by name, in the order of the trials.

    A payload reports them as a mapping under ``versions`` in its metadata (`payload.file_names.metadata`), for example
    ``{"versions": {"torch": "2.9.1"}}``. Other types are ignored.
    """
    found: dict[str, list[str]] = {}
    for trial in trials:
        for fold in trial.folds:
            reported = (fold.result.metadata or {}).get("versions")
            for name, version in reported.items() if isinstance(reported, Mapping) else ():
                if isinstance(version, str | int | float) and len(found) < _NAMES:
                    known = found.setdefault(formatting.shortened(str(name), _LENGTH), [])
                    if (text := formatting.shortened(str(version), _LENGTH)) not in known:
                        known.append(text)
    return {name: formatting.first_of(versions, _DIFFERENT) for name, versions in found.items()}


TOP_TRIALS = 10
FRONT_LIMIT = 100
EVENT_LIMIT = 300
FAILURE_LIMIT = 30
#: Above this many parameters a table shows a point in one column.
COLUMN_LIMIT = 12
#: Cells of the table of all trials: they bound the file's size.
CELL_LIMIT = 9_000


def render_report(
    search: Search,
    progress: SearchProgress,
    trials: Sequence[Trial],
    events: Sequence[tuple[datetime, str, str]],
    facts: ReportFacts,
    figure_data: Callable[[str], FigureData],
) -> str:
    """Renders the report on a search as one HTML document.

    It has 5 to 8 MB, more if the search has more than 100 parameters (22 MB with 1,000).

    The document loads nothing from outside, and its content security policy forbids it: only the scripts in the
    document run. Texts of payloads and users are escaped. The same arguments give the same document.

    Args:
        search: the search.
        progress: its counts and best trials.
        trials: its trials with their folds, in any order and state. With more than `VERSION_TRIALS`, an even sample of
            that many is enough, together with the trials of the table (`row_limit`), of the front, and all that
            `failure_groups` reads.
        events: (time, user, action), in their order.
        facts: facts about its run.
        figure_data: returns the data for the figures of a kind.
    """
    from hpo_pilot.optimizers.phase import auto_rules  # noqa: PLC0415 - numpy loads with it; commands load this module

    trials = sorted(trials, key=lambda trial: trial.number)
    several = len(search.objectives) > 1
    standings = ranking(search, trials)
    # Kinds that do not suit this search, such as pairs of parameters if it has only one, have no figures.
    drawn = defaultdict(list, {kind.key: build(kind.key, figure_data(kind.key)) for kind in kinds(search)})
    front = front_of(search, trials) if several else []
    failures = failure_groups(trials)
    best = standings[0] if standings else None
    gain = search_gain(search, progress, best, facts.cost)
    search_yaml = formatting.as_yaml(search.shown())
    rows = _rows(search, trials, standings)
    environment = _environment()
    # In this order: each script defines a name that the next one uses.
    own = (_static_text("figures.js"), environment.get_template("report.js.j2").render())
    scripts = [_as_text(script) for script in (get_plotlyjs(), *own)]
    return environment.get_template("report.html.j2").render(
        search=search,
        auto_rules=auto_rules(
            len(search.space.dimensions),
            len(search.objectives),
            search.budget.trials,
            has_levels=search.levels is not None,
        ),
        facts=facts,
        metrics=[objective.metric for objective in search.objectives],
        front=front[:FRONT_LIMIT],
        dropped_front=max(0, len(front) - FRONT_LIMIT),
        drawn=drawn,
        hypervolume=progress.hypervolume,
        outcome=_front_outcome(search, progress, front) if front else _outcome(search, progress, standings),
        remarks=best_remarks(search, best.trial.point, 1 if best.confirmed else progress.ties) if best else [],
        seconds=formatting.span(facts.started, facts.ended),
        gain=gain and formatting.gain_text(asdict(gain), search.objective.metric),
        extent=progress.extent(search.planned_trials, is_done=facts.state == "done"),
        best=None if several else best,
        best_text=formatting.best_text(best_document(best, None, logs=False)) if best else "",
        best_known=_best_known(search),
        top=[] if several else standings[:TOP_TRIALS],
        parameters=_by_objective(search, drawn["slices"]),
        rings=any(trace["name"] == PROJECTED for figure in drawn["slices"] for trace in figure.spec["data"]),
        failures=failures[:FAILURE_LIMIT],
        dropped_failures=max(0, len(failures) - FAILURE_LIMIT),
        efficiencies=efficiencies(rows),
        rank_measures=RANK_MEASURES,
        rows=rows,
        total=progress.trials,
        linked={trial.number for trial in rows},
        columns=search.space.names if len(search.space.names) <= COLUMN_LIMIT else (),
        events=list(events)[-EVENT_LIMIT:],
        dropped_events=max(0, len(events) - EVENT_LIMIT),
        versions={**facts.versions, "plotly.js": get_plotlyjs_version()},
        payload_versions=payload_versions(trials),
        versions_sampled=progress.trials > VERSION_TRIALS,
        search_yaml=search_yaml,
        citation=citation(search, facts, search_yaml),
        style=Markup(_static_text("common.css") + environment.get_template("report.css.j2").render()),  # noqa: S704
        scripts=[Markup(script) for script in scripts],  # noqa: S704  ours and plotly's, no data in them
        script_hashes=[_csp_hash(script) for script in scripts],
        specs=_specs([figure for group in drawn.values() for figure in group]),
    )


def _by_objective(search: Search, slices: Sequence[Figure]) -> list[tuple[str, Sequence[Figure]]]:
    """Returns the metric of each objective with its slices, one for each parameter; empty without slices."""
    each = len(search.space.names)
    groups = [slices[first : first + each] for first in range(0, len(slices), each)]
    return list(zip([objective.metric for objective in search.objectives], groups, strict=False))


def _outcome(search: Search, progress: SearchProgress, standings: Sequence[Standing]) -> str:
    """Returns the result in one sentence."""
    if not progress.counted:
        return "No trial has been made yet."
    metric = " and ".join(objective.metric for objective in search.objectives)
    if not standings:
        return (
            f"No {metric} yet: none of {formatting.count(progress.counted, 'trial')} has finished{_others(progress)}."
        )
    found = formatting.best_text(best_document(standings[0], None, logs=False))
    word = "lowest" if search.objective.sign > 0 else "highest"
    return f"The {word} {metric} is {found}, found by trial {standings[0].trial.number}; {_finished(progress)}."


def _finished(progress: SearchProgress) -> str:
    counted = formatting.count(progress.counted, "trial")
    return f"{formatting.whole(progress.good)} of {counted} finished{_others(progress)}"


def _others(progress: SearchProgress) -> str:
    """Returns the numbers of trials that have not finished, in brackets; empty where all have."""
    # Confirmation runs do not count; none of them is stopped early.
    failed_runs = progress.confirmations_over - (progress.finished - progress.good)
    open_runs = progress.confirmations - progress.confirmations_over
    ends = {
        "infeasible": progress.infeasible,
        "failed": progress.failed - failed_runs,
        "stopped early": progress.stopped_early,
        "not ended yet": progress.pending + progress.running - open_runs,
    }
    parts = [f"{formatting.whole(number)} {word}" for word, number in ends.items() if number]
    return f" ({', '.join(parts)})" if parts else ""


def _front_outcome(search: Search, progress: SearchProgress, front: Sequence[Standing]) -> str:
    """Returns the result of a search with several objectives in one sentence."""
    ends = []
    for index, objective in enumerate(search.objectives):
        end = min(front, key=lambda standing: standing.figures[index] * objective.sign)
        word = "lowest" if objective.sign > 0 else "highest"
        ends.append(
            f"the {word} {objective.metric} is {formatting.number(end.figures[index])} (trial {end.trial.number})"
        )
    return f"{formatting.count(len(front), 'trial')} on the Pareto front: {', '.join(ends)}; {_finished(progress)}."


def _cells(trial: Trial, count: int) -> list[tuple[float | None, str]]:
    """Returns a trial's figures with their texts for a table, one for each objective."""
    texts = formatting.figures(trial.values, trial.stds, count)
    return list(zip(trial.values or (None,) * count, texts, strict=True))


def _best_known(search: Search) -> KnownResult | None:
    """Returns the best result from before the search; None where there is none, and with several objectives."""
    if len(search.objectives) > 1:
        return None
    results = [(result.figures[0], result) for result in search.known if result.figures]
    return min(results, key=lambda result: result[0] * search.objective.sign, default=(0.0, None))[1]


def row_limit(search: Search) -> int:
    """Returns the most trials in the table."""
    return max(50, CELL_LIMIT // (len(search.space.names) + 8))


def _rows(search: Search, trials: Sequence[Trial], standings: Sequence[Standing]) -> list[Trial]:
    """Returns the trials of the table, in the order of `trials`: all, or the best, latest failed and latest others."""
    limit = row_limit(search)
    if len(trials) <= limit:
        return list(trials)
    keep = {standing.trial.number for standing in standings[: limit // 2]}
    failed = [trial.number for trial in trials if trial.state is TrialState.FAILED]
    keep.update(failed[-(limit // 4) :])
    rest = [trial.number for trial in trials if trial.number not in keep]
    keep.update(rest[len(rest) - (limit - len(keep)) :])
    return [trial for trial in trials if trial.number in keep]


def _specs(figures: Sequence[Figure]) -> Markup:
    """Returns the figures' specifications as JSON that is safe inside a script element."""
    text = json.dumps(
        {f"figure-{figure.key}": figure.spec for figure in figures}, allow_nan=False, separators=(",", ":")
    )
    # Inside a string, only these characters can end the element or open a comment in it.
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def _as_text(script: str) -> str:
    """Returns `script` with the line ends that a browser uses, so that its hash equals the browser's hash."""
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _static_text(name: str) -> str:
    """Returns the text of a script or style sheet that pages and reports share."""
    return (Path(__file__).parent / "static" / name).read_text(encoding="utf-8")


def _csp_hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _environment() -> jinja2.Environment:
    environment = formatting.template_environment(jinja2.FileSystemLoader(Path(__file__).parent))
    environment.filters["capitalized"] = lambda text: text[:1].upper() + text[1:]
    environment.globals["cells"] = _cells
    return environment
