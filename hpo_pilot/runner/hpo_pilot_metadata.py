"""Keeps what a payload puts into a metadata file of its own: packed beside hpo_pilot_runner.py where it has one.

Standard library alone, Python 3.6 syntax.
"""

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple

METADATA_KEPT = 256 * 1024  # bytes; the runner's own part then still is below the 1 MB that PanDA takes


def own_metadata(
    name: str, written: "Callable[[str, int], bytes]", number: "Callable[[Any], Optional[float]]"
) -> "Tuple[Dict[str, Any], str]":
    """What the file holds, without NaN; or nothing, and why that is not kept. The functions are the runner's."""
    try:
        numbers = {"parse_constant": lambda _: None, "parse_float": lambda text: number(float(text))}  # type: Any
        own = json.loads(written(name, METADATA_KEPT).decode("utf-8-sig"), **numbers)
        if not isinstance(own, dict) or len(json.dumps(own)) > METADATA_KEPT:
            raise ValueError("no object of at most %g MB" % (METADATA_KEPT / 2.0**20))
        return own, ""
    except (ValueError, RecursionError) as error:
        return {}, "%s is not kept: %s" % (name, error)
