"""Writes figures as PDF or PNG files; kaleido draws them in a headless Chrome or Chromium."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpo_pilot.errors import GiveUpError, InputError
from hpo_pilot.files import write_whole
from hpo_pilot.report.figure import Figure, plotly_spec

#: The supported formats.
FIGURE_FORMATS = ("pdf", "png")

#: Size of a figure in pixels, and the factor for PNG.
_WIDTH, _HEIGHT, _SCALE = 900, 480, 2
#: Limits in seconds: for one figure, and for the start of the browser.
_EACH, _START = 60.0, 60.0

#: Browsers that are searched on the PATH, unless kaleido's environment variable names one.
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_VARIABLE = "BROWSER_PATH"


def check_figure_format(form: str) -> None:
    """Raises InputError if figures cannot be written in the format `form`."""
    if form not in FIGURE_FORMATS:
        raise InputError(f"unknown figure format {form!r}; the formats are {' and '.join(FIGURE_FORMATS)}")


def write_figures(figures: Sequence[Figure], folder: Path, form: str) -> list[Path]:
    """Writes each figure into `folder`, and their captions into ``captions.txt``.

    Args:
        figures: the figures; their keys differ, and become the names of the files.
        folder: the folder; created if necessary.
        form: one of `FIGURE_FORMATS`.

    Returns:
        The files, in the order of the figures; the captions last.

    Raises:
        InputError: the format is unknown, kaleido or the browser is missing, or the folder cannot be written.
        GiveUpError: the browser fails, or takes too long.
    """
    check_figure_format(form)
    browser = _browser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # In a separate thread, because a notebook's thread already runs an event loop.
        with ThreadPoolExecutor(1) as thread:
            images = thread.submit(lambda: asyncio.run(_drawn(figures, form, browser))).result()
        paths = []
        for figure, image in zip(figures, images, strict=True):
            paths.append(folder / f"{figure.key}.{form}")
            write_whole(paths[-1], image)
        captions = folder / "captions.txt"
        write_whole(captions, "\n".join(_caption(figure, form) for figure in figures))
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}; name another folder with -o") from error
    return [*paths, captions]


def _caption(figure: Figure, form: str) -> str:
    return "\n".join(
        line for line in (f"{figure.key}.{form}: {figure.title}", figure.description, figure.note, "") if line
    )


def _browser() -> str:
    """Returns the path of the browser.

    Raises:
        InputError: kaleido or a browser is missing.
    """
    try:
        import kaleido  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise InputError("figures as files need kaleido: pip install 'hpo-pilot[figures]'") from error
    named = os.environ.get(_VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise InputError(f"{_VARIABLE} is {named}, which is not an executable file; set it to a Chrome or Chromium")
        return named
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise InputError(
            "figure files need a Chrome or Chromium, and none is on the PATH; install one (on Debian "
            f"`apt install chromium`), or set {_VARIABLE} to its path; the HTML report does not need it"
        )
    return found


async def _drawn(figures: Sequence[Figure], form: str, browser: str) -> list[bytes]:
    import kaleido  # noqa: PLC0415 - an extra

    # Their errors are raised. They log what they ignore, such as the "{bye}" of a browser that ends, with tracebacks.
    for name in ("kaleido", "choreographer"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    options = {"format": form, "width": _WIDTH, "height": _HEIGHT, "scale": _SCALE if form == "png" else 1}
    images: list[bytes] = []

    async def draw() -> None:
        # Without MathJax, which kaleido would load from the network.
        async with kaleido.Kaleido(n=1, timeout=_EACH, mathjax=False, path=browser) as drawer:
            for figure in figures:
                images.append(await drawer.calc_fig(plotly_spec(figure), opts=options))

    try:
        await asyncio.wait_for(draw(), _START + _EACH * max(1, len(figures)) / 4)
    except OSError:
        raise
    except Exception as error:  # errors of kaleido and of the browser have no common root
        raise GiveUpError(
            f"{browser} drew {len(images)} of {len(figures)} figures, then {type(error).__name__}: {error}; "
            f"try another Chrome or Chromium in {_VARIABLE}, or save them from the HTML report"
        ) from error
    return images
