"""What commands print with ``--json``, beside the documents of clients."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict

from hpo_pilot.client.cost_documents import CostDocument
from hpo_pilot.client.documents import ProblemDocument


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
