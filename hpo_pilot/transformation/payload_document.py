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
    """

    image: str = ""
    gpus: int = 0

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
            return cls(str(document.get("container") or ""), int(document.get("gpus_per_node") or 0))
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise TransformationFailure(ExitCode.BAD_SANDBOX, "%s: %s" % (NAME, error)) from error
