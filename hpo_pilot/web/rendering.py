"""Rendering of templates, SVG pictures, paged lists, static files and compressed answers."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import itertools
import json
import math
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hpo_pilot.report import formatting
from hpo_pilot.report.axes import label, rounded
from hpo_pilot.report.figure import Figure, evenly
from hpo_pilot.report.figure_svg import figure_svg
from hpo_pilot.report.formatting import count, number
from hpo_pilot.report.result_figures import COLOURS


@cache
def environment() -> jinja2.Environment:
    """Returns the Jinja environment with the templates' filters."""
    made = formatting.template_environment(jinja2.PackageLoader("hpo_pilot.web"))
    made.filters["segment"] = lambda text: quote(str(text), safe="")
    made.filters["moment"] = moment
    made.filters["with_code"] = _with_code
    made.filters["mb"] = lambda size: (
        formatting.number(size / 1e6, 3) + " MB" if size >= 1e5 else f"{formatting.number(size / 1e3, 3)} kB"
    )
    made.globals["static"] = static_path
    # The manual as a site has other addresses, and no searches: see schemas/site.py.
    made.globals["help_page"] = lambda name: f"/help/{name}" if name else "/help"
    made.globals["site"] = False
    return made


def _with_code(text: str) -> Markup:
    """Formats what is between backticks as code."""
    parts = enumerate(formatting.printable(text).split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in parts)


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """Renders a template: a page, or a part of one."""
    return environment().get_template(template).render(values)


def fragments(template: str) -> Any:
    """Returns the macros of a template, for parts of a page that are sent one by one."""
    return environment().get_template(template).module


def moment(value: datetime | float | None) -> Markup | str:
    """Formats a time in UTC, to the second, as a machine-readable `<time>` element."""
    if value is None:
        return formatting.NOTHING
    seen = datetime.fromtimestamp(value, UTC) if isinstance(value, float | int) else value
    return Markup('<time datetime="{}">{}</time>').format(seen.isoformat(timespec="seconds"), formatting.when(seen))


#: Most points of a line: more than the pixels of its width show nothing new.
_MOST_POINTS = 120

Curve = Sequence[tuple[float, float]]


def sparkline_svg(steps: Sequence[tuple[int, float]], described: str) -> Markup:
    """Draws the best value so far as a step line; empty for fewer than two steps. Screen readers read `described`."""
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
    ).format(described, path)


def _tamed(values: Sequence[float]) -> list[float]:
    """Scales values for a line: logarithms if they are positive and span more than a factor of 20.

    Otherwise the values are divided by the largest absolute value. Without logarithms, first values
    that are far off would flatten the rest of the line.
    """
    if min(values) > 0 and max(values) / min(values) > 20:
        return [math.log(value) for value in values]
    largest = max(map(abs, values)) or 1.0
    return [value / largest for value in values]


def curves_svg(folds: Mapping[int, Curve], metric: str) -> Markup:
    """Draws the values that a trial's folds reported, by step; empty if no fold reported two finite values."""
    lines = {}
    for fold, curve in folds.items():
        finite = [(float(x), float(y)) for x, y in curve if math.isfinite(y)]
        if len(finite) > 1:
            lines[fold] = evenly(finite, _MOST_POINTS * 2)
    if not lines:
        return Markup("")
    values = [y for line in lines.values() for _, y in line]
    scale = {"type": "log"} if min(values) > 0 and max(values) / min(values) > 50 else {}
    traces = [
        {
            "mode": "lines",
            "name": f"fold {fold}" if len(lines) > 1 else "",
            "x": [x for x, _ in line],
            "y": [rounded(y) for _, y in line],
            "line": {"color": COLOURS[index % len(COLOURS)]},
        }
        for index, (fold, line) in enumerate(sorted(lines.items()))
    ]
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": label(metric)}, **scale}}
    description = (
        f"{metric} over the steps, {count(len(lines), 'fold')}, {number(min(values))} to {number(max(values))}"
    )
    return figure_svg(Figure("curves", "", description, spec={"data": traces, "layout": layout}))


@dataclass(frozen=True)
class Paging:
    """Position of a page in a list.

    Attributes:
        total: number of rows in the list.
        start: number of rows before the page.
        last: position of its last row, from 1.
        pages: number of pages.
        before: address of the previous page; empty: none.
        next: address of the next page; empty: none.
    """

    total: int
    start: int
    last: int
    pages: int
    before: str
    next: str


def paged(total: int, size: int, asked: str, path: str, query: Mapping[str, str | Sequence[str]]) -> Paging:
    """Returns the position of the requested page of a list, or of the nearest one that exists.

    Args:
        total: number of rows in the list.
        size: rows on a page.
        asked: page number, from 1, as text from the address.
        path: path of the list's address.
        query: the other parameters of the address; empty values are left out.
    """
    pages = max(1, -(-total // size))
    wanted = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 1
    number = min(max(1, wanted), pages)
    start = (number - 1) * size
    kept = {key: value for key, value in query.items() if value}

    def address(other: int) -> str:
        if not 1 <= other <= pages:
            return ""
        parameters = urlencode({**kept, "page": str(other)} if other > 1 else kept, doseq=True)
        return f"{path}?{parameters}" if parameters else path

    return Paging(total, start, min(total, start + size), pages, address(number - 1), address(number + 1))


#: Answers with fewer bytes are not compressed.
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
    """Returns a response with bytes, gzipped if the browser accepts it.

    Args:
        request: the browser's request.
        content: the bytes.
        media_type: their media type.
        headers: additional headers.
        status: HTTP status.
        is_packed: whether `content` is gzipped already.
    """
    more = {"Vary": "Accept-Encoding", **(headers or {})}
    if "gzip" in request.headers.get("accept-encoding", ""):
        if is_packed or len(content) >= _LEAST_BYTES:
            more["Content-Encoding"] = "gzip"
            content = content if is_packed else gzip.compress(content, 3, mtime=0)
    elif is_packed:
        content = gzip.decompress(content)
    return Response(content, status, more, media_type)


def streamed_answer(
    request: Request, parts: Iterator[str], media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns a response with a text that is sent while it is made, gzipped if the browser accepts it.

    The first part is made before the response, so that an error in it gets a status. Characters that UTF-8 cannot
    encode (payload output) become `?`.
    """
    encoded = (part.encode("utf-8", "replace") for part in parts)
    first = next(encoded, b"")
    if len(first) < _LEAST_BYTES:
        return packed_answer(request, b"".join([first, *encoded]), media_type, headers)
    more = {"Vary": "Accept-Encoding", **(headers or {})}
    content: Iterator[bytes] = itertools.chain([first], encoded)
    if "gzip" in request.headers.get("accept-encoding", ""):
        more["Content-Encoding"] = "gzip"
        content = _gzipped(content)
    return StreamingResponse(_from_one_thread(content), 200, more, media_type)


#: Makes the parts of all streamed answers: each thread that reads trials keeps some megabytes of memory for itself.
_STREAMS = ThreadPoolExecutor(1, "streamed-answers")


async def _from_one_thread(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while (part := await loop.run_in_executor(_STREAMS, next, parts, None)) is not None:
        yield part


def _gzipped(parts: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(3, wbits=zlib.MAX_WBITS | 16)
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()


def download(text: str, media_type: str, name: str) -> Response:
    """Returns a text as a file download. Characters that UTF-8 cannot encode (payload output) become `?`."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.encode("utf-8", "replace"), 200, headers, media_type)


_YEAR = 31_536_000

_MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}

#: Package of each static file. plotly's script comes from the plotly package.
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
    """A static file that pages load.

    Attributes:
        name: the file's name.
        content: its bytes.
    """

    name: str
    content: bytes

    @cached_property
    def digest(self) -> str:
        """Hash of the content; part of the file's address."""
        return hashlib.sha256(self.content).hexdigest()[:16]

    @cached_property
    def packed(self) -> bytes:
        """The content, gzipped once."""
        return gzip.compress(self.content, 6, mtime=0)

    @property
    def media_type(self) -> str:
        """Media type, from the file name's ending."""
        return _MEDIA_TYPES[self.name.rpartition(".")[2]]


@cache
def static_file(name: str) -> StaticFile:
    """Returns the static file of that name.

    Raises:
        KeyError: there is no such file.
    """
    if name == _PLOTLY:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - megabytes that few requests need

        return StaticFile(name, get_plotlyjs().encode())
    return StaticFile(name, (files(_STATIC_PACKAGES[name]) / "static" / name).read_bytes())


def pack_all() -> None:
    """Loads and compresses all static files. The largest takes a fifth of a second."""
    for name in (*_STATIC_PACKAGES, _PLOTLY):
        assert static_file(name).packed


def static_path(name: str) -> str:
    """Returns the address of a static file on this server."""
    return f"/static/{static_file(name).digest}/{name}"


def serve_static(request: Request) -> Response:
    """Returns a static file. An address of another version gets the current file, with `no-cache`."""
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
    """Returns a document as JSON. Call it from handlers that run in threads: compression takes time."""
    # ASCII: a payload's text may contain characters that UTF-8 cannot encode.
    content = json.dumps(document, allow_nan=False).encode()
    return packed_answer(request, content, "application/json", status=status)
