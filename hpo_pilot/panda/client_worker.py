"""The process that holds panda-client: reads calls as JSON lines, writes their results as JSON lines.

panda-client fixes its URLs at import, prints, and calls ``sys.exit`` on some failures: here it can do all that. Run by
`hpo_pilot.panda.client_process` as ``python -m hpo_pilot.panda.client_worker``; ends at end of input.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

#: The functions of pandaclient.Client that may be called; a call names one of these, never anything else.
CALLS = frozenset(
    {
        "insertTaskParams",
        "getTaskStatus",
        "getUserJobMetadata",
        "get_job_descriptions",
        "getJobIDsJediTasksInTimeRange",
        "get_tasks_detailed_info_since",
        "killTask",
        "putFile",
        "hello",
    }
)


def main() -> None:
    """Serves calls until the other end closes."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # What panda-client prints must not get between the answers.
    os.dup2(2, 1)
    from pandaclient import Client  # noqa: PLC0415 - after stdout is safe

    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(_call(Client, request), default=str) + "\n")


def _call(client: Any, request: dict[str, Any]) -> dict[str, Any]:
    name = request["call"]
    if name not in CALLS:
        return {"error": f"{name} is not one of panda-client's calls that we use"}
    try:
        return {"result": getattr(client, name)(*request["args"])}
    except SystemExit as error:
        return {"error": f"panda-client gave up with status {error.code}: see the log of this process"}
    except Exception as error:  # noqa: BLE001 - whatever panda-client raises is an answer for the other end
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
