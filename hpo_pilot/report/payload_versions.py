"""The software that payloads say they used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpo_pilot.figures.failures import shortened
from hpo_pilot.search import Trial

#: Names and different versions of one name that are shown, and characters of each.
_NAMES, _DIFFERENT, _LENGTH = 40, 5, 60


def payload_versions(trials: Sequence[Trial]) -> dict[str, str]:
    """Software by name, with all versions that were reported, in the order of the trials.

    A payload reports it as a mapping under ``versions`` in its metadata (`payload.file_names.metadata`), for example
    ``{"versions": {"torch": "2.9.1"}}``. Whatever else stands there is left out.
    """
    found: dict[str, list[str]] = {}
    for trial in trials:
        for fold in trial.folds:
            reported = (fold.metadata or {}).get("versions")
            for name, version in reported.items() if isinstance(reported, Mapping) else ():
                if isinstance(version, str | int | float) and len(found) < _NAMES:
                    known = found.setdefault(shortened(str(name), _LENGTH), [])
                    if (text := shortened(str(version), _LENGTH)) not in known:
                        known.append(text)
    return {name: _listed(versions) for name, versions in found.items()}


def _listed(versions: Sequence[str]) -> str:
    more = len(versions) - _DIFFERENT
    return ", ".join(versions[:_DIFFERENT]) + (f" and {more} more" if more > 0 else "")
