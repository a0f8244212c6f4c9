"""Spaces and files of other tools, as tests write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import Problem, SearchFileError
from hpo_pilot.migrate.draft import ImportedSearch, ImportOptions
from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.importing import import_search
from hpo_pilot.migrate.spaces import ForeignSpace, read_space


@pytest.fixture
def space() -> Callable[[Any], ForeignSpace]:
    """The space that a value of another tool describes; what is wrong with it is in its file."""

    def read(value: Any) -> ForeignSpace:
        return read_space(ForeignFile.of(value, "space.json", Path()), (), value)

    return read


@pytest.fixture
def importing(tmp_path: Path) -> Callable[..., ImportedSearch]:
    """Imports a document, or a text, of another tool; more files are given by name."""

    def run(tool: str, document: Any, *arguments: str, name: str = "task.json", **more: Any) -> ImportedSearch:
        for file, content in {name: document, **more}.items():
            path = tmp_path / file.replace("__", ".")
            path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return import_search(tool, tmp_path / name, ImportOptions(tmp_path), arguments)

    return run


@pytest.fixture
def refused(importing: Callable[..., ImportedSearch]) -> Callable[..., list[Problem]]:
    """What is wrong with a document of another tool."""

    def run(*arguments: Any, **more: Any) -> list[Problem]:
        with pytest.raises(SearchFileError) as caught:
            importing(*arguments, **more)
        assert caught.value.exit_code == 2
        return caught.value.problems

    return run
