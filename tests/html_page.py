"""HTML pages as their elements, for the tests of reports and of the monitor."""

from __future__ import annotations

from dataclasses import dataclass
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


class Page(HTMLParser):
    """The document's elements; a tag that closes none, or is never closed, is an error."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(document)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        return [
            element
            for element in self.elements
            if element.tag == tag and all(element.attributes.get(name) == value for name, value in attributes.items())
        ]

    def by_id(self, name: str) -> Element:
        (element,) = [each for each in self.elements if each.attributes.get("id") == name]
        return element

    @property
    def ids(self) -> list[str]:
        return [each.attributes["id"] for each in self.elements if "id" in each.attributes]

    @property
    def text(self) -> str:
        return " ".join(element.text for element in self.elements if element.tag in ("header", "main"))
