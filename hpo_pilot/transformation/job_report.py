"""jobReport.json, as the analysis transformations write it: what a server keeps as a job's metadata."""

import json
import os
from typing import Dict

REPORT, USER_METADATA = "jobReport.json", "userJobMetadata.json"
LIMIT = 1000000  # bytes of metadata that a server takes


def job_report(folder: str, exit_code: int = 0) -> str:
    """The text of a job's report: its exit code, what the payload put into a report of its own, and its metadata.

    Args:
        folder: where the command ran.
        exit_code: of the command.
    """
    metadata = _user_metadata(folder)
    report = _own_report(folder)
    report["exitCode"] = exit_code
    text = json.dumps(report)
    # As text: it is JSON already, and decoding and encoding it again is most of the work for a large one.
    return '%s, "user_job_metadata": %s}' % (text[:-1], metadata) if metadata else text


def has_verdict(folder: str) -> bool:
    """Whether the payload left metadata; then it has said itself how it went."""
    return os.path.isfile(os.path.join(folder, USER_METADATA))


def _user_metadata(folder: str) -> str:
    path = os.path.join(folder, USER_METADATA)
    if not os.path.isfile(path):
        return ""
    try:
        if os.path.getsize(path) >= LIMIT:
            raise ValueError("%s has %d bytes, a server takes %d" % (USER_METADATA, os.path.getsize(path), LIMIT))
        with open(path, encoding="utf-8") as file:
            text = file.read()
        json.loads(text)
        return text
    except (OSError, ValueError, RecursionError) as error:
        return json.dumps({"pilot_error": str(error)})


def _own_report(folder: str) -> Dict[str, object]:
    path = os.path.join(folder, REPORT)
    if os.path.isfile(path) and os.path.getsize(path) < LIMIT:
        try:
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
            if isinstance(report, dict):
                report.pop("user_job_metadata", None)
                return report
        except (OSError, ValueError, RecursionError) as error:
            return {"exitMsg": "%s of the payload cannot be read: %s" % (REPORT, error)}
    return {}
