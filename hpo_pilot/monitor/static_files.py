"""Scripts and styles, at addresses that change with what they hold: a browser asks for each version once."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_YEAR = 31_536_000

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}

#: Where each comes from: a package, or plotly, which ships its own script.
_SOURCES = {
    "common.css": "hpo_pilot.figures",
    "figures.js": "hpo_pilot.figures",
    "monitor.css": "hpo_pilot.monitor",
    "monitor.js": "hpo_pilot.monitor",
    "icon.svg": "hpo_pilot.monitor",
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
        return _TYPES[self.name.rpartition(".")[2]]


@cache
def static_file(name: str) -> StaticFile:
    """The file of that name.

    Raises:
        KeyError: there is none.
    """
    if name == _PLOTLY:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - megabytes that few requests need

        return StaticFile(name, get_plotlyjs().encode())
    return StaticFile(name, (files(_SOURCES[name]) / "static" / name).read_bytes())


def pack_all() -> None:
    """Makes all of them ready to be sent: the largest take a fifth of a second to be packed."""
    for name in (*_SOURCES, _PLOTLY):
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
