"""What is asked of a batch system: so many nodes for so long, and what runs there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpo_pilot.batch.allocation import OUTPUT_FILE
from hpo_pilot.errors import InputError
from hpo_pilot.jobs.site_profile import SiteProfile

#: PBS takes job names of up to 15 characters where it is old (qsub(1B), -N).
LONGEST_NAME = 15

#: What makes a virtual environment, a conda environment or loaded modules the active ones.
_ACTIVE = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_WORD = re.compile(r"[A-Za-z0-9_.-]+")
#: Other characters mean something in options of one batch system or another: %j, {{id}}, blanks.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@,=-]*")


@dataclass(frozen=True)
class AllocationSpec:
    """One allocation that is to be submitted.

    Attributes:
        site: the profile of the machine.
        nodes: how many.
        minutes: the walltime.
        name: the job's name, by which it is found again; unique.
        folder: what the login node and the compute nodes both see; the script runs there, its output goes there.
        command: the words of what runs on the first node, once.
        queue: the queue, partition or QOS; None: the profile's.
        account: the project that is charged, without the profile's suffix; None: the profile's.
        proxy: URL of the web proxy on the compute nodes' way out; None: the profile's.
        environment: the variables that tell which software environment is active where it is submitted.
    """

    site: SiteProfile
    nodes: int
    minutes: int
    name: str
    folder: Path
    command: tuple[str, ...]
    queue: str | None = None
    account: str | None = None
    proxy: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise InputError(f"--nodes {self.nodes}: at least one")
        if self.minutes < 1:
            raise InputError(f"--walltime of {self.minutes} minutes: at least one")
        if not _NAME.fullmatch(self.name) or len(self.name) > LONGEST_NAME:
            raise InputError(f"{self.name!r} cannot name a batch job: letters, digits, - and _, {LONGEST_NAME} at most")
        for option, value in (("--queue", self.queue), ("--account", self.account)):
            if value is not None and not _WORD.fullmatch(value):
                raise InputError(f"{option} {value!r}: letters, digits, '.', '-' and '_'")
        if not _PLAIN_PATH.fullmatch(str(self.folder)):
            raise InputError(
                f"the folder {str(self.folder)!r} has characters that mean something to batch systems: choose another "
                "with --folder, of letters, digits and _./+@,=-"
            )
        if self.proxy is not None and not re.fullmatch(r"https?://[^\s/@]+/?", self.proxy):
            raise InputError(f"--proxy {self.proxy!r}: give a URL without a login, such as http://login1:3128")

    @property
    def queue_name(self) -> str | None:
        """The queue that it goes to; None: the batch system's own."""
        return self.queue or self.site.batch.queue

    @property
    def account_name(self) -> str | None:
        """The account as the batch system has it; None: the batch system's own."""
        name, suffix = self.account or self.site.batch.account, self.site.batch.account_suffix
        return name if name is None or name.endswith(suffix) else name + suffix

    @property
    def output(self) -> Path:
        """Where the script's output goes."""
        return self.folder / OUTPUT_FILE

    @property
    def script_file(self) -> Path:
        """Where the script is kept as it was submitted."""
        return self.folder / "job.sh"


def active_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of a process's variables that tell which software environment is active in it."""
    return {name: environment[name] for name in _ACTIVE if environment.get(name)}
