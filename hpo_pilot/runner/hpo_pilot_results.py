"""Collects what a payload leaves besides output.json: its declared outputs, a metadata file, a loss sent through iDDS.

hpo_pilot_runner.py loads this file only for payloads that have one of these. Standard library only, Python 3.6 syntax.
"""

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

ARCHIVE = "outputs.tar.gz"
TIMELINE = "horovod_timeline.json"
TIMELINE_KEPT = 32 * 1024 * 1024  # bytes kept from the beginning of the timeline, which grows with each training step
METADATA_KEPT = 256 * 1024  # bytes; with the runner's own part it stays below the 1 MB that PanDA accepts
PATIENCE = 120.0  # seconds to retry while the server does not answer
ANSWER = 30.0  # seconds to wait for one answer


def pack(names: "List[str]", files_in: "Callable[[str, List[str]], Iterator[str]]") -> "Tuple[List[str], str]":
    """Pack the declared outputs into one archive.

    Args:
        names: files and folders that the search declares.
        files_in: the runner's function.

    Returns:
        (the names that were packed, a message about the names that were not found).
    """
    import tarfile  # noqa: PLC0415  only with outputs

    missing = [name for name in names if not any(files_in(".", [name]))]
    found = [name for name in names if name not in missing]
    if TIMELINE in found:
        shorten(TIMELINE)
    with tarfile.open(ARCHIVE + ".new", "w:gz", compresslevel=3, dereference=True) as archive:
        for file in sorted(set(files_in(".", found))):
            archive.add(file, recursive=False)
    os.rename(ARCHIVE + ".new", ARCHIVE)
    return found, "declared outputs not found: " + ", ".join(missing) if missing else ""


def shorten(path: str) -> None:
    """Cut a timeline after its last complete event. Each event is one line; viewers need no closing bracket."""
    if os.path.getsize(path) > TIMELINE_KEPT:
        with open(path, "rb+") as file:
            file.truncate(file.read(TIMELINE_KEPT).rfind(b"\n") + 1)


def own_metadata(
    name: str, written: "Callable[[str, int], bytes]", number: "Callable[[Any], Optional[float]]"
) -> "Tuple[Dict[str, Any], str]":
    """Read the payload's own metadata file; NaN becomes null.

    Args:
        name: of the file.
        written: the runner's function that reads a file of the payload.
        number: the runner's function that checks a number.

    Returns:
        (the metadata, why it is not kept). One of the two is empty.
    """
    try:
        numbers = {"parse_constant": lambda _: None, "parse_float": lambda text: number(float(text))}  # type: Any
        own = json.loads(written(name, METADATA_KEPT).decode("utf-8-sig"), **numbers)
        if not isinstance(own, dict) or len(json.dumps(own)) > METADATA_KEPT:
            raise ValueError("no object of at most %g MB" % (METADATA_KEPT / 2.0**20))
        return own, ""
    except (ValueError, RecursionError) as error:
        return {}, "%s is not kept: %s" % (name, error)


def fetch_loss(result: str, metric: str) -> None:
    """Write the loss that the payload reported through iDDS's REST into the result file that it did not write.

    Nothing is written if the payload reported no loss. SystemExit if the server does not answer.
    """
    loss = reported_loss(os.environ["HPO_PILOT_IDDS_URL"], os.environ.get("PanDA_TaskID", "null"))  # noqa: SIM112
    if loss is not None:
        with open(result, "w") as file:
            json.dump({metric: loss}, file)


def reported_loss(url: str, task: str) -> "Any":
    """Return the loss of the one point at this address; None if none was reported."""
    import ssl  # noqa: PLC0415  only with iDDS
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    authority = os.environ.get("HPO_PILOT_IDDS_CA") or None
    context = ssl.create_default_context(cafile=authority) if url.startswith("https://") else None
    until, pause, trouble = time.monotonic() + PATIENCE, 0.5, "no time left"  # type: Any, float, Any
    while time.monotonic() < until:
        try:
            address = "%s/hpo/%s/null/null/null/1" % (url, task)  # null selects all: the address has only this point
            with urllib.request.urlopen(address, timeout=ANSWER, context=context) as answer:  # noqa: S310  the pilot's
                found = json.loads(answer.read().decode())
            return found[0]["loss"] if found else None
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return None  # the server has no such point, or this attempt no longer runs it
            trouble = error
        except (OSError, ValueError) as error:
            trouble = error
        time.sleep(pause)
        pause = min(2 * pause, 10.0)
    # The server may have a reported loss: a verdict without it would be wrong.
    sys.exit("hpo_pilot_runner: cannot ask the server for the payload's loss: %s" % trouble)
