"""The JSON Schemas in `schemas/cli/`, of what commands print with ``--json``, generated from the documents' types.

python -m hpo_pilot.cli.json_schema schemas/cli            writes them
python -m hpo_pilot.cli.json_schema --check schemas/cli    exits 1 and names those that are stale, if there are any
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from hpo_pilot.cli import printed
from hpo_pilot.cli.show import JSON_VERSION
from hpo_pilot.client import documents
from hpo_pilot.config.schema import DIALECT, tidy
from hpo_pilot.config.schema_files import SchemaFiles

#: What holds for all of them.
_RULE = (
    f"Version {JSON_VERSION}. Within a version keys may come, so take no offence at others; none goes or changes its "
    "meaning: where that has to be, the version grows. A document that is an object has it under `version`, a list has "
    "it in this schema's $id alone. Times are ISO 8601 in UTC, unless said otherwise."
)

#: File -> what is printed, and by which commands.
_PRINTED: dict[str, tuple[Any, str]] = {
    "validate.json": (documents.ExaminationDocument, "hpo-pilot validate"),
    "run.json": (documents.RunDocument, "hpo-pilot run"),
    "submit.json": (printed.SubmittedDocument, "hpo-pilot submit"),
    "list.json": (list[documents.SearchDocument], "hpo-pilot list"),
    "search.json": (documents.SearchDocument, "hpo-pilot pause, resume, stop, extend, retry, try"),
    "status.json": (documents.StatusDocument, "hpo-pilot status"),
    "trials.json": (list[documents.TrialDocument], "hpo-pilot trials; hpo-pilot best, with several objectives"),
    "trial.json": (documents.TrialDocument, "hpo-pilot best, with one objective"),
    "log.json": (list[documents.EventDocument], "hpo-pilot log"),
    "fetch.json": (printed.FilesDocument, "hpo-pilot fetch"),
    "doctor.json": (list[documents.FindingDocument], "hpo-pilot doctor"),
    "import.json": (printed.ImportedDocument, "hpo-pilot import"),
    "plan.json": (printed.PlanDocument, "hpo-pilot plan"),
    "pilots-list.json": (list[printed.AllocationDocument], "hpo-pilot pilots list"),
    "sites.json": (list[printed.SiteDocument], "hpo-pilot sites"),
    "site.json": (printed.SiteDocument, "hpo-pilot sites show"),
    "token-list.json": (list[printed.TokenDocument], "hpo-pilot token list"),
}


def schema_of(file: str) -> dict[str, Any]:
    """The JSON Schema that belongs into `file`, such as `status.json`."""
    kind, commands = _PRINTED[file]
    body = TypeAdapter(kind).json_schema()
    tidy(body)
    about = body.pop("description", "")
    body.pop("title", None)
    if body.get("type") == "object":
        body["properties"] = {"version": {"const": JSON_VERSION}, **body["properties"]}
        body["required"] = ["version", *body.get("required", [])]
    name = file.removesuffix(".json")
    return {
        "$schema": DIALECT,
        "$id": f"urn:hpo-pilot:schema:cli-{name}:{JSON_VERSION}",
        "title": f"{commands}: what --json prints",
        "description": " ".join(part for part in (about, _RULE) if part),
        **body,
    }


_FILES = SchemaFiles(_PRINTED, schema_of, "types")
stale_schemas = _FILES.stale


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return _FILES.main("hpo_pilot.cli.json_schema", "JSON Schemas of what commands print.", arguments)


if __name__ == "__main__":
    sys.exit(main())
