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
import sys
import tarfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpo_pilot.errors import InputError
from hpo_pilot.files import write_whole
from hpo_pilot.pilot.execution import InContainer
from hpo_pilot.pilot.job import GivenBack
from hpo_pilot.pilot.launch import NOTHING_STAGED, Staged, WithLauncher, run_step
from hpo_pilot.pilot.report import StartingJob
from hpo_pilot.pilot.settings import Site
from hpo_pilot.transformation.container import choose_runtime
from hpo_pilot.transformation.stage_in import STAGED_FILE

_MOST_FILES = 500_000  # of a folder


class JobUnwanted(Exception):
    """The job is not wanted any more."""


class NotStaged(Exception):
    """The file is used on shared storage; the message says why."""


@dataclass(frozen=True)
class Source:
    """One file, or a folder packed as one archive.

    Attributes:
        path: path on shared storage.
        name: name of the copy.
        key: identifies the contents; it ends in `-SIZE`.
        size: size of the copy, in bytes.
        mtime_ns: time of the file's last change; shows a change during the copy.
        archive: archive of the folder; None: it is a file.
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
        """Makes an empty set of sources.

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
            path: path of the file or folder; links are followed.
            is_over: returns whether it is not needed any more.

        Raises:
            NotStaged: it is too large.
            OSError: it cannot be read or packed.
            JobUnwanted: it is not needed any more.
        """
        name, path = path.name, Path(os.path.realpath(path))
        about = path.stat()
        mark = f"{about.st_dev}:{about.st_ino}:{about.st_mtime_ns}:"
        if not path.is_dir():
            if about.st_size > self._limit:
                raise NotStaged(f"it has {about.st_size >> 20} MB, more than --staging-mb")
            return Source(path, name, _key(f"{mark}{about.st_size}", about.st_size), about.st_size, about.st_mtime_ns)
        archive = self._folder / f"{_digest(mark)}.tar"
        with self._lock:
            packing = self._packing[mark]
        with packing:
            if mark in self._refused:
                raise NotStaged(self._refused[mark])
            try:
                if mark not in self._sizes:
                    check_size(path, self._limit)
                    self._sizes[mark] = _pack(path, archive, is_over)
            except (NotStaged, OSError) as error:
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
        NotStaged: the folder is too large, or has too many files.
    """
    size = count = 0
    for where, _, names in os.walk(folder):
        for name in names:
            size += Path(where, name).lstat().st_size
        count += len(names)
        if size > limit:
            raise NotStaged(f"it has more than --staging-mb, {limit >> 20} MB")
        if count > _MOST_FILES:
            raise NotStaged(f"it has more than {_MOST_FILES} files")


def _pack(folder: Path, archive: Path, is_over: Callable[[], bool]) -> int:
    """Packs a folder; returns the size of its files in bytes. Pipes, sockets and devices are left out."""
    size = 0

    def taken(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal size
        if is_over():
            raise JobUnwanted
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
            paths: paths of the successful copies.
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

_SMALL = 1 << 20  # bytes; smaller files are read from shared storage as fast as a step starts


class FileToStage(NamedTuple):
    """One file to stage; `link`: its link in the job's folder; None: it is the image."""

    source: Source
    link: Path | None


def _image(container: InContainer, root: Path) -> list[Path]:
    """Returns the path of a job's image if it is a file or folder, in a list. `root`: the job's folder.

    Raises:
        NotStaged: the runtime changes the image.
        TransformationFailure: the image cannot be run here.
    """
    path = Path(container.image)
    runtime = choose_runtime(container.runtime, container.image)
    if not path.is_absolute() or not path.exists() or path.resolve() == Path("/"):
        return []  # an image of a registry, or none
    if runtime.makes_mount_points(container.image, [root]):
        raise NotStaged(f"this {runtime.name} makes folders in the image for each job")
    return [path]


def _shared_inputs(root: Path, folder: Path) -> Iterator[Path]:
    """Yields links to inputs that the job shares with others. `folder`: where the job runs, below `root`."""
    mine = os.path.realpath(root)
    for link in _listed(folder):
        if link.is_symlink():
            is_shared = not Path(os.path.realpath(link)).is_relative_to(mine)
        else:
            is_shared = link.is_file() and link.stat().st_nlink > 1
        if is_shared:
            yield link


def _listed(folder: Path) -> list[Path]:
    """Returns the paths of a job's inputs."""
    try:
        names = json.loads((folder / STAGED_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [folder / str(name) for name in names]


_PROGRAM = Path(__file__).parent.parent / "runner" / "hpo_pilot_stage.py"
_MARK = "hpo_pilot_stage: "
_SAID = 300  # characters of a launcher's message


class NodeAnswer(NamedTuple):
    """The answer of one node.

    Attributes:
        there: paths of its copies, by key.
        failed: reasons for missing copies, by key.
    """

    there: Mapping[str, str]
    failed: Mapping[str, str]


def _answers(text: str, nodes: Collection[str]) -> dict[str, NodeAnswer]:
    """Returns the answers of nodes in a step's output, by the batch system's names of the nodes.

    A node may use another name for itself. Answers with unknown names are assigned to the remaining nodes if their
    numbers match and the answers are equal.
    """
    short = {node.partition(".")[0]: node for node in nodes}
    found: dict[str, NodeAnswer] = {}
    others: list[NodeAnswer] = []
    for line in text.splitlines():
        _, mark, said = line.partition(_MARK)
        if not mark:
            continue
        try:
            told = json.loads(said)
            answer, name = NodeAnswer(told.get("there") or {}, told.get("failed") or {}), str(told["node"])
        except (ValueError, KeyError, AttributeError):
            log.warning("the answer of a node cannot be read: %.200s", line)
            continue
        node = short.get(name.partition(".")[0])
        if node is not None and node not in found:
            found[node] = answer
        else:
            others.append(answer)
    left = [node for node in nodes if node not in found]
    if len(others) == len(left) and all(other == others[0] for other in others):
        found.update(dict.fromkeys(left, others[0]) if others else {})
    return found


def _last_line(text: str) -> str:
    """Returns the last line of a step's output that is not a node's answer."""
    said = [line.strip() for line in text.splitlines() if line.strip() and _MARK not in line]
    return said[-1][:_SAID] if said else "the launcher printed no message"


#: Bytes from which a sandbox's file is staged instead of copied into each job's folder.
LARGE_FILE = 16 << 20

_SECONDS, _SLOW = 300.0, 20 << 20  # time limit of a step, plus one second for each _SLOW bytes
_REMOVAL_SECONDS = 20.0


class Staging:
    """The copies of one allocation. Any thread may call `stage`."""

    def __init__(
        self, site: Site, folder: Path, allocation: Sequence[str], *, job: str, seconds: float, limit_mb: int
    ) -> None:
        """Makes an empty set of copies; copies nothing yet.

        Args:
            site: its nodes have the folder `site.scratch`.
            folder: folder of this pilot, on storage that the nodes share; earlier contents are removed.
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
        self._allocation = tuple(allocation)
        self._program = folder / _PROGRAM.name
        shutil.copy(_PROGRAM, self._program)
        self._copies = NodeCopies()
        until = int(min(time.time() + seconds, 1e12))
        safe = re.sub(r"[^\w.]", "_", job)[:60]
        self._name = f"hpo-pilot-{safe}-{secrets.token_hex(4)}-until-{until}"
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def stage(
        self, launched: WithLauncher, root: Path, folder: Path, large: Sequence[Path], starting: StartingJob
    ) -> Staged:
        """Makes a job use copies on its nodes: of its image, its inputs, and the large files of its sandbox.

        Files that cannot be copied are used on shared storage; the pilot's log says so. So are those of a job that
        agents start, because copies need a job step.

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
        began, nodes = time.monotonic(), launched.assignment.nodes
        try:
            by_step = not launched.assignment.spread
            wanted = self._wanted(launched, root, folder, large, starting.is_over) if by_step else []
            pairs = {(node, each.source.key) for each in wanted for node in nodes}
            if mine := self._copies.take(pairs):
                self._copy(launched, mine, {each.source.key: each.source for each in wanted}, starting)
            self._copies.wait(pairs, starting.is_over)
            if starting.is_over():
                raise JobUnwanted
        except JobUnwanted:
            why = "the allocation was about to end while the job's inputs were copied"
            raise starting.failure or GivenBack(why) from None
        if not wanted and not large:
            return NOTHING_STAGED
        used = self._used(wanted, nodes)
        self._point_at(used, wanted, large)
        (image,) = [each.source.key for each in wanted if each.link is None] or [""]
        return Staged(
            seconds=time.monotonic() - began,
            image=launched.container.image if image in used else "",
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
            answers, why = self._step("remove", [], there, name="remove", seconds=_REMOVAL_SECONDS)
            if silent := len(there) - len(answers):
                log.warning("staged files may remain on %d nodes: %s", silent, why)
            for node, answer in answers.items():
                for failure in answer.failed.values():
                    self._warn(f"staged files remain on node {node}: {failure}")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wanted(
        self, launched: WithLauncher, root: Path, folder: Path, large: Sequence[Path], is_over: Callable[[], bool]
    ) -> list[FileToStage]:
        """Returns the files to stage: the image, shared inputs, and large files that the payload does not write."""
        document, paths = launched.document, list[tuple[Path, Path | None]]()
        try:
            paths += [(path, None) for path in _image(launched.container, root)]
        except NotStaged as error:
            self._warn(f"{launched.container.image} is not staged: {error}")
        paths += [(link, link) for link in _shared_inputs(root, folder)]
        written = {Path(name).name for name in (*document.outputs, *document.checkpoint)}
        paths += [(link, link) for link in large if written.isdisjoint(link.relative_to(root).parts)]
        found = []
        for path, link in paths:
            try:
                source = self._sources.find(path, is_over)
            except (OSError, NotStaged) as error:
                self._warn(f"{os.path.realpath(path)} is not staged: {error}")
                continue
            if source.size >= _SMALL:
                found.append(FileToStage(source, link))
        return found

    def _used(self, wanted: Sequence[FileToStage], nodes: Sequence[str]) -> dict[str, str]:
        """Returns the path of each copy by its key, without copies with different paths on the nodes of the job."""
        used = {}
        for each in wanted:
            paths = self._copies.paths(nodes, each.source.key)
            if len(paths) == 1:
                used[each.source.key] = paths.pop()
            elif paths:
                self._warn(
                    f"scratch.node of the site, {self._site.scratch}, is another path on each node: jobs of several "
                    "nodes read the shared files"
                )
        return used

    def _copy(
        self, launched: WithLauncher, mine: set[Pair], sources: Mapping[str, Source], starting: StartingJob
    ) -> None:
        """Copies the sources of these pairs, with one step on the job's nodes."""
        began, job = time.monotonic(), launched.job
        nodes = [node for node in launched.assignment.nodes if any(node == pair[0] for pair in mine)]
        keys = sorted({key for _, key in mine})
        size = sum(sources[key].size for key in keys)
        paths: dict[Pair, str] = {}
        hopeless: set[Pair] = set()
        try:
            answers, why = self._step(
                "copy",
                [sources[key].wanted for key in keys],
                nodes,
                name=f"{job.panda_id}.{job.attempt}",
                seconds=_SECONDS + size / _SLOW,
                is_over=starting.is_over,
                memory_mb=launched.assignment.memory_mb,
            )
            for node, key in mine:
                answer = answers.get(node, NodeAnswer({}, {}))
                if key in answer.there:
                    paths[node, key] = answer.there[key]
                    continue
                if key in answer.failed:
                    hopeless.add((node, key))
                if key in answer.failed or not starting.is_over():
                    reason = answer.failed.get(key, why)
                    self._warn(f"{sources[key].path} is not staged, and read where it is: {reason}", node)
        finally:
            self._copies.settle(mine, paths, hopeless)
        if paths:
            log.info(
                "job %s: %d files or folders of %d MB staged on %d nodes in %.1f s",
                *(job.panda_id, len({key for _, key in paths}), size >> 20, len(nodes), time.monotonic() - began),
            )

    def _step(
        self,
        what: str,
        copies: Sequence[Mapping[str, Any]],
        nodes: Sequence[str],
        *,
        name: str,
        seconds: float,
        is_over: Callable[[], bool] = lambda: False,
        memory_mb: int = 0,
    ) -> tuple[dict[str, NodeAnswer], str]:
        """Runs hpo_pilot_stage.py once on each node; errors are returned, not raised.

        Args:
            what: copy or remove.
            copies: what to copy.
            nodes: the nodes.
            name: unique name for the step's request.
            seconds: time limit.
            is_over: returns whether to end the step now.
            memory_mb: memory of each process; 0: not given.

        Returns:
            (answers by node, why nodes may have given no answer).
        """
        names = [first or second for first, second in re.findall(r"\$(?:(\w+)|\{(\w+)\})", self._site.scratch)]
        variables = {name: os.environ[name] for name in names if name in os.environ}
        said = {"scratch": self._site.scratch, "folder": self._name, "variables": variables, "limit": self._limit}
        request = self._folder / f"{name}.json"
        try:
            write_whole(request, json.dumps({**said, "copies": list(copies)}), mode=0o600, scratch=True)
            done = run_step(
                self._site,
                [sys.executable, "-I", "-S", str(self._program), what, str(request)],
                nodes,
                self._allocation,
                seconds=seconds,
                is_over=is_over,
                memory_mb=memory_mb,
                folder=self._folder,
            )
        except (OSError, InputError) as error:
            return {}, str(error)
        finally:
            request.unlink(missing_ok=True)
        return _answers(done.text, nodes), done.why_ended or _last_line(done.text)

    def _point_at(self, used: Mapping[str, str], wanted: Sequence[FileToStage], large: Sequence[Path]) -> None:
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

    def _warn(self, text: str, node: str = "") -> None:
        """Logs a message once."""
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        log.warning("%s%s", f"node {node}: " if node else "", text)
