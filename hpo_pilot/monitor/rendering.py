"""Pages of templates: every text is escaped, and what no page may hold is replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

import jinja2
import yaml
from markupsafe import Markup

from hpo_pilot.figures import wording
from hpo_pilot.figures.failures import shortened
from hpo_pilot.monitor.static_files import static_path

_ERROR_LIMIT = 300


@cache
def environment() -> jinja2.Environment:
    """The templates with their filters."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("hpo_pilot.monitor"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for name in ("count", "duration", "exact", "number", "plus_minus", "scalar", "when"):
        made.filters[name] = getattr(wording, name)
    made.filters["shortened"] = lambda text, limit=_ERROR_LIMIT: shortened(text, limit)
    made.filters["segment"] = lambda text: quote(str(text), safe="")
    made.filters["point_json"] = point_json
    made.filters["point_yaml"] = point_yaml
    made.filters["moment"] = moment
    made.filters["mb"] = lambda size: wording.number(size / 1e6, 3) + " MB"
    made.globals["static"] = static_path
    made.globals["span"] = wording.span
    return made


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """A page, or a piece of one."""
    return environment().get_template(template).render(values)


def fragments(template: str) -> Any:
    """The macros of a template, for pieces that are sent one by one."""
    return environment().get_template(template).module


def point_json(point: Mapping[str, Any]) -> str:
    """A point as `input.json` has it."""
    return json.dumps(point, indent=1, ensure_ascii=False)


def point_yaml(point: Mapping[str, Any]) -> str:
    """A point as search files write it."""
    return str(yaml.safe_dump(dict(point), sort_keys=False, allow_unicode=True, default_flow_style=False))


def moment(value: datetime | float | None) -> Markup | str:
    """A moment in UTC, to the second, which machines can read too."""
    if value is None:
        return wording.NOTHING
    seen = datetime.fromtimestamp(value, UTC) if isinstance(value, float | int) else value
    return Markup('<time datetime="{}">{}</time>').format(seen.isoformat(timespec="seconds"), wording.when(seen))


def _finalize(value: Any) -> Any:
    """Texts without control characters; what is markup already is ours."""
    if isinstance(value, Markup):
        return value
    return wording.printable(value) if isinstance(value, str) else value
