"""Renders templates, SVG pictures, pages of long lists, static files and compressed answers."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import jinja2
import yaml
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hpo_pilot.report import formatting
from hpo_pilot.report.figure import evenly
from hpo_pilot.report.formatting import number
from hpo_pilot.report.summary import shortened

_ERROR_LIMIT = 300


@cache
def environment() -> jinja2.Environment:
    """The templates with their filters."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("hpo_pilot.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for name in ("count", "duration", "exact", "number", "plus_minus", "scalar", "when"):
        made.filters[name] = getattr(formatting, name)
    made.filters["shortened"] = lambda text, limit=_ERROR_LIMIT: shortened(text, limit)
    made.filters["segment"] = lambda text: quote(str(text), safe="")
    made.filters["point_json"] = point_json
    made.filters["point_yaml"] = point_yaml
    made.filters["moment"] = moment
    made.filters["mb"] = lambda size: formatting.number(size / 1e6, 3) + " MB"
    made.globals["static"] = static_path
    made.globals["span"] = formatting.span
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
        return formatting.NOTHING
    seen = datetime.fromtimestamp(value, UTC) if isinstance(value, float | int) else value
    return Markup('<time datetime="{}">{}</time>').format(seen.isoformat(timespec="seconds"), formatting.when(seen))


def _finalize(value: Any) -> Any:
    """Texts without control characters; what is markup already is ours."""
    if isinstance(value, Markup):
        return value
    return formatting.printable(value) if isinstance(value, str) else value


#: Places of a line: more than pixels say nothing.
_MOST_POINTS = 120

_WIDTH, _HEIGHT = 640.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 12.0, 12.0, 30.0

Curve = Sequence[tuple[float, float]]


def sparkline_svg(steps: Sequence[tuple[int, float]], label: str) -> Markup:
    """The best so far as a step line; `label` says it to those who do not see it. Empty for fewer than two steps."""
    points = [(float(x), y) for x, y in steps if math.isfinite(y)]
    if len(points) < 2:
        return Markup("")
    points = [*evenly(points, _MOST_POINTS - 1), points[-1]]
    xs, ys = [x for x, _ in points], _tamed([y for _, y in points])
    low, high = min(ys), max(ys)
    across, up = (xs[-1] - xs[0]) or 1.0, (high - low) or 1.0
    places = [(2 + 96 * (x - xs[0]) / across, 22 - 20 * (y - low) / up) for x, y in zip(xs, ys, strict=True)]
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
    return Markup(
        '<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path d="{}"/></svg>'
    ).format(label, path)


def _tamed(values: Sequence[float]) -> list[float]:
    """Over orders of magnitude a line of logarithms; the first values, often far off, leave the others room."""
    if min(values) > 0 and max(values) / min(values) > 20:
        return [math.log(value) for value in values]
    largest = max(map(abs, values)) or 1.0
    return [value / largest for value in values]


def curves_svg(folds: Mapping[int, Curve], metric: str) -> Markup:
    """What a trial's folds reported over their steps; empty where none reported two finite values."""
    lines = {}
    for fold, curve in folds.items():
        finite = [(float(x), float(y)) for x, y in curve if math.isfinite(y)]
        if len(finite) > 1:
            lines[fold] = evenly(finite, _MOST_POINTS * 2)
    if not lines:
        return Markup("")
    xs = [x for line in lines.values() for x, _ in line]
    ys = [y for line in lines.values() for _, y in line]
    logarithmic = min(ys) > 0 and max(ys) / min(ys) > 50

    def height(value: float) -> float:
        seen = math.log(value) if logarithmic else value
        low, high = (math.log(min(ys)), math.log(max(ys))) if logarithmic else (min(ys), max(ys))
        share = 0.5 if high == low else (seen / 2 - low / 2) / (high / 2 - low / 2)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)

    def across(step: float) -> float:
        share = 0.5 if max(xs) == min(xs) else (step - min(xs)) / (max(xs) - min(xs))
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    drawn = Markup("").join(
        Markup('<polyline class="curve c{}" points="{}"><title>{}</title></polyline>').format(
            index % 6, " ".join(f"{across(x):.1f},{height(y):.1f}" for x, y in line), f"fold {fold}"
        )
        for index, (fold, line) in enumerate(sorted(lines.items()))
    )
    ends = Markup("").join(
        Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
        for x, y, anchor, text in (
            (_LEFT - 8, _TOP + 8, "end", number(max(ys))),
            (_LEFT - 8, _HEIGHT - _BOTTOM, "end", number(min(ys))),
            (_LEFT, _HEIGHT - 8, "start", f"step {number(min(xs))}"),
            (_WIDTH - _RIGHT, _HEIGHT - 8, "end", f"step {number(max(xs))}"),
        )
    )
    label = (
        f"{metric} over the steps, {len(lines)} fold{'s' * (len(lines) != 1)}, {number(min(ys))} to {number(max(ys))}"
    )
    frame = Markup('<path class="frame" d="M{0} {1}V{2}H{3}"/>').format(_LEFT, _TOP, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT)
    return Markup('<svg class="curves" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}{}{}</svg>').format(
        _WIDTH, _HEIGHT, label, frame, drawn, ends
    )


_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Paging:
    """Where a page is among all.

    Attributes:
        total: rows in all.
        first: the place of its first row, from 1; 0: there is none.
        last: of its last one.
        pages: how many there are.
        before: the address of the page before; empty: none.
        next: of the next one.
    """

    total: int
    first: int
    last: int
    pages: int
    before: str
    next: str


@dataclass(frozen=True)
class ListPage(Generic[_Row]):
    """A page's rows, and where they are."""

    rows: Sequence[_Row]
    paging: Paging


def paged(rows: Sequence[_Row], size: int, asked: str, path: str, query: Mapping[str, str]) -> ListPage[_Row]:
    """The page that was asked for, or the nearest one.

    Args:
        rows: all.
        size: rows of a page.
        asked: its number, from 1, as the address has it.
        path: of the list.
        query: what else the address says; empty values are left out.
    """
    pages = max(1, -(-len(rows) // size))
    wanted = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 1
    number = min(max(1, wanted), pages)
    start = (number - 1) * size
    some = rows[start : start + size]
    kept = {key: value for key, value in query.items() if value}

    def address(other: int) -> str:
        if not 1 <= other <= pages:
            return ""
        said = urlencode({**kept, "page": str(other)} if other > 1 else kept)
        return f"{path}?{said}" if said else path

    first = start + 1 if some else 0
    return ListPage(some, Paging(len(rows), first, start + len(some), pages, address(number - 1), address(number + 1)))


#: Smaller answers are not worth packing.
_LEAST_BYTES = 1400


def packed_answer(
    request: Request,
    content: bytes,
    media_type: str,
    headers: Mapping[str, str] | None = None,
    *,
    status: int = 200,
    is_packed: bool = False,
) -> Response:
    """Bytes of a type.

    Args:
        request: the browser's.
        content: the bytes.
        media_type: of them.
        headers: more of them.
        status: of the answer.
        is_packed: whether they are gzipped already.
    """
    more = {"Vary": "Accept-Encoding", **(headers or {})}
    if "gzip" in request.headers.get("accept-encoding", ""):
        if is_packed or len(content) >= _LEAST_BYTES:
            more["Content-Encoding"] = "gzip"
            content = content if is_packed else gzip.compress(content, 3, mtime=0)
    elif is_packed:
        content = gzip.decompress(content)
    return Response(content, status, more, media_type)


def download(text: str, media_type: str, name: str) -> Response:
    """A text as a file; texts of payloads may hold what is no UTF-8."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.encode("utf-8", "replace"), 200, headers, media_type)


_YEAR = 31_536_000

_MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}

#: Where each comes from: a package, or plotly, which ships its own script.
_STATIC_PACKAGES = {
    "common.css": "hpo_pilot.report",
    "figures.js": "hpo_pilot.report",
    "monitor.css": "hpo_pilot.web",
    "monitor.js": "hpo_pilot.web",
    "icon.svg": "hpo_pilot.web",
}
_PLOTLY = "plotly.js"


@dataclass(frozen=True)
class StaticFile:
    """A file that pages load.

    Attributes:
        name: of the file.
        content: its bytes.
    """

    name: str
    content: bytes

    @cached_property
    def digest(self) -> str:
        """Part of its address."""
        return hashlib.sha256(self.content).hexdigest()[:16]

    @cached_property
    def packed(self) -> bytes:
        """The same, packed once."""
        return gzip.compress(self.content, 6, mtime=0)

    @property
    def media_type(self) -> str:
        """What it is."""
        return _MEDIA_TYPES[self.name.rpartition(".")[2]]


@cache
def static_file(name: str) -> StaticFile:
    """The file of that name.

    Raises:
        KeyError: there is none.
    """
    if name == _PLOTLY:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - megabytes that few requests need

        return StaticFile(name, get_plotlyjs().encode())
    return StaticFile(name, (files(_STATIC_PACKAGES[name]) / "static" / name).read_bytes())


def pack_all() -> None:
    """Makes all of them ready to be sent: the largest take a fifth of a second to be packed."""
    for name in (*_STATIC_PACKAGES, _PLOTLY):
        assert static_file(name).packed


def static_path(name: str) -> str:
    """Its address here."""
    return f"/static/{static_file(name).digest}/{name}"


def serve_static(request: Request) -> Response:
    """Answers with a file; an address of another version gets the present one, and is not remembered."""
    name = request.path_params["file"]
    try:
        file = static_file(name)
    except KeyError:
        raise HTTPException(404, "there is no such file") from None
    fresh = request.path_params["digest"] == file.digest
    headers = {
        "Cache-Control": f"public, max-age={_YEAR}, immutable" if fresh else "no-cache",
        "Vary": "Accept-Encoding",
        "ETag": f'"{file.digest}"',
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, 200, {**headers, "Content-Encoding": "gzip"}, file.media_type)
    return Response(file.content, 200, headers, file.media_type)


def json_answer(request: Request, document: Any, status: int = 200) -> Response:
    """A document. For handlers that run in threads: packing takes its time."""
    # ASCII: a payload's text may hold what is no UTF-8.
    content = json.dumps(document, allow_nan=False).encode()
    return packed_answer(request, content, "application/json", status=status)
