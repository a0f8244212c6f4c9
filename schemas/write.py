"""Writes the JSON Schemas in `schemas/` from the models and the types of documents, or checks that they are current.

python -m schemas.write schemas            writes them: files in `schemas/`, output of --json in `schemas/cli/`
python -m schemas.write --check schemas    exits 1 and names the stale ones, if there are any
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NotRequired, get_args

from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter
from typing_extensions import TypedDict

from hpo_pilot.cli.output import JSON_VERSION
from hpo_pilot.hpc.batch_system import Allocation
from hpo_pilot.hpc.site_profile import SiteProfile
from hpo_pilot.report import documents, trial_documents
from hpo_pilot.report.documents import ProblemDocument
from hpo_pilot.report.trial_documents import CostDocument
from hpo_pilot.search import Scalar, Search
from hpo_pilot.server.queues import QueueFile
from hpo_pilot.store.invariants import BreachDocument

# --- payload files: the contract that payloads of phpo, iDDS and hpogrid keep too ---
#
# The runner travels to worker nodes alone. It follows these models without importing them.


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


# --- documents that only commands print ---


class SubmittedDocument(TypedDict):
    """A search that was registered; for a file with segments `segments` are its searches, and the number is 0."""

    id: int
    name: str
    state: str
    segments: NotRequired[list[dict[str, Any]]]


class FilesDocument(TypedDict):
    """Files that were written, by path."""

    files: list[str]


class ImportedDocument(TypedDict):
    """A search of another tool: as a search file says it, what was not carried over, and the file's text."""

    search: dict[str, Any]
    warnings: list[ProblemDocument]
    text: str


class LayoutDocument(TypedDict):
    """Processes of a plan, in the words of the layout 1 + points x folds x workers."""

    points: float
    folds: int
    workers: int
    gpus_per_worker: float
    processes: int
    gpus: float


class ChoiceDocument(TypedDict):
    """An allocation of a plan; `minutes` is null where the site has no batch system."""

    nodes: int
    minutes: int | None
    jobs_at_once: int


class PlannedBudgetDocument(TypedDict):
    """The limits of a plan's search, and the number of trials that they allow."""

    gpu_hours: float | None
    core_hours: float | None
    hours: float | None
    trials_within: int


class PlanDocument(TypedDict):
    """The estimated layout, time and cost of a search at a site."""

    search: str
    searches: int
    site: str
    batch_system: str
    queue: str | None
    layout: LayoutDocument
    trials: int
    jobs: int
    minutes_per_job: float
    minutes_given: bool
    allocation: ChoiceDocument
    submissions: int
    limits: dict[str, Any]
    generations: int
    hours: float
    node_hours: float
    cores_used: float | None
    gpus_used: float | None
    allocations_per_job: int
    cost: CostDocument
    budget: PlannedBudgetDocument
    advice: dict[str, Any] | None
    notes: list[str]
    launch: str | None
    script: str | None


class TokenDocument(TypedDict):
    """A token that was issued, but not itself; times are seconds since the epoch."""

    id: str
    name: str
    role: str
    vo: str
    issued: float
    expires: float
    revoked: bool


class SiteDocument(TypedDict):
    """A site profile with all defaults filled in, and its file; `schemas/site.json` has its other keys."""

    name: str
    file: str


# --- the files ---

#: The dialect of JSON Schema.
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: File in `schemas/` -> model and title.
_MODELS: dict[str, tuple[type[BaseModel], str]] = {
    "search.json": (Search, "hpo-pilot search file"),
    "payload_input.json": (PayloadInput, "hpo-pilot payload input"),
    "payload_output.json": (PayloadOutput, "hpo-pilot payload output"),
    "queues.json": (QueueFile, "hpo-pilot queue file"),
    "site.json": (SiteProfile, "hpo-pilot site profile"),
}


#: File in `schemas/cli/` -> type of the document, and the commands that print it with --json.
_PRINTED: dict[str, tuple[Any, str]] = {
    "validate.json": (documents.ExaminationDocument, "hpo-pilot validate"),
    "run.json": (documents.RunDocument, "hpo-pilot run"),
    "submit.json": (SubmittedDocument, "hpo-pilot submit"),
    "list.json": (list[documents.SearchDocument], "hpo-pilot list"),
    "search.json": (documents.SearchDocument, "hpo-pilot pause, resume, stop, extend, retry, try"),
    "status.json": (documents.StatusDocument, "hpo-pilot status"),
    "trials.json": (list[trial_documents.TrialDocument], "hpo-pilot trials; hpo-pilot best, with several objectives"),
    "trial.json": (trial_documents.TrialDocument, "hpo-pilot best, with one objective"),
    "ask.json": (documents.AskedDocument, "hpo-pilot ask"),
    "tell.json": (documents.ToldDocument, "hpo-pilot tell"),
    "note.json": (trial_documents.AnnotationDocument, "hpo-pilot note"),
    "log.json": (list[documents.EventDocument], "hpo-pilot log"),
    "fetch.json": (FilesDocument, "hpo-pilot fetch"),
    "doctor.json": (list[documents.FindingDocument], "hpo-pilot doctor"),
    "db-check.json": (list[BreachDocument], "hpo-pilot db check"),
    "import.json": (ImportedDocument, "hpo-pilot import"),
    "plan.json": (PlanDocument, "hpo-pilot plan"),
    "pilots-list.json": (list[Allocation], "hpo-pilot pilots list"),
    "sites.json": (list[SiteDocument], "hpo-pilot sites"),
    "site.json": (SiteDocument, "hpo-pilot sites show"),
    "token-list.json": (list[TokenDocument], "hpo-pilot token list"),
}


#: Part of the description of every document in `schemas/cli/`.
_RULE = (
    f"Version {JSON_VERSION}. Within a version keys may come, so take no offence at others; none goes or changes its "
    "meaning: where that has to be, the version grows. A document that is an object has it under `version`, a list has "
    "it in this schema's $id alone. Times are ISO 8601 in UTC, unless said otherwise."
)


def schema_files() -> list[str]:
    """Names of all schemas, relative to `schemas/`."""
    return [*_MODELS, *(f"cli/{name}" for name in _PRINTED)]


def schema_of(file: str) -> dict[str, Any]:
    """Returns the JSON Schema of a file, such as `search.json` or `cli/status.json`."""
    folder, _, name = file.rpartition("/")
    return _document_schema(name) if folder else _model_schema(name)


def _model_schema(file: str) -> dict[str, Any]:
    model, title = _MODELS[file]
    body = model.model_json_schema(by_alias=True)
    _tidy(body)
    body.pop("title", None)
    # A name, not an address: the schema is the same wherever it is kept.
    head = {"$schema": _DIALECT, "$id": f"urn:hpo-pilot:schema:{file.removesuffix('.json')}", "title": title}
    return {**head, **body}


def _document_schema(file: str) -> dict[str, Any]:
    kind, commands = _PRINTED[file]
    # Commands print all fields of a dataclass, those with defaults too.
    of_dataclass = is_dataclass(next(iter(get_args(kind)), None))
    config = ConfigDict(json_schema_serialization_defaults_required=True) if of_dataclass else None
    body = TypeAdapter(kind, config=config).json_schema(mode="serialization")
    _tidy(body)
    about = body.pop("description", "")
    body.pop("title", None)
    if body.get("type") == "object":
        body["properties"] = {"version": {"const": JSON_VERSION}, **body["properties"]}
        body["required"] = ["version", *body.get("required", [])]
    name = file.removesuffix(".json")
    return {
        "$schema": _DIALECT,
        "$id": f"urn:hpo-pilot:schema:cli-{name}:{JSON_VERSION}",
        "title": f"{commands}: what --json prints",
        "description": " ".join(part for part in (about, _RULE) if part),
        **body,
    }


def _tidy(schema: Any) -> None:
    """Adapts pydantic's output, in place, to what the reader of search files accepts and editors show."""
    if isinstance(schema, list):
        for item in schema:
            _tidy(item)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        if isinstance(properties.get("type"), dict) and "const" in properties["type"]:
            # The model has a default, for Python. In a file the key is required, because it selects the model.
            properties["type"].pop("default", None)
            schema["required"] = sorted({*schema.get("required", []), "type"})
        if isinstance(schema.get("description"), str):
            # The rest of a docstring is for programmers.
            schema["description"] = " ".join(schema["description"].split("\n\n")[0].split())
    schema.pop("discriminator", None)  # OpenAPI's, unknown to JSON Schema
    for value in schema.values():
        _tidy(value)


def write_schemas(folder: Path) -> None:
    """Writes every schema below `folder`."""
    for name in schema_files():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_text(name), encoding="utf-8")


def stale_schemas(folder: Path) -> list[Path]:
    """Returns the files below `folder` that are missing, differ from their source, or have no source."""
    expected = {folder / name: _text(name) for name in schema_files()}
    stale = [p for p, text in expected.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    return stale + sorted(set(folder.rglob("*.json")) - set(expected))


def _text(name: str) -> str:
    return json.dumps(schema_of(name), indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m schemas.write", description="The JSON Schemas.")
    parser.add_argument("folder", type=Path, help="where the schemas are")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a schema is stale")
    options = parser.parse_args(arguments)
    if not options.check:
        write_schemas(options.folder)
        return 0
    stale = stale_schemas(options.folder)
    for path in stale:
        sys.stderr.write(f"{path} differs from its model or type: run `make schemas`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
