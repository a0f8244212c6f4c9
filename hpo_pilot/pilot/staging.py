"""Copies files that many jobs of an allocation read to the disks of the nodes, once.

Before a job starts, missing files are copied to its own nodes: by one step of the site's launcher, with one process on
each of these nodes, inside the job's own share of them. So no copy waits for the cores of other jobs.

The alternative, a copy to all nodes of the allocation at the first use, reads as much from shared storage, because all
nodes get jobs at once. But the first job would wait for the slowest of 4,608 nodes instead of six, a broken node would
affect all jobs, nodes without jobs of that search would copy in vain, and the step would find no free cores. A copy on
demand costs one more step for each job that finds a file missing: one for each job of the first round, later none.

Slurm's sbcast would read shared storage once and distribute over a tree of nodes. But it sends one file to all nodes of
the batch job (22.05 has no list of nodes), reports a full disk only when it is full, and leaves incomplete files under
their final name. On two slurmd of one machine it took 1.5 to 2.0 s for 256 MB; a step with cp took 0.5 s, 0.1 s of it
for the step. Slurm's own page says that parallel file systems may be faster.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hpo_pilot.errors import InputError
from hpo_pilot.files import write_whole
from hpo_pilot.hpc.launchers import Placement, site_variables
from hpo_pilot.pilot.execution import InContainer
from hpo_pilot.pilot.job import GivenBack, Job, PilotErrorCode
from hpo_pilot.pilot.machine import Assignment
from hpo_pilot.pilot.report import Starting
from hpo_pilot.pilot.settings import Site
from hpo_pilot.transformation.container import choose_runtime
from hpo_pilot.transformation.job import METADATA_LIMIT, PAYLOAD_DOCUMENT, USER_METADATA, without_secrets
from hpo_pilot.transformation.stage_in import STAGED_FILE
from hpo_pilot.transformation.transformation import Prepared

_MOST_FILES = 500_000  # of a folder


class GivenUp(Exception):
    """The job is not wanted any more."""


class TooLarge(Exception):
    """The file is not copied; the message says why."""


@dataclass(frozen=True)
class Source:
    """One file, or a folder packed as one archive.

    Attributes:
        path: on shared storage.
        name: of the copy.
        key: identifies the contents; it ends in `-SIZE`.
        size: of the copy, in bytes.
        mtime_ns: time of the file's last change; shows a change during the copy.
        archive: of a folder; None: it is a file.
    """

    path: Path
    name: str
    key: str
    size: int
    mtime_ns: int
    archive: Path | None = None

    @property
    def wanted(self) -> dict[str, Any]:
        """Its entry in a request to hpo_pilot_stage.py."""
        source = str(self.archive or self.path)
        said = {"key": self.key, "name": self.name, "source": source, "size": self.size}
        return {**said, "mtime_ns": self.mtime_ns, "is_archive": self.archive is not None}


class Sources:
    """The sources of one allocation.

    A folder is packed into one archive when it is first needed, because shared storage could not serve a thousand nodes
    that open each file of an image. Later changes of the folder are not copied.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """Prepares.

        Args:
            folder: an existing folder for archives.
            limit: largest size of a source in bytes.
        """
        self._folder, self._limit = folder, limit
        self._lock = threading.Lock()
        self._packing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._sizes: dict[str, int] = {}
        self._refused: dict[str, str] = {}

    def find(self, path: Path, is_over: Callable[[], bool]) -> Source:
        """Returns a file or folder, ready to be copied.

        Args:
            path: of the file or folder; links are followed.
            is_over: returns whether it is not needed any more.

        Raises:
            TooLarge: it is too large to be copied.
            OSError: it cannot be read or packed.
            GivenUp: it is not needed any more.
        """
        name, path = path.name, Path(os.path.realpath(path))
        about = path.stat()
        mark = f"{about.st_dev}:{about.st_ino}:{about.st_mtime_ns}:"
        if not path.is_dir():
            if about.st_size > self._limit:
                raise TooLarge(f"it has {about.st_size >> 20} MB, more than --staging-mb")
            return Source(path, name, _key(f"{mark}{about.st_size}", about.st_size), about.st_size, about.st_mtime_ns)
        archive = self._folder / f"{_digest(mark)}.tar"
        with self._lock:
            packing = self._packing[mark]
        with packing:
            if mark in self._refused:
                raise TooLarge(self._refused[mark])
            try:
                if mark not in self._sizes:
                    check_size(path, self._limit)
                    self._sizes[mark] = _pack(path, archive, is_over)
            except (TooLarge, OSError) as error:
                self._refused[mark] = str(error)  # later jobs need not check again
                raise
            return Source(path, name, _key(mark, self._sizes[mark]), self._sizes[mark], about.st_mtime_ns, archive)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _key(text: str, size: int) -> str:
    return f"{_digest(text)}-{size}"


def check_size(folder: Path, limit: int) -> None:
    """Checks the size of a folder. It stops as soon as a limit is exceeded, because the folder may be very large.

    Raises:
        TooLarge: the folder is too large, or has too many files.
    """
    size = count = 0
    for where, _, names in os.walk(folder):
        for name in names:
            size += Path(where, name).lstat().st_size
        count += len(names)
        if size > limit:
            raise TooLarge(f"it has more than --staging-mb, {limit >> 20} MB")
        if count > _MOST_FILES:
            raise TooLarge(f"it has more than {_MOST_FILES} files")


def _pack(folder: Path, archive: Path, is_over: Callable[[], bool]) -> int:
    """Packs a folder; returns the size of its files in bytes. Pipes, sockets and devices are left out."""
    size = 0

    def taken(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal size
        if is_over():
            raise GivenUp
        size += info.size
        return info if info.isreg() or info.isdir() or info.issym() or info.islnk() else None

    part = archive.with_suffix(".part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as packed:
            packed.add(folder, "", filter=taken)
        part.rename(archive)
    finally:
        part.unlink(missing_ok=True)
    return size


#: A node and the key of a source.
Pair = tuple[str, str]

_TRIES = 2  # failures after which the shared original is used for good
_COPY_POLL_SECONDS = 0.5  # seconds between checks whether the waiting job is still wanted


class NodeCopies:
    """Finished copies, and copies in progress, each made by one job. Any thread may call any method."""

    def __init__(self) -> None:
        self._paths: dict[Pair, str] = {}
        self._on_their_way: set[Pair] = set()
        self._failures: Counter[Pair] = Counter()
        self._changed = threading.Condition()

    def take(self, pairs: Iterable[Pair]) -> set[Pair]:
        """Returns the pairs that the caller must copy and then `settle`; the others exist, are in progress, or failed.

        A caller takes pairs once and copies them before it waits for copies of other jobs, so there is no deadlock.
        """
        with self._changed:
            mine = {
                pair
                for pair in pairs
                if pair not in self._paths and pair not in self._on_their_way and self._failures[pair] < _TRIES
            }
            self._on_their_way |= mine
            return mine

    def settle(self, pairs: Collection[Pair], paths: Mapping[Pair, str], hopeless: Collection[Pair] = ()) -> None:
        """Stores the result of the pairs that were taken.

        Args:
            pairs: the pairs that were taken.
            paths: of the successful copies.
            hopeless: pairs that must not be tried again.
        """
        with self._changed:
            self._on_their_way -= set(pairs)
            for pair in pairs:
                if pair in paths:
                    self._paths[pair] = paths[pair]
                else:
                    self._failures[pair] += _TRIES if pair in hopeless else 1
            self._changed.notify_all()

    def wait(self, pairs: Collection[Pair], is_over: Callable[[], bool]) -> None:
        """Waits until none of the pairs is being copied, or the job is not wanted any more."""
        with self._changed:
            while not self._on_their_way.isdisjoint(pairs) and not is_over():
                self._changed.wait(_COPY_POLL_SECONDS)

    def paths(self, nodes: Collection[str], key: str) -> set[str]:
        """Returns the different paths of the copies on these nodes; empty if a node has no copy."""
        with self._changed:
            found = [self._paths.get((node, key), "") for node in nodes]
        return set(found) if all(found) else set()

    def nodes(self) -> set[str]:
        """Returns the nodes that have a copy or a part of one."""
        with self._changed:
            return {node for node, _ in [*self._paths, *self._failures, *self._on_their_way]}


log = logging.getLogger(__name__)

#: Metric of jobs with files to stage: seconds that the job waited for the copies; about 0 if they existed.
STAGE_IN_SECONDS = "stage_in_seconds"


@dataclass(frozen=True)
class Staged:
    """The copies that a job uses on its nodes' own disks.

    Attributes:
        seconds: that staging took; None: there was nothing to stage.
        image: name of the staged image in the job; empty: the image is not staged.
        image_copy: path of the image on the nodes.
        folders: on the nodes, with files that the job's folder links to.
    """

    seconds: float | None = None
    image: str = ""
    image_copy: str = ""
    folders: tuple[Path, ...] = ()

    def words(self, words: Sequence[str]) -> list[str]:
        """Returns the words of a container runtime with the image replaced by its copy."""
        if not self.image:
            return list(words)
        image = self.image.rstrip("/")
        return [self.image_copy + word[len(image) :] if _is_of(word, image) else word for word in words]

    def beside(self, prepared: Prepared) -> Prepared:
        """Returns the job with the staged folders, which its container must mount."""
        elsewhere = [*prepared.elsewhere, *map(str, self.folders)]
        return Prepared(prepared.folder, prepared.argv, prepared.script, elsewhere)


#: The value for a job without files to stage.
NOTHING_STAGED = Staged()


def _is_of(word: str, image: str) -> bool:
    """Returns whether a word is the image, a path in it, or the image with options such as podman's `IMAGE:O`."""
    return word.startswith(image) and word[len(image) :][:1] in ("", "/", ":")


def note_stage_in(folder: Path, seconds: float) -> None:
    """Adds the waiting time to the verdict in a job's metadata, or to the verdict on its first point.

    The pilot does this because the runner does not know of the staging.

    Args:
        folder: where the job ran; nothing happens if there is no verdict of our runner.
        seconds: that the job waited for copies.
    """
    path = folder / USER_METADATA
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        verdict = said["hpo_pilot"]
        first = verdict["members"][0] if "members" in verdict else verdict
        first["metrics"] = {**(first.get("metrics") or {}), STAGE_IN_SECONDS: round(seconds, 3)}
        text = json.dumps(said)
        if len(text) < METADATA_LIMIT:
            write_whole(path, text)
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        log.warning("%s does not tell of its staging: %r", path, error)


_SMALL = 1 << 20  # bytes; smaller files are read from shared storage as fast as a step starts


@dataclass(frozen=True)
class Wanted:
    """One file to stage; `link`: its link in the job's folder; None: it is the image."""

    source: Source
    link: Path | None


class WantedFiles:
    """The files to stage for one job."""

    def __init__(self, sources: Sources, is_over: Callable[[], bool], remark: Callable[[str], None]) -> None:
        """Prepares; the `add_…` methods find the files.

        Args:
            sources: of the allocation.
            is_over: returns whether the job is not wanted any more.
            remark: logs why a file is not staged.
        """
        self._sources, self._is_over, self._remark = sources, is_over, remark
        self.found: list[Wanted] = []

    def add_image(self, container: InContainer, root: Path) -> None:
        """Adds the job's image if it is a file or folder that can be copied. `root`: the job's folder.

        Raises:
            TransformationFailure: the image cannot be run here.
        """
        path = Path(container.image)
        runtime = choose_runtime(container.runtime, container.image)
        if not path.is_absolute() or not path.exists() or path.resolve() == Path("/"):
            return  # an image of a registry, or none
        if runtime.makes_mount_points(container.image, [root]):
            self._remark(f"{path} is not staged: this {runtime.name} makes folders in the image for each job")
            return
        self._add(path, None)

    def add_inputs(self, root: Path, folder: Path) -> None:
        """Adds inputs that the job shares with others. `folder`: where the job runs, below `root`."""
        mine = os.path.realpath(root)
        for link in _listed(folder):
            if link.is_symlink():
                is_shared = not Path(os.path.realpath(link)).is_relative_to(mine)
            else:
                is_shared = link.is_file() and link.stat().st_nlink > 1
            if is_shared:
                self._add(link, link)

    def add_large(self, root: Path, folder: Path, large: Sequence[Path]) -> None:
        """Adds large files of the sandbox that the payload does not write."""
        written = _written(folder)
        for link in large:
            if written.isdisjoint(link.relative_to(root).parts):
                self._add(link, link)

    def _add(self, path: Path, link: Path | None) -> None:
        try:
            source = self._sources.find(path, self._is_over)
        except (OSError, TooLarge) as error:
            self._remark(f"{os.path.realpath(path)} is not staged: {error}")
            return
        if source.size >= _SMALL:
            self.found.append(Wanted(source, link))


def _listed(folder: Path) -> list[Path]:
    """Returns the paths of a job's inputs."""
    try:
        names = json.loads((folder / STAGED_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [folder / str(name) for name in names]


def _written(folder: Path) -> set[str]:
    """Returns the names of files that the payload writes."""
    try:
        document = json.loads((folder / PAYLOAD_DOCUMENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return set()
    return {Path(name).name for kind in ("outputs", "checkpoint") for name in document.get(kind) or ()}


_PROGRAM = Path(__file__).parent.parent / "runner" / "hpo_pilot_stage.py"
_MARK = "hpo_pilot_stage: "
_STEP_POLL_SECONDS = 0.1  # seconds
_GRACE = 10.0  # seconds between TERM and KILL
_SAID = 300  # characters of a launcher's last words


@dataclass(frozen=True)
class Answer:
    """The answer of one node.

    Attributes:
        there: paths of its copies, by key.
        failed: reasons for missing copies, by key.
    """

    there: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


class NodeSteps:
    """Runs hpo_pilot_stage.py on nodes through the site's launcher."""

    def __init__(self, site: Site, folder: Path, allocation: Sequence[str]) -> None:
        """Prepares.

        Args:
            site: has the launcher.
            folder: an empty folder that all nodes see.
            allocation: all nodes of the allocation.
        """
        self._site, self._folder, self._allocation = site, folder, tuple(allocation)
        self._program = folder / _PROGRAM.name
        shutil.copy(_PROGRAM, self._program)

    def run(
        self,
        what: str,
        request: Mapping[str, Any],
        nodes: Sequence[str],
        *,
        name: str,
        seconds: float,
        is_over: Callable[[], bool],
        memory_mb: int = 0,
    ) -> tuple[dict[str, Answer], str]:
        """Runs one step. Errors are returned, not raised.

        Args:
            what: copy or remove.
            request: for hpo_pilot_stage.py.
            nodes: each runs one process.
            name: unique name for the step's files.
            seconds: time limit.
            is_over: returns whether to end the step now.
            memory_mb: of each process; 0: not given.

        Returns:
            (answers by node, why nodes may have given no answer).
        """
        asked, said = self._folder / f"{name}.json", self._folder / f"{name}.log"
        try:
            write_whole(asked, json.dumps(request), mode=0o600)
            words, env = self._command(what, asked, nodes, memory_mb)
            with said.open("wb") as output:
                process = subprocess.Popen(
                    words,
                    cwd=self._folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            why = _wait(process, seconds, is_over)
            text = said.read_text(errors="replace")
        except (OSError, InputError) as error:
            return {}, str(error)
        finally:
            asked.unlink(missing_ok=True)
        said.unlink(missing_ok=True)
        return _by_node(_answers(text), nodes), why or _last_words(text)

    def _command(
        self, what: str, asked: Path, nodes: Sequence[str], memory_mb: int
    ) -> tuple[list[str], dict[str, str]]:
        launcher = self._site.launcher.per_node
        variables = site_variables(os.environ)
        variables |= {name: os.path.expandvars(value) for name, value in self._site.environment.items()}
        placement = Placement(
            nodes=tuple(nodes),
            gpu_kind=self._site.gpu_kind,
            environment=variables,
            allocation=self._allocation,
            memory_mb=memory_mb,
        )
        argv = [sys.executable, "-I", "-S", str(self._program), what, str(asked)]
        return launcher.command(argv, placement), launcher.environment(placement, without_secrets(os.environ))


def _wait(process: subprocess.Popen[bytes], seconds: float, is_over: Callable[[], bool]) -> str:
    """Waits for a launcher to end, or ends it; returns why it was ended, or an empty text."""
    end = time.monotonic() + seconds
    why = ""
    while process.poll() is None:
        try:
            process.wait(_STEP_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if why and time.monotonic() > end:
                _signal(process, signal.SIGKILL)
            elif not why and (is_over() or time.monotonic() > end):
                why = "it is wanted no more" if is_over() else f"it took more than {seconds:.0f} s"
                end = time.monotonic() + _GRACE
                _signal(process, signal.SIGTERM)
    return why


def _signal(process: subprocess.Popen[bytes], which: signal.Signals) -> None:
    try:
        os.killpg(process.pid, which)
    except ProcessLookupError as error:
        log.debug("%s", error)  # it has just ended


def _answers(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        _, mark, said = line.partition(_MARK)
        if mark:
            try:
                answer = json.loads(said)
                found.append({**answer, "node": str(answer["node"])})
            except (ValueError, KeyError, TypeError):
                log.warning("a node's answer cannot be read: %.200s", line)
    return found


def _by_node(answers: Sequence[dict[str, Any]], nodes: Collection[str]) -> dict[str, Answer]:
    """Returns the answers by the batch system's names of nodes.

    A node may use another name for itself. Answers with unknown names are assigned to the remaining nodes if their
    numbers match and the answers are equal.
    """
    short = {node.partition(".")[0]: node for node in nodes}
    found: dict[str, Answer] = {}
    others: list[Answer] = []
    for answer in answers:
        said = Answer(answer.get("there") or {}, answer.get("failed") or {})
        node = short.get(str(answer["node"]).partition(".")[0])
        if node is not None and node not in found:
            found[node] = said
        else:
            others.append(said)
    left = [node for node in nodes if node not in found]
    if len(others) == len(left) and all(other == others[0] for other in others):
        found.update(dict.fromkeys(left, others[0]) if others else {})
    return found


def _last_words(text: str) -> str:
    """Returns the last line of a launcher's output that is not a node's answer."""
    said = [line.strip() for line in text.splitlines() if line.strip() and _MARK not in line]
    return said[-1][:_SAID] if said else "the launcher said nothing"


#: Bytes from which a sandbox's file is staged instead of copied into each job's folder.
LARGE_FILE = 16 << 20

_SECONDS, _SLOW = 300.0, 20 << 20  # time limit of a step, plus one second for each _SLOW bytes
_REMOVAL_SECONDS = 20.0


class LaunchedJob(Protocol):
    """A job that a launcher will start."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def seat(self) -> Assignment:
        """Its nodes."""

    @property
    def container(self) -> InContainer:
        """Its image and container runtime."""


class Staging:
    """The copies of one allocation. Any thread may call `stage`."""

    def __init__(
        self, site: Site, folder: Path, allocation: Sequence[str], *, job: str, seconds: float, limit_mb: int
    ) -> None:
        """Prepares; nothing is copied yet.

        Args:
            site: its nodes have the folder `site.scratch`.
            folder: of this pilot, on storage that the nodes share; earlier contents are removed.
            allocation: all nodes.
            job: the batch system's name of the allocation.
            seconds: remaining time of the allocation.
            limit_mb: size limit of all copies on a node.

        Raises:
            OSError: the folder cannot be made.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._site, self._folder, self._limit = site, folder, limit_mb << 20
        self._sources = Sources(folder, self._limit)
        self._steps = NodeSteps(site, folder, allocation)
        self._copies = NodeCopies()
        until = int(min(time.time() + seconds, 1e12))
        safe = re.sub(r"[^\w.]", "_", job)[:60]
        self._name = f"hpo-pilot-{safe}-{secrets.token_hex(4)}-until-{until}"
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def stage(
        self, launched: LaunchedJob, root: Path, folder: Path, large: Sequence[Path], starting: Starting
    ) -> Staged:
        """Makes a job use copies on its nodes: of its image, its inputs, and the large files of its sandbox.

        Files that cannot be copied are used on shared storage; the pilot's log says so.

        Args:
            launched: the job with its nodes and image.
            root: the job's folder.
            folder: where it runs, with its inputs.
            large: links into the sandbox cache; they are replaced by copies.
            starting: says whether the job is still wanted.

        Raises:
            JobFailure: the job is not wanted any more.
            TransformationFailure: its image cannot be run here.
            OSError: the job's folder cannot be changed.
        """
        began = time.monotonic()
        job, seat, container = launched.job, launched.seat, launched.container
        try:
            files = WantedFiles(self._sources, starting.is_over, self._remark)
            files.add_image(container, root)
            files.add_inputs(root, folder)
            files.add_large(root, folder, large)
            wanted = files.found
            pairs = {(node, each.source.key) for each in wanted for node in seat.nodes}
            if mine := self._copies.take(pairs):
                self._copy(job, seat, mine, {each.source.key: each.source for each in wanted}, starting)
            self._copies.wait(pairs, starting.is_over)
            if starting.is_over():
                raise GivenUp
        except GivenUp:
            why = "the allocation was about to end while the job's inputs were copied"
            raise starting.failure or GivenBack(PilotErrorCode.SIGTERM, why) from None
        if not wanted and not large:
            return NOTHING_STAGED
        used = self._used(wanted, seat)
        self._point_at(used, wanted, large)
        (image,) = [each.source.key for each in wanted if each.link is None] or [""]
        return Staged(
            seconds=time.monotonic() - began,
            image=container.image if image in used else "",
            image_copy=used.get(image, ""),
            folders=tuple(Path(path).parent for key, path in used.items() if key != image),
        )

    def remove(self, nodes: Collection[str]) -> None:
        """Removes all copies, at the end of the allocation.

        Args:
            nodes: usable nodes.
        """
        there = [node for node in nodes if node in self._copies.nodes()]
        if there:
            answers, why = self._steps.run(
                "remove", self._request(), there, name="remove", seconds=_REMOVAL_SECONDS, is_over=lambda: False
            )
            if silent := len(there) - len(answers):
                log.warning("what was staged on %d nodes may stay there: %s", silent, why)
            for node, answer in answers.items():
                for failure in answer.failed.values():
                    self._remark(f"what was staged on node {node} stays there: {failure}")
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- copies ---

    def _used(self, wanted: Sequence[Wanted], seat: Assignment) -> dict[str, str]:
        """Returns the paths of copies by key, if they are the same on all nodes of the job."""
        used = {}
        for each in wanted:
            paths = self._copies.paths(seat.nodes, each.source.key)
            if len(paths) == 1:
                used[each.source.key] = paths.pop()
            elif paths:
                self._remark(
                    f"jobs of several nodes read what is shared, for scratch.node of the site, "
                    f"{self._site.scratch}, is another path on each node"
                )
        return used

    def _copy(
        self, job: Job, seat: Assignment, mine: set[Pair], sources: Mapping[str, Source], starting: Starting
    ) -> None:
        began = time.monotonic()
        nodes = [node for node in seat.nodes if any(node == pair[0] for pair in mine)]
        keys = sorted({key for _, key in mine})
        size = sum(sources[key].size for key in keys)
        paths: dict[Pair, str] = {}
        hopeless: set[Pair] = set()
        try:
            answers, why = self._steps.run(
                "copy",
                self._request([sources[key].wanted for key in keys]),
                nodes,
                name=f"{job.panda_id}.{job.attempt}",
                seconds=_SECONDS + size / _SLOW,
                is_over=starting.is_over,
                memory_mb=seat.memory_mb,
            )
            for node, key in mine:
                answer = answers.get(node)
                if answer is not None and key in answer.there:
                    paths[node, key] = answer.there[key]
                elif answer is not None and key in answer.failed:
                    hopeless.add((node, key))
                    self._remark(f"{sources[key].path} is not staged, and read where it is: {answer.failed[key]}", node)
                elif not starting.is_over():
                    self._remark(f"{sources[key].path} is not staged, and read where it is: {why}", node)
        finally:
            self._copies.settle(mine, paths, hopeless)
        if paths:
            log.info(
                "job %s: %d files or folders of %d MB staged on %d nodes in %.1f s",
                *(job.panda_id, len({key for _, key in paths}), size >> 20, len(nodes), time.monotonic() - began),
            )

    def _request(self, copies: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        names = [first or second for first, second in re.findall(r"\$(?:(\w+)|\{(\w+)\})", self._site.scratch)]
        variables = {name: os.environ[name] for name in names if name in os.environ}
        said = {"scratch": self._site.scratch, "folder": self._name, "variables": variables, "limit": self._limit}
        return {**said, "copies": list(copies)}

    def _point_at(self, used: Mapping[str, str], wanted: Sequence[Wanted], large: Sequence[Path]) -> None:
        """Points the links of the job's folder at the copies; sandbox files without a copy are copied into it."""
        staged: set[Path] = set()
        for each in wanted:
            if each.link is not None and each.source.key in used:
                new = each.link.with_name(f".{each.link.name}.staged")
                new.symlink_to(used[each.source.key])
                new.replace(each.link)
                staged.add(each.link)
        for link in large:
            if link not in staged:
                new = link.with_name(f".{link.name}.own")
                shutil.copy(link, new)
                new.replace(link)

    def _remark(self, text: str, node: str = "") -> None:
        """Logs a message once."""
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        log.warning("%s%s", f"node {node}: " if node else "", text)
