"""The machine's C compiler: which one there is, and what it makes of the kernel."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 120.0  #: seconds for one compilation


class TuningError(Exception):
    """The point gives no figure of merit; the message says why and goes to output.json."""


class Compiler:
    """A C compiler that takes GCC's options, such as GCC itself, Clang, icx, or a vendor's `cc`.

    Attributes:
        command: its words, such as ("gcc",).
    """

    def __init__(self, folder: Path) -> None:
        """Finds one: $CC, else cc, gcc, clang.

        Args:
            folder: where it writes.

        Raises:
            TuningError: there is none.
        """
        self._folder = folder
        named = os.environ.get("CC", "")
        self.command = tuple(shlex.split(named))
        if not self.command:
            self.command = tuple(name for name in ("cc", "gcc", "clang") if shutil.which(name))[:1]
        if not self.command or not shutil.which(self.command[0]):
            wanted = f"$CC names {named!r}, which is not there" if named else "none of cc, gcc and clang is on PATH"
            raise TuningError(
                f"there is no C compiler: {wanted}. Install one (Debian: apt-get install gcc libc6-dev; on a cluster: "
                "module load gcc), or name it in the environment variable CC"
            )

    def native_option(self) -> str:
        """The option that tunes for this machine's processor: -march=native, or -mcpu=native where that is not known.

        Raises:
            TuningError: it has neither.
        """
        probe = self._folder / "probe.c"
        probe.write_text("int probe;\n")
        for option in ("-march=native", "-mcpu=native"):
            if self._run([option, "-c", probe.name, "-o", "probe.o"]).returncode == 0:
                return option
        raise TuningError(f"{self.command[0]} knows neither -march=native nor -mcpu=native: use cpu generic")

    def build(self, options: Sequence[str], macros: Mapping[str, str], threads: int) -> Path:
        """Compiles kernel and driver.

        Args:
            options: for the kernel alone.
            macros: for the kernel alone.
            threads: above one, OpenMP is asked for.

        Returns:
            The program. kernel.o lies beside it.

        Raises:
            TuningError: with the compiler's message.
        """
        openmp = ["-fopenmp"] if threads > 1 else []
        defined = [f"-D{name}={value}" for name, value in macros.items()]
        kernel = [*options, *openmp, *defined, "-std=gnu11", "-c", str(HERE / "kernel.c"), "-o", "kernel.o"]
        driver = ["-O2", "-std=gnu11", "-c", str(HERE / "driver.c"), "-o", "driver.o"]
        for arguments in (kernel, driver, [*openmp, "kernel.o", "driver.o", "-lm", "-o", "tuned"]):
            done = self._run(arguments)
            if done.returncode:
                raise TuningError(self._complaint(arguments, done.stderr, threads))
        return self._folder / "tuned"

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self.command, *arguments],
                cwd=self._folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TuningError(f"{self.command[0]} took more than {PATIENCE:g} s for one compilation") from error
        except OSError as error:
            raise TuningError(f"the C compiler {self.command[0]} cannot be started: {error}") from error

    def _complaint(self, arguments: Sequence[str], said: str, threads: int) -> str:
        """One line of what the compiler said; all of it goes to the log."""
        print(shlex.join([*self.command, *arguments]), said, sep="\n", flush=True)
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line] or lines or ["it says nothing"]
        hint = " (threads above 1 need OpenMP)" if threads > 1 and "openmp" in said.lower() else ""
        return f"{self.command[0]} failed: {errors[0][:500]}{hint}"


def code_bytes(file: Path) -> int | None:
    """Bytes of machine code and constants in an object file, by binutils' `size`; None where there is no `size`."""
    if not shutil.which("size"):
        return None
    done = subprocess.run(["size", str(file)], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) < 2 or lines[0].split()[:1] != ["text"]:
        return None
    return int(lines[1].split()[0])
