"""Formats numbers, times and values for people."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

    from hpo_pilot.report.documents import ProgressDocument
    from hpo_pilot.search.estimate import Estimate

NOTHING = "–"

#: The meaning of a hypervolume of 0.
NOTHING_BEYOND = "no trial is better than the reference point in every objective"

#: Units of the amounts that a budget can limit, besides trials.
UNITS = {"gpu_hours": "GPU-hours", "core_hours": "core-hours", "hours": "hours"}

#: Control characters, except tab and line feed, and single surrogates: logs contain them, HTML and UTF-8 must not.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
#: Removes the zeros and the plus sign of an exponent: 1e-05 becomes 1e-5.
_EXPONENT = re.compile(r"e(?:\+0*|(-)0*)")
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def printable(text: str) -> str:
    """Returns `text` without terminal colours, and with unprintable characters replaced."""
    return _UNPRINTABLE.sub("\ufffd", _TERMINAL_CODE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def shortened(text: str, limit: int = 300) -> str:
    """Returns `text`, or its first `limit` - 1 characters and an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def number(value: float | None, digits: int = 4) -> str:
    """Formats `value` with `digits` significant digits; integers in full; a dash for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return str(int(value))
    return _EXPONENT.sub(r"e\1", format(value, f".{digits}g"))


def plus_minus(value: float | None, std: float | None, digits: int = 4) -> str:
    """Formats a figure of merit and its spread, rounded to two digits of the spread: ``0.0912 ± 0.0041``.

    `digits` is for a value without a spread.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if std is None or not math.isfinite(std):
        return number(value, digits)
    if std <= 0:
        return f"{number(value)} ± 0"
    decimals = 1 - math.floor(math.log10(std))
    if -6 <= decimals <= 8 and abs(value) < 1e9:
        places = max(0, decimals)
        return f"{round(value, decimals):.{places}f} ± {round(std, decimals):.{places}f}"
    return f"{number(value)} ± {number(std, 2)}"


def figures(
    values: float | Sequence[float] | None, stds: float | Sequence[float] | None, objectives: int = 1, digits: int = 4
) -> list[str]:
    """Formats the figures of merit of a trial with their spreads, one for each objective; dashes without figures."""
    pairs = zip_longest(listed(values), listed(stds))
    return [plus_minus(value, std, digits) for value, std in pairs] or [NOTHING] * objectives


def listed(values: float | Sequence[float] | None) -> Sequence[float]:
    """Returns the figures in a document, one for each objective; empty: there are none."""
    return () if values is None else values if isinstance(values, Sequence) else (values,)


def best_text(trial: Mapping[str, Any], digits: int = 4) -> str:
    """Formats the figures of merit in a document of the best trial, with the mean of its confirmation runs if any."""
    own = ", ".join(figures(trial["value"], trial["std"], digits=digits))
    if (confirmed := trial.get("confirmed")) is None:
        return own
    return f"{own}; {ranked_text(trial, digits)} on average over {count(confirmed['runs'], 'confirmation run')}"


def ranked_text(trial: Mapping[str, Any], digits: int = 4) -> str:
    """Formats the figures that rank the best trial: the means of its confirmation runs if any, or its own figures."""
    if (confirmed := trial.get("confirmed")) is None:
        return ", ".join(figures(trial["value"], trial["std"], digits=digits))
    return ", ".join(figures(confirmed["value"], None, digits=digits))


def front_text(size: int, hypervolume: float | None) -> str:
    """Formats the size and hypervolume of a Pareto front."""
    volume = "" if hypervolume is None else f", hypervolume {number(hypervolume)}"
    return f"{count(size, 'trial')} on the front{volume}"


def result_text(now: ProgressDocument, digits: int = 4) -> str:
    """Formats the number of failed trials, if any, and the best result so far."""
    if confirmed := now.get("confirmed"):
        mean = f"{number(confirmed['value'], digits)}, the mean of {count(confirmed['runs'], 'confirmation run')}"
        found = f"best {now['metric']} {mean} (trial {confirmed['number']})"
    elif best := now["best"]:
        found = f"best {now['metric']} {plus_minus(best['value'], best['std'], digits)} (trial {best['number']})"
    elif front := now.get("front"):
        found = front_text(front["size"], front["hypervolume"])
    else:
        found = "no result yet"
    failed = now["trials"].get("failed", 0)
    return f"{whole(failed)} failed, {found}" if failed else found


def stop_text(step: int, value: float | None, digits: int = 4) -> str:
    """Formats the step at which a trial was stopped early, and its value there; None: not a finite number."""
    return f"stopped at step {step} with {'no number' if value is None else number(value, digits)}"


def first_of(texts: Sequence[str], most: int) -> str:
    """Formats at most `most` texts, and the number of the others: ``a, b, c and 2 more``."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def point_text(point: Mapping[str, Any]) -> str:
    """Formats a point on one line, with long texts shortened."""
    return ", ".join(f"{name}={shortened(scalar(value), 60)}" for name, value in point.items())


def as_json(value: Mapping[str, Any]) -> str:
    """Formats a point as in `input.json`."""
    return json.dumps(value, indent=1, ensure_ascii=False)


def as_yaml(value: Mapping[str, Any]) -> str:
    """Formats a point or a definition as in search files."""
    import yaml  # noqa: PLC0415 - a user of a service has none

    return str(yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=110))


def scalar(value: Any, digits: int = 4) -> str:
    """Formats a hyper-parameter's value; None, true and false as in JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return number(value, digits)


def exact(value: Any) -> str:
    """Formats a bound or choice as in a search file: with all digits, and quotes around ambiguous strings."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z][\w./+-]*", value) and value not in _WORDS else json.dumps(value)
    if isinstance(value, float):
        return number(value, 12)
    return json.dumps(value)


#: Words that YAML does not read as strings.
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off"})


def duration(seconds: float | None) -> str:
    """Formats a time span in its two largest units: ``4.2 s``, ``3 min 12 s``, ``1 h 5 min``, ``2 d 3 h``."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return NOTHING
    if 0 < seconds < 10:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if rounded >= size:
            rest = rounded % size // smaller_size
            return f"{rounded // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{rounded} s"


def span(start: datetime | None, end: datetime | None) -> float | None:
    """Returns the seconds from `start` to `end`; None where one is missing."""
    if start is None or end is None:
        return None
    return (utc(end) - utc(start)).total_seconds()


def when(moment: datetime | None) -> str:
    """Formats a time in UTC, to the second."""
    return NOTHING if moment is None else f"{utc(moment):%Y-%m-%d %H:%M:%S} UTC"


def utc(moment: datetime) -> datetime:
    """Returns the time in UTC, with its time zone."""
    # SQLite returns times without a zone; ours are UTC.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def whole(n: int) -> str:
    """Formats a number of things: ``12,345``."""
    return f"{n:,}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """Formats a number with its noun: ``1 trial``, ``2 trials``, ``12,345 trials``."""
    return f"{whole(n)} {noun if n == 1 else plural or noun + 's'}"


def machine_hours(gpu_hours: float, core_hours: float) -> tuple[str, str]:
    """Formats what jobs used: amount and unit; GPU-hours, or core-hours if no GPU was used."""
    key, amount = ("gpu_hours", gpu_hours) if gpu_hours else ("core_hours", core_hours)
    return number(amount), UNITS[key]


def energy_text(kwh: float | None, source: str | None, co2_kg: float | None) -> str:
    """Formats an energy, its source and its emissions; empty: not known."""
    if kwh is None or source is None:
        return ""
    text = f"{number(kwh)} kWh ({'measured in part' if source == 'mixed' else source})"
    return text if co2_kg is None else f"{text}, {number(co2_kg)} kg CO₂e"


def used_of(used: float, allowed: float | None, unit: str) -> str:
    """Formats an amount and its limit, if it has one: ``12.5 of 100 GPU-hours (12%)``."""
    if allowed is None:
        return f"{number(used)} {unit}"
    share = f" ({100 * used / allowed:.0f}%)" if allowed else ""
    return f"{number(used)} of {number(allowed)} {unit}{share}"


def cost_text(cost: Mapping[str, Any], budget: Mapping[str, Any] | None = None, hours: float | None = None) -> str:
    """Formats a cost on one line.

    Args:
        cost: the cost.
        budget: the budget that limits it.
        hours: used part of the budget's hours.
    """
    used = {"gpu_hours": cost["gpu_hours"], "core_hours": cost["core_hours"], "hours": hours or 0.0}
    limits = {key: (budget or {}).get(key) for key in UNITS}
    is_shown = {"gpu_hours": cost["gpu_hours"] > 0, "core_hours": True, "hours": False}
    parts = [used_of(used[key], limits[key], unit) for key, unit in UNITS.items() if limits[key] or is_shown[key]]
    return ", ".join(filter(None, [*parts, energy_text(cost["energy_kwh"], cost["energy_source"], cost["co2_kg"])]))


def gain_text(gain: Mapping[str, Any], metric: str) -> str:
    """Formats the gain of a search in `metric` and its gain per GPU-hour, or per core-hour if no GPU was used."""
    if gain["first"] is None:
        what = f"hypervolume {number(gain['gain'])}"
    elif not gain["gain"]:
        return f"none: no result is better than the first one, {metric} {number(gain['first'])}"
    else:
        what = f"{metric} from {number(gain['first'])} (the first result) to {number(gain['best'])}"
        what += f": {number(gain['gain'])}"
    for each, unit in ((gain["per_gpu_hour"], "GPU-hour"), (gain["per_core_hour"], "core-hour")):
        if each is not None:
            return f"{what}; {number(each)} per {unit}"
    return what


def time_left(seconds: float, earliest: float, latest: float) -> str:
    """Formats an estimated time and its limits; these are left out where they are close to it."""
    if seconds < 0.5:
        return "about a moment"
    text = f"about {duration(round(seconds))}"
    if latest - earliest <= _CLOSE * seconds:
        return text
    return f"{text}, {duration(round(earliest))} to {duration(round(latest))}"


#: Limits of an estimated time are shown if they are apart by more than this share of it.
_CLOSE = 0.2


def estimate_basis(estimate: Estimate) -> str:
    """Formats the basis of an estimated end."""
    if estimate.limit == "hours":
        return f"its {number(estimate.hours)} hours are over then, and running trials end"
    if estimate.results:
        basis = f"at the pace of the last {count(estimate.results, 'result')}"
    else:
        basis = f"trials take {duration(estimate.each)}, {estimate.parallel} at once"
    if estimate.limit != "trials":
        return f"its {UNITS.get(estimate.limit, 'levels')} last for about {estimate.left:.0f} more trials, {basis}"
    return basis


def template_environment(loader: jinja2.BaseLoader) -> jinja2.Environment:
    """Returns a Jinja environment with the filters that reports and pages share. Texts become printable and escaped."""
    import jinja2  # noqa: PLC0415 - commands that render nothing load this module
    from markupsafe import Markup  # noqa: PLC0415 - as above

    def finalize(value: Any) -> Any:
        # Markup comes from this package and is kept as it is.
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    writers = (as_json, as_yaml, count, duration, exact, number, plus_minus, point_text, scalar, shortened, when, whole)
    environment.filters.update({write.__name__: write for write in writers})
    for function in (energy_text, estimate_basis, machine_hours, span, stop_text, used_of):
        environment.globals[function.__name__] = function
    return environment


def quotas_text(quotas: Mapping[str, Mapping[str, float]]) -> str:
    """Returns what a user has used of the quotas of a service; empty: there are none."""
    words = {"searches": "open searches", "stored_mb": "MB of outputs and checkpoints", "uploads_mb": "MB of uploads"}
    return ", ".join(f"{quota['used']:.0f} of {quota['most']:.0f} {words[name]}" for name, quota in quotas.items())
