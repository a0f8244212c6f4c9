"""The command line of the pilot that owns an allocation."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.batch.fleet import SITE_FILE
from hpo_pilot.errors import InputError


@dataclass(frozen=True)
class PilotCommand:
    """What every pilot of a site is told; `words` adds what is one allocation's.

    Attributes:
        server: the PanDA server's URL, as compute nodes call it.
        queue: the PanDA queue to serve.
        token_file: the pilot's token; compute nodes see the file, and no token is in script or command line.
        root: the folder that login and compute nodes share, for all allocations.
        ca: PEM file of the server's authorities; None: the usual ones.
        vo: the virtual organisation that goes with the token; None: the pilot's usual one.
        options: more words, as `hpo-pilot pilot` takes them.
        python: the interpreter, which compute nodes see too.
    """

    server: str
    queue: str
    token_file: Path
    root: Path
    ca: Path | None = None
    vo: str | None = None
    options: tuple[str, ...] = ()
    python: str = sys.executable

    def __post_init__(self) -> None:
        for name, option in (("token_file", "--token-file"), ("ca", "--ca"), ("root", "--folder")):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, path.absolute())
                if name != "root" and not path.is_file():
                    raise InputError(f"{option} {path}: there is no such file")

    def folder(self, name: str) -> Path:
        """The folder of the allocation of that name."""
        return self.root / "allocations" / name

    def words(self, name: str) -> tuple[str, ...]:
        """The command of the allocation's pilot.

        Checkpoints and outputs that no server keeps are for all allocations: a job goes on in another one.
        """
        folder = self.folder(name)
        return (
            *(self.python, "-m", "hpo_pilot.pilot", "--server", self.server, "--queue", self.queue),
            *("--token-file", str(self.token_file), "--site", str(folder / SITE_FILE), "--allocation"),
            *("--workdir", str(folder / "work"), "--checkpoints", str(self.root / "checkpoints")),
            *("--storage", str(self.root / "storage"), "--harvester-id", name),
            *(("--ca", str(self.ca)) if self.ca is not None else ()),
            *(("--vo", self.vo) if self.vo is not None else ()),
            *self.options,
        )
