"""The nodes of an allocation."""

from __future__ import annotations

from dataclasses import dataclass

from hpo_pilot.errors import InputError


@dataclass(frozen=True)
class NodeShape:
    """What a node has for jobs.

    Attributes:
        cores: CPU cores that jobs may use.
        memory_mb: memory, in MB.
        gpus: how many GPUs; they are numbered from 0.
        close: how many GPUs in a row are close to each other: 2 where they come in pairs (MI250X), 3 where three hang
            on each socket (Summit); 1: all are alike. The cores are taken to be spread over these groups evenly.
    """

    cores: int
    memory_mb: int
    gpus: int = 0
    close: int = 1

    def __post_init__(self) -> None:
        if min(self.cores, self.memory_mb, self.close) < 1 or self.gpus < 0:
            raise InputError(f"{self}: cores, memory and close are 1 or more, GPUs 0 or more")

    @property
    def groups(self) -> int:
        """How many groups of close GPUs there are; a node without GPUs is one."""
        return max(1, -(-self.gpus // self.close))


@dataclass(frozen=True)
class Node:
    """A node: what the batch system calls it, and what it has."""

    name: str
    shape: NodeShape
