"""The JSON Schemas in `schemas/cli/`, of what commands print with ``--json``, generated from the documents' types.

python -m hpo_pilot.cli.json_schema schemas/cli            writes them
python -m hpo_pilot.cli.json_schema --check schemas/cli    exits 1 and names those that are stale, if there are any
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hpo_pilot.cli import printed
from hpo_pilot.cli.show import JSON_VERSION
from hpo_pilot.client import documents
from hpo_pilot.config.schema import DIALECT, tidy

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


def _text(file: str) -> str:
    return json.dumps(schema_of(file), indent=2, ensure_ascii=False) + "\n"


def write_schemas(folder: Path) -> None:
    """Writes every schema into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in _PRINTED:
        (folder / file).write_text(_text(file), encoding="utf-8")


def stale_schemas(folder: Path) -> list[Path]:
    """The files in `folder` that are missing, not what the types say, or of no type."""
    paths = [folder / file for file in _PRINTED]
    stale = [path for path in paths if not path.is_file() or path.read_text(encoding="utf-8") != _text(path.name)]
    return stale + sorted(set(folder.glob("*.json")) - set(paths))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m hpo_pilot.cli.json_schema", description="JSON Schemas of what commands print."
    )
    parser.add_argument("folder", type=Path, help="where the schemas are")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a schema is stale")
    options = parser.parse_args(arguments)
    if not options.check:
        write_schemas(options.folder)
        return 0
    stale = stale_schemas(options.folder)
    for path in stale:
        sys.stderr.write(f"{path} is not what the types say: run `make schemas`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
