"""The JSON Schemas in `schemas/cli/`, generated from the types of the documents that `--json` prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from hpo_pilot.cli.output import JSON_VERSION
from hpo_pilot.cli.schemas import DIALECT, SchemaFiles, tidy
from hpo_pilot.report import documents
from hpo_pilot.report.documents import CostDocument, ProblemDocument


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
    """The limits of a plan's search, and how many trials they allow."""

    gpu_hours: float | None
    core_hours: float | None
    hours: float | None
    trials_within: int


class PlanDocument(TypedDict):
    """What a search would take at a site."""

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
    node_hours_used: float
    cost: CostDocument
    budget: PlannedBudgetDocument
    advice: dict[str, Any] | None
    script: str | None


class AllocationDocument(TypedDict):
    """An allocation of a batch system with a pilot in it; times are seconds since the epoch."""

    name: str
    site: str
    system: str
    nodes: int
    minutes: int
    server: str
    panda_queue: str
    queue: str | None
    folder: str
    kept: bool
    submitted: float
    job_id: str | None
    state: str | None
    reason: str
    started: float | None
    changed: float
    missing: float | None


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


# The JSON Schemas in `schemas/cli/`, of what commands print with ``--json``, generated from the documents' types.
#
# python -m hpo_pilot.cli.json_schema schemas/cli            writes them
# python -m hpo_pilot.cli.json_schema --check schemas/cli    exits 1 and names those that are stale, if there are any

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
    "submit.json": (SubmittedDocument, "hpo-pilot submit"),
    "list.json": (list[documents.SearchDocument], "hpo-pilot list"),
    "search.json": (documents.SearchDocument, "hpo-pilot pause, resume, stop, extend, retry, try"),
    "status.json": (documents.StatusDocument, "hpo-pilot status"),
    "trials.json": (list[documents.TrialDocument], "hpo-pilot trials; hpo-pilot best, with several objectives"),
    "trial.json": (documents.TrialDocument, "hpo-pilot best, with one objective"),
    "log.json": (list[documents.EventDocument], "hpo-pilot log"),
    "fetch.json": (FilesDocument, "hpo-pilot fetch"),
    "doctor.json": (list[documents.FindingDocument], "hpo-pilot doctor"),
    "import.json": (ImportedDocument, "hpo-pilot import"),
    "plan.json": (PlanDocument, "hpo-pilot plan"),
    "pilots-list.json": (list[AllocationDocument], "hpo-pilot pilots list"),
    "sites.json": (list[SiteDocument], "hpo-pilot sites"),
    "site.json": (SiteDocument, "hpo-pilot sites show"),
    "token-list.json": (list[TokenDocument], "hpo-pilot token list"),
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
