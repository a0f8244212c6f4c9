"""The contract of container runtimes, checked in tests/real with those that can be installed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.transformation.container import ContainerRuntime, ContainerStart, Inside

REPORT = """
import json, os, sys
found = {"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "is_image": os.path.exists("/etc/image")}
json.dump(found, open("report.json", "w"))
"""


@dataclass
class Ship:
    """A runtime with an image, a job's folder, and the environment of whoever starts it."""

    runtime: ContainerRuntime
    image: str
    folder: Path
    base: Mapping[str, str]

    def run(
        self, argv: Sequence[str], inside: Inside | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        env = {**self.base, **variables}
        wrapped = self.runtime.wrap(
            ContainerStart(argv, self.image, [self.folder], env, self.folder, inside or Inside(gpu_kind="none"))
        )
        return subprocess.run(
            wrapped, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )


def runs_the_command_as_it_is(ship: Ship) -> None:
    """Its words, its folder, its variables."""
    words = ["a b", "$HOME", "--rm", "*", ""]
    done = ship.run(["python3", "-c", REPORT, *words], TRIAL="a b,c=$x", PANDAID="7")
    assert done.returncode == 0, done.stderr
    report = json.loads((ship.folder / "report.json").read_text())
    assert report["argv"] == words
    assert Path(report["cwd"]) == ship.folder
    assert report["is_image"]
    assert (report["env"]["TRIAL"], report["env"]["PANDAID"]) == ("a b,c=$x", "7")


def passes_the_status_on(ship: Ship) -> None:
    """The command's own, and that of a signal."""
    assert ship.run(["/bin/sh", "-c", "exit 7"]).returncode == 7
    assert ship.run(["/bin/sh", "-c", "sleep 30 & kill -9 $!; wait $!"]).returncode == 137


def says_what_cannot_be_started(ship: Ship) -> None:
    """A program that the image lacks."""
    done = ship.run(["/no/such/program"])
    assert done.returncode != 0
    assert "/no/such/program" in done.stderr


def shows_more_folders(ship: Ship, *, protects: bool) -> None:
    """Inputs are seen at their own paths, and cannot be written where the runtime can see to it."""
    shared = ship.folder.parent / "inputs"
    shared.mkdir(exist_ok=True)
    (shared / "data").write_text("data\n")
    inside = Inside(gpu_kind="none", read_only=[shared])
    done = ship.run(["/bin/cat", str(shared / "data")], inside)
    assert (done.returncode, done.stdout) == (0, "data\n"), done.stderr
    done = ship.run(["/bin/sh", "-c", f"echo x > {shared}/new"], inside)
    assert (done.returncode != 0) is protects
    assert (shared / "new").exists() is not protects


def puts_the_machines_mpi_first(ship: Ship) -> None:
    """Its libraries are found before those of the image."""
    mpi = ship.folder.parent / "mpi"
    (mpi / "lib").mkdir(parents=True, exist_ok=True)
    (mpi / "lib" / "libmpi.so").write_text("")
    code = 'import os; print(os.environ["LD_LIBRARY_PATH"], os.listdir(os.environ["LD_LIBRARY_PATH"].split(":")[0]))'
    done = ship.run(["python3", "-c", code], Inside(gpu_kind="none", mpi=[mpi]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{mpi}/lib") and done.stdout.endswith("['libmpi.so']\n")


def keeps_the_machine_out(ship: Ship) -> None:
    """PATH is the image's, /tmp its own, and neither the machine's programs nor another job's folder are there."""
    here = ship.folder.parent
    for name in ("bin", "packages", "neighbour"):
        (here / name).mkdir(exist_ok=True)
    (here / "bin" / "python3").write_text("#!/bin/sh\necho of the machine\n")
    (here / "bin" / "python3").chmod(0o755)
    (here / "neighbour" / "secret").write_text("")
    mark = f"hpo-pilot-{here.name}-{os.getpid()}"
    outside = {
        "PATH": f"{here}/bin{os.pathsep}{ship.base['PATH']}",
        **dict.fromkeys(("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR"), f"{here}/packages"),
    }
    code = (
        "import json, os, tempfile; "
        f"open('/tmp/{mark}', 'w').close(); "
        f"there = [path for path in ('{here}/bin', '{here}/neighbour/secret') if os.path.exists(path)]; "
        "names = ('PATH', 'PYTHONPATH', 'VIRTUAL_ENV', 'CONDA_PREFIX'); "
        "print(json.dumps([there, tempfile.gettempdir(), [os.environ.get(name) for name in names]]))"
    )
    done = ship.run(["python3", "-c", code], **outside)
    assert done.returncode == 0, done.stderr
    there, tmp, (path, *others) = json.loads(done.stdout)
    assert there == [] and tmp == "/tmp" and others == [None] * 3
    assert str(here) not in path and "/usr/bin" in path.split(os.pathsep)
    assert not Path("/tmp", mark).exists()
