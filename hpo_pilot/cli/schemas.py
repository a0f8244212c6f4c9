"""Writes the JSON Schemas in `schemas/` from the models, or checks them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel

from hpo_pilot.hpc.site_profile import SiteProfile
from hpo_pilot.search import Scalar, Search
from hpo_pilot.server.queues import QueueFile


@dataclass(frozen=True)
class SchemaFiles:
    """The schemas of one folder.

    Attributes:
        names: of the files.
        schema_of: makes the schema that belongs into a file.
        source: what they are made of, in a word for messages.
    """

    names: Collection[str]
    schema_of: Callable[[str], dict[str, Any]]
    source: str

    def write(self, folder: Path) -> None:
        """Writes every schema into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.names:
            (folder / name).write_text(self._text(name), encoding="utf-8")

    def stale(self, folder: Path) -> list[Path]:
        """The files in `folder` that are missing, not what their source says, or of no source."""
        paths = [folder / name for name in self.names]
        stale = [p for p in paths if not p.is_file() or p.read_text(encoding="utf-8") != self._text(p.name)]
        return stale + sorted(set(folder.glob("*.json")) - set(paths))

    def main(self, module: str, description: str, arguments: Sequence[str] | None) -> int:
        """The command ``python -m module [--check] folder``; returns its exit status."""
        parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
        parser.add_argument("folder", type=Path, help="where the schemas are")
        parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a schema is stale")
        options = parser.parse_args(arguments)
        if not options.check:
            self.write(options.folder)
            return 0
        stale = self.stale(options.folder)
        for path in stale:
            sys.stderr.write(f"{path} is not what the {self.source} say: run `make schemas`\n")
        return 1 if stale else 0

    def _text(self, name: str) -> str:
        return json.dumps(self.schema_of(name), indent=2, ensure_ascii=False) + "\n"


# What a payload reads and writes: the contract that phpo, iDDS and hpogrid payloads keep too.
#
# These models are the source of `schemas/payload_input.json` and `schemas/payload_output.json`; the runner, which is
# shipped alone, keeps to them without importing them.


class PayloadInput(RootModel[dict[str, Scalar]]):
    """input.json: the hyper-parameter point, each active parameter by its name."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"learning_rate": 0.001, "layers": 2, "solver": "adam"}]})


class PayloadOutput(BaseModel):
    """output.json: the figure of merit, under the name that the search's objective.metric gives it, here loss."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"examples": [{"status": 0, "loss": 0.123, "message": ""}]}
    )

    status: int = Field(0, description="0: good; anything else: the payload failed, and message says why.")
    loss: float | None = Field(
        None,
        description="The figure of merit: a finite number, unless status is not 0 or objective.metric names another.",
    )
    message: str = Field("", description="For people; shown with a failed trial.")
    metrics: dict[str, Any] = Field(default_factory=dict, description="More figures, kept and shown beside the first.")


# The JSON Schemas in `schemas/`, generated from the models.
#
# python -m hpo_pilot.cli.schemas schemas            writes them
# python -m hpo_pilot.cli.schemas --check schemas    exits 1 and names the stale ones, if there are any

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
    return _FILES.main("hpo_pilot.cli.schemas", "JSON Schemas of the files.", arguments)


if __name__ == "__main__":
    sys.exit(main())
