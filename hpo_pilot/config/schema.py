"""The JSON Schemas in `schemas/`, generated from the models.

python -m hpo_pilot.config.schema schemas            writes them
python -m hpo_pilot.config.schema --check schemas    exits 1 and names the stale ones, if there are any
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hpo_pilot.config.payload_format import PayloadInput, PayloadOutput
from hpo_pilot.jobs.site_profile import SiteProfile
from hpo_pilot.search import Search
from hpo_pilot.server.taskbuffer.queue import QueueFile

#: The dialect of JSON Schema.
DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: File name -> model and title.
_SCHEMAS: dict[str, tuple[type[BaseModel], str]] = {
    "search.json": (Search, "hpo-pilot search file"),
    "payload_input.json": (PayloadInput, "hpo-pilot payload input"),
    "payload_output.json": (PayloadOutput, "hpo-pilot payload output"),
    "queues.json": (QueueFile, "hpo-pilot queue file"),
    "site.json": (SiteProfile, "hpo-pilot site profile"),
}


def schema_of(file: str) -> dict[str, Any]:
    """The JSON Schema that belongs into `file`, such as `search.json`."""
    model, title = _SCHEMAS[file]
    body = model.model_json_schema(by_alias=True)
    tidy(body)
    body.pop("title", None)
    # A name, not an address: the schema is the same wherever it is kept.
    head = {"$schema": DIALECT, "$id": f"urn:hpo-pilot:schema:{file.removesuffix('.json')}", "title": title}
    return {**head, **body}


def tidy(schema: Any) -> None:
    """Makes pydantic's output say to an editor what the reader means; in place."""
    if isinstance(schema, list):
        for item in schema:
            tidy(item)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        if isinstance(properties.get("type"), dict) and "const" in properties["type"]:
            # The model has a default, for Python; in a file the type must stand there, for it chooses the model.
            properties["type"].pop("default", None)
            schema["required"] = sorted({*schema.get("required", []), "type"})
        if isinstance(schema.get("description"), str):
            # The rest of a docstring speaks to programmers.
            schema["description"] = " ".join(schema["description"].split("\n\n")[0].split())
    schema.pop("discriminator", None)  # OpenAPI's, unknown to JSON Schema
    for value in schema.values():
        tidy(value)


def _text(file: str) -> str:
    return json.dumps(schema_of(file), indent=2, ensure_ascii=False) + "\n"


def write_schemas(folder: Path) -> None:
    """Writes every schema into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in _SCHEMAS:
        (folder / file).write_text(_text(file), encoding="utf-8")


def stale_schemas(folder: Path) -> list[Path]:
    """The files in `folder` that are missing or not what the models say."""
    paths = [folder / file for file in _SCHEMAS]
    return [path for path in paths if not path.is_file() or path.read_text(encoding="utf-8") != _text(path.name)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m hpo_pilot.config.schema", description="JSON Schemas of the files.")
    parser.add_argument("folder", type=Path, help="where the schemas are")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a schema is stale")
    options = parser.parse_args(arguments)
    if not options.check:
        write_schemas(options.folder)
        return 0
    stale = stale_schemas(options.folder)
    for path in stale:
        sys.stderr.write(f"{path} is not what the models say: run `make schemas`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
