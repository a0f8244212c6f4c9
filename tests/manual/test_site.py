"""The manual as a site: every link and picture of its pages is in its own folder."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest

from hpo_pilot.manual import PAGES
from schemas import site


class Addresses(HTMLParser):
    """Anchors of a page, and addresses that it names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.named: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value or "")
            elif name in ("href", "src", "action", "srcset"):
                self.named.append(value or "")


def test_all_links_are_relative_and_lead_somewhere(tmp_path):
    folder = tmp_path / "a" / "site"
    assert site.main([str(folder)]) == 0
    found = {path.name: Addresses(path.read_text()) for path in folder.glob("*.html")}
    assert sorted(found) == sorted(["index.html", *(f"{page.name}.html" for page in PAGES)])
    reached = set()
    for here, page in found.items():
        assert len(page.named) > len(PAGES) and not page.tags & {"script", "form", "base"}
        for address in page.named:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https"):
                continue
            assert not parts.scheme and not parts.netloc and not address.startswith("/"), (here, address)
            target = parts.path or here
            assert (folder / target).is_file(), (here, address)
            assert not parts.fragment or parts.fragment in found[target].anchors, (here, address)
            reached.add(target)
    assert reached == {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_an_older_site_is_replaced_and_nothing_else(tmp_path, capsys):
    folder = tmp_path / "site"
    assert site.main([str(folder)]) == 0
    (folder / "gone.html").touch()
    assert site.main([str(folder)]) == 0
    assert not (folder / "gone.html").exists()
    (tmp_path / "mine").write_text("kept")
    assert site.main([str(tmp_path)]) == 2
    assert "name another folder" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "kept"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["a", "b"]])
def test_wrong_arguments_say_how_it_is_called(arguments, capsys):
    assert site.main(arguments) == 2
    assert "python -m schemas.site FOLDER" in capsys.readouterr().err
