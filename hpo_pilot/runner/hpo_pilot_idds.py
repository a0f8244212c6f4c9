"""Asks the server for the loss that a payload reported through iDDS's REST instead of writing output.json.

Travels beside hpo_pilot_runner.py, which starts it where it is needed. Standard library, Python 3.6 syntax.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

PATIENCE = 120.0  # seconds that the server may be away
ANSWER = 30.0  # seconds that it may take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def fetch_loss(result: str, metric: str) -> None:
    """Write what the payload reported of its point as the result that it did not write; nothing, where it did neither.

    SystemExit where the server is away.
    """
    loss = reported_loss(os.environ["HPO_PILOT_IDDS_URL"], os.environ.get("PanDA_TaskID", "null"))  # noqa: SIM112
    if loss is not None:
        with open(result, "w") as file:
            json.dump({metric: loss}, file)


def reported_loss(url: str, task: str) -> "Any":
    """The loss of the one point at this address; None: none was reported."""
    authority = os.environ.get("HPO_PILOT_IDDS_CA") or None
    context = ssl.create_default_context(cafile=authority) if url.startswith("https://") else None
    until, pause, trouble = time.monotonic() + PATIENCE, 0.5, "no time left"  # type: Any, float, Any
    while time.monotonic() < until:
        try:
            address = "%s/hpo/%s/null/null/null/1" % (url, task)  # all of null: there is only this point
            with urllib.request.urlopen(address, timeout=ANSWER, context=context) as answer:  # noqa: S310  # the pilot's
                found = json.loads(answer.read().decode())
            return found[0]["loss"] if found else None
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return None  # the server has no such point, or this job is no longer the one that runs it
            trouble = error
        except (OSError, ValueError) as error:
            trouble = error
        time.sleep(pause)
        pause = min(2 * pause, 10.0)
    # What the payload reported is kept there: to say that there is none would be wrong.
    sys.exit("hpo_pilot_runner: cannot ask the server for the payload's loss: %s" % trouble)
