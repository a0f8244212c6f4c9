"""Copies what many jobs of an allocation read to the nodes that run them, once.

Each job, before it starts, has what its own nodes lack copied there: by one step of the site's launcher, with a process
on each of those nodes, inside the job's own share of them, so that it waits for nobody's cores. The alternative, all
nodes of the allocation at the first use, was not taken. It reads as much from shared storage, for at 4,608 nodes all of
them get jobs at once; but the first job would wait for the slowest of 4,608 nodes instead of six, a node that is broken
would concern everybody instead of one job, nodes that never get jobs of that search would copy in vain, and its step
would find no free cores where other jobs run. What costs on demand is one more step for each job that finds something
missing: in the first round of jobs, one each; afterwards none.

Slurm's sbcast was not taken either. Its tree of nodes would read shared storage once. But it sends one file to all
nodes of the batch job (22.05 knows no list of nodes), says nothing of a full disk before it is full, and what is half
sent lies there under its name. On two slurmd of one machine it took 1.5 to 2.0 s for 256 MB, a step with cp 0.5 s, of
which 0.1 s for the step; Slurm's own page says that parallel file systems may do better than it.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hpo_pilot.pilot.failure import GivenBack, PilotErrorCode
from hpo_pilot.pilot.job import Job
from hpo_pilot.pilot.room import Seat
from hpo_pilot.pilot.site import Site
from hpo_pilot.pilot.staging.book import Book, Pair
from hpo_pilot.pilot.staging.node_step import NodeSteps
from hpo_pilot.pilot.staging.source import GivenUp, Source, Sources
from hpo_pilot.pilot.staging.staged import NOTHING, Staged
from hpo_pilot.pilot.staging.wanted import Wanted, WantedFiles
from hpo_pilot.pilot.starting import Starting
from hpo_pilot.pilot.wrapping import InContainer

log = logging.getLogger(__name__)

#: Bytes of a sandbox's file that is staged instead of copied into each job's folder.
LARGE = 16 << 20

_SECONDS, _SLOW = 300.0, 20 << 20  # a step may take so long, and a second more for each so many bytes
_REMOVAL_SECONDS = 20.0


class LaunchedJob(Protocol):
    """A job that a launcher will start."""

    @property
    def job(self) -> Job:
        """Itself."""

    @property
    def seat(self) -> Seat:
        """Its nodes."""

    @property
    def container(self) -> InContainer:
        """Its image, and what runs it."""


class Staging:
    """The copies of one allocation. Any thread may call `stage`."""

    def __init__(
        self, site: Site, folder: Path, allocation: Sequence[str], *, job: str, seconds: float, limit_mb: int
    ) -> None:
        """Prepares; nothing is copied yet.

        Args:
            site: whose nodes have the folder `site.scratch`.
            folder: on storage that the nodes share, and this pilot's alone; what an earlier one left is removed.
            allocation: all nodes.
            job: the batch system's name of the allocation.
            seconds: that it lasts from now on.
            limit_mb: of all copies on a node.

        Raises:
            OSError: the folder cannot be made.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._site, self._folder, self._limit = site, folder, limit_mb << 20
        self._sources = Sources(folder, self._limit)
        self._steps = NodeSteps(site, folder, allocation)
        self._book = Book()
        until = int(min(time.time() + seconds, 1e12))
        safe = re.sub(r"[^\w.]", "_", job)[:60]
        self._name = f"hpo-pilot-{safe}-{secrets.token_hex(4)}-until-{until}"
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def stage(
        self, launched: LaunchedJob, root: Path, folder: Path, large: Sequence[Path], starting: Starting
    ) -> Staged:
        """Lets a job use copies on its nodes: of its image, its inputs, and the large files of its sandbox.

        What cannot be copied is used where it is, and the pilot's log says so.

        Args:
            launched: the job, its nodes, its image.
            root: the job's folder.
            folder: where it runs, with its inputs.
            large: files in it that are links into the sandbox cache; here they become the job's own.
            starting: says whether the job is still wanted.

        Raises:
            JobFailure: it is not.
            TransformationFailure: its image cannot be run here.
            OSError: the job's folder.
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
            if mine := self._book.take(pairs):
                self._copy(job, seat, mine, {each.source.key: each.source for each in wanted}, starting)
            self._book.wait(pairs, starting.is_over)
            if starting.is_over():
                raise GivenUp
        except GivenUp:
            why = "the allocation was about to end while the job's inputs were copied"
            raise starting.failure or GivenBack(PilotErrorCode.SIGTERM, why) from None
        if not wanted and not large:
            return NOTHING
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
            nodes: those that are still of use.
        """
        there = [node for node in nodes if node in self._book.nodes()]
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

    def _used(self, wanted: Sequence[Wanted], seat: Seat) -> dict[str, str]:
        """Where a job's nodes have copies, by key: links and the launcher's words have one path for all of them."""
        used = {}
        for each in wanted:
            paths = self._book.paths(seat.nodes, each.source.key)
            if len(paths) == 1:
                used[each.source.key] = paths.pop()
            elif paths:
                self._remark(
                    f"jobs of several nodes read what is shared, for scratch.node of the site, "
                    f"{self._site.scratch}, is another path on each node"
                )
        return used

    def _copy(self, job: Job, seat: Seat, mine: set[Pair], sources: Mapping[str, Source], starting: Starting) -> None:
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
            self._book.settle(mine, paths, hopeless)
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
        """Leads the links of the job's folder to the copies; a sandbox's file without one becomes the job's own."""
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
        """Tells the log, of each thing once."""
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        log.warning("%s%s", f"node {node}: " if node else "", text)
