"""The JSON Schemas in `schemas/`, generated from the models.

python -m hpo_pilot.config.schema schemas            writes them
python -m hpo_pilot.config.schema --check schemas    exits 1 and names the stale ones, if there are any
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from hpo_pilot.config.payload_format import PayloadInput, PayloadOutput
from hpo_pilot.config.schema_files import SchemaFiles
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


_FILES = SchemaFiles(_SCHEMAS, schema_of, "models")
write_schemas, stale_schemas = _FILES.write, _FILES.stale


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return _FILES.main("hpo_pilot.config.schema", "JSON Schemas of the files.", arguments)


if __name__ == "__main__":
    sys.exit(main())
