"""Checks of the contract of `hpo_pilot.transformation.container.ContainerRuntime`, with an image on this machine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.transformation.container import TMP, ContainerRuntime, ContainerStart, Inside

_REPORT = """
import json, os, sys
found = {"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "is_here": os.path.exists(MARK)}
json.dump(found, open("report.json", "w"))
"""


@dataclass(frozen=True)
class RuntimeBench:
    """A runtime with an image.

    Attributes:
        runtime: the runtime.
        image: the image; it has `/bin/sh`, `cat` and `python3`.
        folder: the folder of the job; the checks make files beside it.
        base: the environment of the process that starts the command.
    """

    runtime: ContainerRuntime
    image: str
    folder: Path
    base: Mapping[str, str]

    def run(
        self, argv: Sequence[str], inside: Inside | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as the pilot does."""
        env = {**self.base, **variables}
        start = ContainerStart(argv, self.image, [self.folder], env, self.folder, inside or Inside(gpu_kind="none"))
        return subprocess.run(
            self.runtime.wrap(start), cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )


def check_runtime(runtime: ContainerRuntime, image: str, folder: Path, *, protects: bool = True) -> None:
    """Runs all checks.

    Args:
        runtime: the runtime.
        image: an image that it can run, with `/bin/sh`, `cat` and `python3`.
        folder: an empty folder.
        protects: whether it mounts folders read-only.

    Raises:
        AssertionError: the runtime breaks a part of its contract.
    """
    assert runtime.can_run(image), f"{runtime.name} says that it cannot run {image}"
    (folder / "job").mkdir()
    base = {"PATH": os.environ["PATH"], "HOME": str(folder), "LD_LIBRARY_PATH": "/old"}
    bench = RuntimeBench(runtime, image, folder / "job", base)
    for check in (runs_the_command, passes_the_status_on, reports_a_missing_program, hides_the_machine):
        check(bench)
    mounts_more_folders(bench, protects=protects)
    puts_the_machines_mpi_first(bench)


def runs_the_command(bench: RuntimeBench) -> None:
    """Runs it inside the image, with its arguments, folder and variables."""
    words, mark = ["a b", "$HOME", "--rm", "*", ""], bench.folder.parent / "of-the-machine"
    mark.touch()
    code = _REPORT.replace("MARK", repr(str(mark)))
    done = bench.run(["python3", "-c", code, *words], TRIAL="a b,c=$x", PANDAID="7")
    mark.unlink()
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    report = json.loads((bench.folder / "report.json").read_text())
    assert report["argv"] == words, f"the arguments are {report['argv']}, not {words}"
    assert Path(report["cwd"]) == bench.folder, f"the command runs in {report['cwd']}, not in {bench.folder}"
    assert not report["is_here"], "the command runs outside of the image, or sees the whole machine"
    variables = report["env"].get("TRIAL"), report["env"].get("PANDAID")
    assert variables == ("a b,c=$x", "7"), f"variables are changed: {variables}"


def passes_the_status_on(bench: RuntimeBench) -> None:
    """Ends with the status of the command."""
    for code, status in (("exit 7", 7), ("sleep 30 & kill -9 $!; wait $!", 137)):
        found = bench.run(["/bin/sh", "-c", code]).returncode
        assert found == status, f"the status of `{code}` is {found}, not {status}"


def reports_a_missing_program(bench: RuntimeBench) -> None:
    """Fails, and prints the name of a program that the image lacks."""
    done = bench.run(["/no/such/program"])
    assert done.returncode != 0, "the status is 0, although there is no such program"
    assert "/no/such/program" in done.stderr, f"the error does not name the program: {done.stderr}"


def mounts_more_folders(bench: RuntimeBench, *, protects: bool) -> None:
    """Mounts inputs at their own paths, and read-only where the runtime can do that."""
    shared = bench.folder.parent / "inputs"
    shared.mkdir(exist_ok=True)
    (shared / "data").write_text("data\n")
    inside = Inside(gpu_kind="none", read_only=[shared])
    done = bench.run(["/bin/cat", str(shared / "data")], inside)
    assert (done.returncode, done.stdout) == (0, "data\n"), f"{shared} is not mounted: {done.stderr}"
    done = bench.run(["/bin/sh", "-c", f"echo x > {shared}/new"], inside)
    assert (done.returncode != 0) is protects, "inputs can be written" if protects else "inputs cannot be written"
    assert (shared / "new").exists() is not protects, "inputs were written"


def puts_the_machines_mpi_first(bench: RuntimeBench) -> None:
    """Checks that the machine's MPI libraries are found before the image's."""
    mpi = bench.folder.parent / "mpi"
    (mpi / "lib").mkdir(parents=True, exist_ok=True)
    (mpi / "lib" / "libmpi.so").write_text("")
    code = 'import os; print(os.environ["LD_LIBRARY_PATH"], os.listdir(os.environ["LD_LIBRARY_PATH"].split(":")[0]))'
    done = bench.run(["python3", "-c", code], Inside(gpu_kind="none", mpi=[mpi]))
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    found = done.stdout.strip()
    assert found.startswith(f"{mpi}/lib") and found.endswith("['libmpi.so']"), f"LD_LIBRARY_PATH is {found}"


def hides_the_machine(bench: RuntimeBench) -> None:
    """PATH is the image's, /tmp the container's own; programs of the machine and other jobs' folders are not there."""
    here = bench.folder.parent
    for name in ("bin", "packages", "neighbour"):
        (here / name).mkdir(exist_ok=True)
    (here / "bin" / "python3").write_text("#!/bin/sh\necho of the machine\n")
    (here / "bin" / "python3").chmod(0o755)
    (here / "neighbour" / "secret").write_text("")
    mark = Path(TMP, f"hpo-pilot-{here.name}-{os.getpid()}")
    names = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
    outside = {
        "PATH": f"{here}/bin{os.pathsep}{bench.base['PATH']}",
        **dict.fromkeys((*names[1:], "TMPDIR"), f"{here}/packages"),
    }
    code = (
        f"import json, os, tempfile; open({str(mark)!r}, 'w').close(); "
        f"there = [path for path in ('{here}/bin', '{here}/neighbour/secret') if os.path.exists(path)]; "
        f"print(json.dumps([there, tempfile.gettempdir(), [os.environ.get(name) for name in {names}]]))"
    )
    done = bench.run(["python3", "-c", code], None, **outside)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    there, tmp, (path, *others) = json.loads(done.stdout)
    assert there == [], f"the container sees {there}"
    assert tmp == TMP, f"the temporary folder is {tmp}"
    assert others == [None] * 3, f"the machine's Python is named inside: {others}"
    assert str(here) not in path and "/usr/bin" in path.split(os.pathsep), f"PATH is the machine's: {path}"
    assert not mark.exists(), "the container's /tmp is the machine's"
