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
        gpus: that it needs on its node.
        progress: the file to which the payload appends the values that it reports while it runs.
        metric: the name of the value there.
        report_seconds: how often new values are wanted, in seconds; 0: with the usual heartbeats.
    """

    image: str = ""
    gpus: int = 0
    progress: str = "progress.jsonl"
    metric: str = "value"
    report_seconds: float = 0.0

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
            return cls(
                str(document.get("container") or ""),
                int(document.get("gpus_per_node") or 0),
                os.path.basename(str(names.get("progress") or cls().progress)),
                str(document.get("progress_metric") or document.get("metric") or cls().metric),
                max(0.0, float(document.get("report_seconds") or 0.0)),
            )
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise TransformationFailure(ExitCode.BAD_SANDBOX, "%s: %s" % (NAME, error)) from error
