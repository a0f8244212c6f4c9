"""The manual as a site of static pages, with the templates of the monitor.

python -m schemas.site FOLDER    writes it; its links are relative, so a web server may have it at any address
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpo_pilot import __version__
from hpo_pilot.manual import PAGES
from hpo_pilot.web.pages import chapter_values, manual_groups
from hpo_pilot.web.rendering import rendered, static_file

_STYLE = ("common.css", "monitor.css", "icon.svg")


def write(folder: Path) -> None:
    """Writes the pages, their pictures and their style sheets into a folder that this makes."""
    common: dict[str, Any] = {
        "site": __version__,
        "help_page": lambda name: f"{name or 'index'}.html",
        "static": lambda name: name,
        "session": None,
        "notice": "",
    }
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(rendered("help.j2", {**common, "groups": manual_groups()}), encoding="utf-8")
    for page in PAGES:
        html = rendered("chapter.j2", {**common, **chapter_values(page, ".html")})
        (folder / f"{page.name}.html").write_text(html, encoding="utf-8")
    for name in _STYLE:
        (folder / name).write_bytes(static_file(name).content)
    shutil.copytree(PAGES[0].path.parent / "pictures", folder / "pictures")


def main(arguments: Sequence[str]) -> int:
    """Writes the site, in place of an older one that it knows by its pages."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write((__doc__ or "") + "\n")
        return 2
    folder = Path(arguments[0])
    if folder.exists():
        if not (folder / f"{PAGES[0].name}.html").is_file():
            sys.stderr.write(f"{folder} is there already, and is no site of the manual: name another folder\n")
            return 2
        shutil.rmtree(folder)
    write(folder)
    sys.stdout.write(f"{folder / 'index.html'}: {len(PAGES)} pages\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
