"""What the payload's document in a sandbox says of the job around it."""

import json
import os
from typing import NamedTuple

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure

NAME = "hpo_pilot_payload.json"


class PayloadDocument(NamedTuple):
    """The part of `hpo_pilot_payload.json` that concerns pilots; the runner reads the rest.

    Attributes:
        image: of its container; empty: none.
        gpus: that it needs on each of its nodes.
        progress: the file to which the payload appends the values that it reports while it runs.
        metric: the name of the value there.
        report_seconds: how often new values are wanted, in seconds; 0: with the usual heartbeats.
        nodes: how many its job needs.
        ranks_per_node: processes that a launcher starts on each of them; 0: the command is started once, without one.
        minutes: how long its job may take; 0: that is not said.
        python: the interpreter that stands for `python` in its command; empty: the one in PATH.
    """

    image: str = ""
    gpus: int = 0
    progress: str = "progress.jsonl"
    metric: str = "value"
    report_seconds: float = 0.0
    nodes: int = 1
    ranks_per_node: int = 0
    minutes: float = 0.0
    python: str = ""

    @classmethod
    def read(cls, work: str) -> "PayloadDocument":
        """Reads it from an unpacked sandbox; the sandboxes of others have none.

        Raises:
            TransformationFailure: it makes no sense.
        """
        path = os.path.join(work, NAME)
        if not os.path.isfile(path):
            return cls()
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            names = document.get("file_names") or {}
            nodes, gpus = max(1, int(document.get("nodes") or 1)), int(document.get("gpus_per_node") or 0)
            # Earlier versions did not say it: as the search file has it that says no more.
            ranks = document.get("ranks_per_node", (gpus or 1) if nodes > 1 else 0)
            return cls(
                str(document.get("container") or ""),
                gpus,
                os.path.basename(str(names.get("progress") or cls().progress)),
                str(document.get("progress_metric") or document.get("metric") or cls().metric),
                max(0.0, float(document.get("report_seconds") or 0.0)),
                nodes,
                max(0, int(ranks or 0)),
                max(0.0, float(document.get("minutes") or 0.0)),
                str(document.get("python") or ""),
            )
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise TransformationFailure(ExitCode.BAD_SANDBOX, "%s: %s" % (NAME, error)) from error
