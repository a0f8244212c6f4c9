"""The manual: Markdown files that travel with the package, so that it can be read where there is no network."""

from hpo_pilot.manual.pages import PAGES, Page, page_named

__all__ = ["PAGES", "Page", "page_named"]
