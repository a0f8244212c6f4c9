"""Makes recordings comparable: times, uids, ports, paths, hosts, versions and hashes get fixed names."""

from __future__ import annotations

import getpass
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpo_pilot import __version__

REPOSITORY = Path(__file__).parents[2]

_PATTERNS = [
    (re.compile(r"\d{4}-\d\d-\d\d[T +]\d\d:\d\d(:\d\d)?([.,]\d+)?(\+00:00|Z| ?UTC)?"), "<time>"),
    (re.compile(r"\d\d/\d\d/\d{4}, \d\d:\d\d:\d\d"), "<time>"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), "<address>"),
    (re.compile(r"(sources|search|jobO)\.[0-9a-f-]{32,64}"), r"\1.<hash>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<guid>"),
    (re.compile(r"--task( |%20)[\w=%-]{40,}"), r"--task\1<table>"),
    (re.compile(r"\b[0-9a-f]{40,64}\b"), "<hash>"),
]
#: A search's random uid, in the places where it stands.
_UID = re.compile(r"(?<=\.)[0-9a-f]{8}(?=\.g\d|$|[\"'/ ])|(?<=/)[0-9a-f]{8}(?=/t\d+f\d)")
#: Figures that follow from the clock of whoever answers.
CLOCK = frozenset(
    {
        *("age", "created", "ended", "eta", "expires", "since", "started", "submitted", "uptime", "wait", "waited"),
        *("hours_used", "job_seconds", "core_hours", "gpu_hours", "per_core_hour", "per_gpu_hour", "jobDuration"),
    }
)
#: Keys whose values are random.
_RANDOM = ("uid", "hpoPilotPoints")
_EPOCH = range(1_500_000_000, 2_500_000_000)


class Neutral:
    """Replaces what differs from run to run and from machine to machine.

    Attributes:
        names: text to replace first, longest first: folders, addresses, uids.
    """

    def __init__(self, names: Mapping[str, str] | None = None, *users: str) -> None:
        known = {
            str(REPOSITORY): "<repository>",
            sys.prefix: "<environment>",
            str(Path.home()): "<home>",
            socket.getfqdn(): "<host>",
            socket.gethostname(): "<host>",
            **(names or {}),
        }
        self.names = dict(sorted(known.items(), key=lambda item: -len(item[0])))
        user = "|".join(map(re.escape, {getpass.getuser(), *users}))
        self._user = re.compile(rf"(?<![\w/<-])({user})(?![\w>-])|(?<=/)({user})(?=/)")

    def text(self, text: str) -> str:
        for name, other in self.names.items():
            # A short name, as a host may have, is one only as a word.
            text = text.replace(name, other) if len(name) > 8 else re.sub(rf"\b{re.escape(name)}\b", other, text)
        for pattern, other in _PATTERNS:
            text = pattern.sub(other, text)
        text = _UID.sub("<uid>", text).replace(f"hpo-pilot/{__version__}", "hpo-pilot/<version>")
        return self._user.sub("<user>", text)

    def __call__(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return "<uid>" if key in _RANDOM else self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self(item, str(name)) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self(item, key) for item in value]
        if isinstance(value, float | int) and not isinstance(value, bool):
            return "<clock>" if key in CLOCK or int_of(value) in _EPOCH else value
        return value


def int_of(value: float) -> int:
    try:
        return int(value)
    except (OverflowError, ValueError):
        return 0
