"""The payload's inputs, in the job's folder before its command starts.

What is fetched is kept in a cache that many jobs share, and each job gets links to it. What is a path already is linked
to. The names of all of them are left in a file for the payload runner, which lists them for the payload.
"""

import glob
import json
import os
import shutil
import time
from typing import Callable, List, Mapping, Sequence, Tuple

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure
from hpo_pilot.transformation.input_cache import CacheEntry, InputCache
from hpo_pilot.transformation.input_fetch import Limits, fetch
from hpo_pilot.transformation.input_source import InputKind, InputSource, parse_source
from hpo_pilot.transformation.payload_document import NAME as PAYLOAD_DOCUMENT

#: Names of the inputs in the job's folder, in order.
STAGED_FILE = "hpo_pilot_inputs.json"
#: Where the payload's files are in a sandbox whose jobs run several points; else they are beside the document.
_SERIES_FOLDER = "payload"

#: Another pilot's place for what is fetched; default: the job's own folder, so that each job fetches anew.
CACHE_VARIABLE = "HPO_PILOT_INPUT_CACHE"
SIZE_LIMIT = 100000 << 20  # bytes of one input, and of all that are kept
PATIENCE = 3600.0  # seconds that one input may take
_FRESH = 600.0  # seconds during which a file of the web is taken for unchanged


def _never() -> bool:
    return False


class StageIn:
    """Brings inputs; for any number of jobs side by side."""

    def __init__(self, cache: str, limit: int = SIZE_LIMIT, stop: Callable[[], bool] = _never) -> None:
        """Prepares.

        Args:
            cache: folder for what is fetched; empty: the job's own.
            limit: bytes of one input, and of all that the cache keeps.
            stop: says whether to give up now.
        """
        self._cache, self._limit, self._stop = cache, limit, stop

    def bring(self, work: str, brought: Sequence[str] = ()) -> List[str]:
        """Puts what the payload's document in `work` names there, and lists it for the payload runner.

        Args:
            work: a job's folder with its sandbox; where its document names no inputs, nothing happens.
            brought: names of those that a pilot has put there: then it is the one that brings datasets.

        Returns:
            Files and folders elsewhere to which links lead: a container must be given them.

        Raises:
            TransformationFailure: one does not come; the message says what to do.
            OSError: the disk.
        """
        wanted = wanted_inputs(work)
        if not wanted:
            return []
        cache = InputCache(self._cache or os.path.join(work, ".hpo_pilot_inputs"), self._limit)
        names, elsewhere = list(brought), []  # type: List[str], List[str]
        for text in wanted:
            try:
                source = parse_source(text)
            except ValueError as error:
                raise TransformationFailure(ExitCode.NO_INPUT, "the input %s: %s" % (text, error)) from error
            if source.kind is InputKind.RUCIO and brought:
                continue
            if source.kind is InputKind.PATH:
                for path, name in _paths(source):
                    _place(path, name, work, names, os.symlink)
                    elsewhere.append(path)
            else:
                self._bring_cached(source, cache, work, names)
        with open(os.path.join(work, STAGED_FILE), "w") as file:
            json.dump(names, file)
        return elsewhere

    def _bring_cached(self, source: InputSource, cache: InputCache, work: str, names: List[str]) -> None:
        limits = Limits(self._limit, time.monotonic() + PATIENCE, self._stop)
        with cache.held(source.where, limits.until, self._stop) as entry:
            fetched = self._update(source, entry, limits)
            for path in entry.files():
                _place(path, os.path.basename(path), work, names, _link_or_copy)
        if fetched:
            cache.make_room()

    @staticmethod
    def _update(source: InputSource, entry: CacheEntry, limits: Limits) -> bool:
        """Makes the entry there and up to date; whether anything was fetched."""
        known = entry.meta
        may_change = source.kind is InputKind.HTTP
        if known is not None and not (may_change and time.time() - known.get("checked", 0.0) > _FRESH):
            return False
        try:
            meta = fetch(source, entry.begin(), known, limits)
            if meta is None:
                entry.note(known or {})
                return False
            entry.publish(dict(meta, source=source.where))
            return True
        except TransformationFailure as failure:
            if known is None or limits.stop():
                raise
            print("WARNING : %s; the one that was fetched before is taken" % failure)
            return False
        finally:
            entry.drop_new()


def wanted_inputs(work: str) -> List[str]:
    """The inputs that the payload's document in a job's folder names.

    Raises:
        TransformationFailure: it makes no sense.
    """
    path = os.path.join(work, PAYLOAD_DOCUMENT)
    if not os.path.isfile(path):
        return []
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        found = document.get("inputs") or []
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise ValueError("inputs is no list of texts")
    except (ValueError, AttributeError) as error:
        raise TransformationFailure(ExitCode.BAD_SANDBOX, "%s: %s" % (PAYLOAD_DOCUMENT, error)) from error
    return found


def _paths(source: InputSource) -> List[Tuple[str, str]]:
    """The files or folders that a path or pattern names, where they really are, with their names."""
    found = sorted(glob.glob(source.where)) if source.name is None else [source.where]
    found = [path for path in found if os.path.exists(path)]
    if not found:
        what = "no file matches it" if source.name is None else "it is not there"
        raise TransformationFailure(
            ExitCode.NO_INPUT,
            "the input %s: %s on %s: put it where every worker sees it, or name it by a URL"
            % (source.where, what, os.uname().nodename),
        )
    return [(os.path.realpath(path), os.path.basename(os.path.normpath(path))) for path in found]


def _place(path: str, name: str, work: str, names: List[str], link: Callable[[str, str], None]) -> None:
    taken = [os.path.join(work, name), os.path.join(work, _SERIES_FOLDER, name)]
    if name in names or any(map(os.path.lexists, taken)):
        whose = "two inputs have" if name in names else "the payload's files and an input have"
        raise TransformationFailure(ExitCode.NO_INPUT, "%s the name %s: rename one of the two" % (whose, name))
    link(path, taken[0])
    names.append(name)


def _link_or_copy(path: str, target: str) -> None:
    try:
        os.link(path, target)
    except OSError:  # another disk, or none with hard links
        shutil.copy(path, target)


def from_environment(environment: Mapping[str, str]) -> StageIn:
    """For a pilot that is not ours."""
    return StageIn(environment.get(CACHE_VARIABLE, ""))
