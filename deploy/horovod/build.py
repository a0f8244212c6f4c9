#!/usr/bin/env python3
"""Builds Horovod from PyPI against PyTorch, once, in a cache: what `make horovod` runs.

    python3 build.py                        # builds what is missing, says where it is
    python3 build.py --where                # only says where its Python is; exit code 1: not built
    HOROVOD_WITH_MPI=1 python3 build.py     # Horovod's own variables choose what goes in: see README.md

It makes `<cache>/horovod-<key>/venv`, where the key is of Python, machine, torch, Horovod and Horovod's variables, and
the cache is $XDG_CACHE_HOME or ~/.cache, then hpo_pilot. That name is a link made in one step when all is done and
tried: an interrupted build leaves nothing under it. Of two builds at once the second waits and takes the first's.
It needs no root. Standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HOROVOD = "0.28.1"
TORCH = "torch==2.13.0"  # the newest that was tried with this Horovod
MANIFEST = "horovod.json"
#: Everything that Horovod's setup.py and CMake files read from the environment (its docs/install.rst), none of what
#: only a training reads: HOROVOD_TIMELINE shall not make another build.
VARIABLES = re.compile(
    r"HOROVOD_(WITH(OUT)?_\w+|GPU|GPU_(OPERATIONS|ALL\w+|BROADCAST|REDUCESCATTER)|CPU_OPERATIONS|(CUDA|NCCL|ROCM)_HOME"
    r"|(CUDA|NCCL|NVTX)_(INCLUDE|LIB|LINK)|ALLOW_MIXED_GPU_IMPL|BUILD_\w+|DEBUG)"
)
#: Horovod's own requirements, which its setup.py would else fetch one by one, and what builds it.
BUILD_NEEDS = ("setuptools<81", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi", "numpy")
CMAKE = "cmake>=3.21,<4"  # older ones do not read a toolchain file's name from the environment, newer ones refuse gloo
REPORT_SECONDS = 15.0  # between two lines about a step that goes on
PER_JOB = 1.5e9  # bytes of memory that one compiler takes on torch's headers


class BuildError(Exception):
    """It cannot be built; the message says what to do."""


def say(text: str) -> None:
    """One line for the user."""
    sys.stderr.write(f"horovod: {text}\n")
    sys.stderr.flush()


def cache_folder() -> Path:
    """Where builds are kept, outside of any checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "hpo_pilot"


def build_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Horovod's variables: PyTorch and gloo on CPUs, unless the environment says otherwise."""
    options = {name: value for name, value in environment.items() if VARIABLES.fullmatch(name) and value}
    wants_mpi = any("MPI" in value for name, value in options.items() if name.endswith("OPERATIONS"))
    defaults = {"PYTORCH": True, "GLOO": True, "MPI": wants_mpi, "TENSORFLOW": False, "MXNET": False}
    for part, wanted in defaults.items():
        names = (f"HOROVOD_WITH_{part}", f"HOROVOD_WITHOUT_{part}")
        if not any(options.get(name) == "1" for name in names):
            options[names[not wanted]] = "1"
    return dict(sorted(options.items()))


def wanted_build(torch: str, options: Mapping[str, str], system_torch: bool) -> dict[str, Any]:
    """What distinguishes one build from another before torch is there."""
    return {
        "horovod": HOROVOD,
        "python": platform.python_version(),
        "implementation": sys.implementation.cache_tag,
        "machine": platform.machine(),
        "torch_wanted": "" if system_torch else torch,
        "torch_of": sys.prefix if system_torch else "",
        "options": dict(options),
    }


def find_build(cache: Path, wanted: Mapping[str, Any]) -> Path | None:
    """The newest finished build of that kind; needs no network."""
    found = []
    for path in cache.glob(f"horovod-*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError):  # one that is being replaced, or another version's
            manifest = json.loads(path.read_text())
            if all(manifest.get(key) == value for key, value in wanted.items()):
                found.append((manifest["made"], path.parent))
    return max(found, default=(0, None))[1]


def python_of(build: Path) -> Path:
    """A build's interpreter."""
    return build / "venv" / "bin" / "python"


@contextlib.contextmanager
def alone(cache: Path) -> Iterator[bool]:
    """Waits until no other build runs in this cache; False where its file system has no locks."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".horovod.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another build runs in {cache}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True


def check_system(folder: Path) -> None:
    """Whether a compiler, make and Python's headers are there.

    Raises:
        BuildError: what is missing, and the packages that bring it.
    """
    missing = []
    compiler = os.environ.get("CXX") or "c++"
    source = folder / "probe.cc"
    source.write_text("#include <concepts>\n#include <Python.h>\nint main() { return 0; }\n")
    include = sysconfig.get_paths()["include"]
    if shutil.which(compiler.split()[0]) is None:
        missing.append("g++ (a C++ compiler that knows C++20: g++ 11 or newer; CXX names another)")
    elif not Path(include, "Python.h").is_file():
        missing.append(f"python3-dev (there is no {include}/Python.h)")
    else:
        argv = [*compiler.split(), "-std=c++20", "-fsyntax-only", f"-I{include}", str(source)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            missing.append(f"g++ 11 or newer ({compiler} does not know C++20: {done.stderr.strip()[:200]})")
    if shutil.which("make") is None:
        missing.append("make")
    if missing:
        raise BuildError(
            "this machine lacks: " + "; ".join(missing) + ". On Debian and Ubuntu an administrator installs them with "
            "`apt-get install g++ make python3-dev`, on a supercomputer `module load gcc` has them"
        )


def run(argv: list[str], log: Path, what: str, **environment: str) -> None:
    """Runs a step, its output in the log.

    Raises:
        BuildError: it failed.
    """
    began = time.monotonic()
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(argv)}\n".encode())
        output.flush()
        # A group of its own, so that the compilers end with us.
        process = subprocess.Popen(
            argv, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}, start_new_session=True
        )
        try:
            while (code := waited(process)) is None:
                say(f"{what}: {time.monotonic() - began:.0f} s, {progress(log)}")
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        kept = Path(tempfile.gettempdir()) / f"hpo_pilot-horovod-{os.getpid()}.log"
        shutil.copyfile(log, kept)
        raise BuildError(f"{what} failed; the whole log is in {kept}, its end is:\n{tail}")
    say(f"{what}: {time.monotonic() - began:.0f} s")


def waited(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status of a step; None: it goes on."""
    try:
        return process.wait(REPORT_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def progress(log: Path) -> str:
    """How far a step is: the compiler's last percentage, or what pip does; the log also has pages of warnings."""
    lines = log.read_text(errors="replace").rpartition("\n$ ")[2].splitlines()  # of this step
    found = [match[1] for line in lines if (match := re.match(r" *\[ *(\d+%)\]", line))]
    if found:
        return f"{found[-1]} compiled"
    told = [line for line in lines if line.startswith(("Collecting", "Downloading", "Installing"))]
    return told[-1].split(" (")[0][:80] if told else "in progress"


def ask(python: Path, expression: str) -> str:
    """What a Python of the build says."""
    done = subprocess.run([python, "-c", f"print({expression})"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{python} cannot say {expression}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def cxx_standard(python: Path) -> str:
    """The C++ standard that extensions of this torch are compiled with, "14" to "20"."""
    source = Path(ask(python, "__import__('torch.utils', fromlist=['_']).__path__[0]"), "cpp_extension.py").read_text()
    return max(re.findall(r"-std=c\+\+(1[47]|2\d)\b", source), default="14")


def find_cmake(python: Path, log: Path) -> str:
    """A CMake that does: the machine's, or the one of PyPI, put into the build's venv."""
    found = os.environ.get("HOROVOD_CMAKE") or shutil.which("cmake")
    if found:
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"(\d+)\.(\d+)", said)
        if version and (3, 21) <= (int(version[1]), int(version[2])) < (4, 0):
            return found
    run([str(python), "-m", "pip", "install", "--quiet", CMAKE], log, "installing CMake")
    return str(python.with_name("cmake"))


def jobs() -> int:
    """How many compilers run at once: as many as there are cores, and room for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / PER_JOB)))


def build(folder: Path, wanted: Mapping[str, Any]) -> str:
    """Fills `folder`; returns torch's version and build.

    Raises:
        BuildError: it cannot be built.
    """
    log, python, options = folder / "build.log", python_of(folder), wanted["options"]
    check_system(folder)
    venv = [sys.executable, "-m", "venv", *(["--system-site-packages"] if wanted["torch_of"] else [])]
    run([*venv, str(folder / "venv")], log, "making the venv")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    torch = [wanted["torch_wanted"]] if wanted["torch_wanted"] else []
    run(
        [*pip, "install", "--progress-bar", "off", *torch, *BUILD_NEEDS],
        log,
        "installing " + " and ".join([*torch, "what builds it"]),
    )
    version = ask(python, "__import__('torch').__version__")
    say(f"building Horovod {HOROVOD} against torch {version}: takes some minutes")
    environment = {
        **options,
        "MAKEFLAGS": os.environ.get("MAKEFLAGS") or f"-j{jobs()}",
        "HOROVOD_CMAKE": find_cmake(python, log),
        "CMAKE_TOOLCHAIN_FILE": str(HERE / "toolchain.cmake"),
        "HOROVOD_CXX_STANDARD": cxx_standard(python),
        "HOROVOD_FOR_GPU": str(int(any(name.startswith("HOROVOD_GPU") for name in options))),
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    # -v: the log then has the compiler's percentages.
    wheel = [*pip, "wheel", "-v", "--no-build-isolation", "--no-deps", "--no-cache-dir", "--no-binary", "horovod"]
    run([*wheel, "--wheel-dir", str(folder / "wheel"), f"horovod=={HOROVOD}"], log, "building Horovod", **environment)
    run([*pip, "install", "--quiet", "--no-deps", *map(str, (folder / "wheel").glob("*.whl"))], log, "installing it")
    trial = "import horovod.torch as hvd, torch; hvd.init(); assert hvd.allreduce(torch.ones(2)).sum() == 2"
    run([str(python), "-c", trial], log, "trying it")
    shutil.rmtree(folder / "wheel")
    (folder / "probe.cc").unlink()
    return version


def publish(folder: Path, cache: Path, wanted: Mapping[str, Any], torch: str, seconds: float) -> Path:
    """Gives a finished build its name, in one step."""
    identity = json.dumps({**wanted, "torch": torch}, sort_keys=True)
    name = cache / f"horovod-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    manifest = {**wanted, "torch": torch, "made": time.time(), "seconds": round(seconds, 1)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    link = folder / "link"
    link.symlink_to(folder.relative_to(cache))
    link.replace(name)  # a rename of the link itself
    return name


def sweep(builds: Path) -> None:
    """Removes what interrupted builds left; only with the lock held, so that none of them runs."""
    named = {path.resolve() for path in builds.parent.glob("horovod-*") if path.is_symlink()}
    for folder in builds.glob("*"):
        if folder.resolve() not in named:
            shutil.rmtree(folder, ignore_errors=True)


def add_requirements(found: Path, files: list[Path], *, offline: bool) -> str:
    """Installs what payloads need beside; where all is there it asks nobody. Returns what went wrong."""
    # As pip knows it: torch itself may name its build as well, 2.15.0+cu132 for 2.15.0.
    torch = ask(python_of(found), "__import__('importlib.metadata', fromlist=['_']).version('torch')")
    argv = [str(python_of(found)), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    for file in files:
        argv += ["--requirement", str(file)]
    # Torch stays as it is: Horovod is tied to it.
    argv += [f"torch=={torch}", *(["--no-index"] if offline else [])]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stderr.strip()[-1000:] or "pip failed" if done.returncode else ""


def main() -> None:
    """Builds what is missing, and says where it is."""
    parser = argparse.ArgumentParser(description="Builds Horovod against PyTorch, once, in a cache.")
    parser.add_argument("--where", action="store_true", help="only say where its Python is; builds nothing")
    parser.add_argument("--again", action="store_true", help="build even where there is one")
    parser.add_argument("--torch", default=os.environ.get("TORCH") or TORCH, help=f"what pip shall install ({TORCH})")
    parser.add_argument(
        "--system-torch", action="store_true", help="use the torch that this Python has, as of a facility's module"
    )
    parser.add_argument("--requirements", type=Path, action="append", help="more packages, as files for pip")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cache = cache_folder()
    wanted = wanted_build(given.torch, build_options(os.environ), given.system_torch)
    found = None if given.again else find_build(cache, wanted)
    if given.where:
        if found is None:
            sys.exit("horovod: not built; `make horovod` does it")
        sys.stdout.write(f"{python_of(found)}\n")
        return
    files = given.requirements or [HERE / "requirements.txt"]
    if found is None or add_requirements(found, files, offline=True):
        try:
            found = complete(cache, wanted, files, again=given.again)
        except BuildError as error:
            sys.exit(f"horovod: {error}")
    sys.stdout.write(f"{python_of(found)}\n")


def complete(cache: Path, wanted: Mapping[str, Any], files: list[Path], *, again: bool) -> Path:
    """Builds what is missing, alone.

    Raises:
        BuildError: it cannot be built, or what payloads need cannot be had.
    """
    with alone(cache) as locked:
        found = None if again else find_build(cache, wanted)
        if found is None:
            found = make_build(cache, wanted, sweep_first=locked)
        if trouble := add_requirements(found, files, offline=False):
            raise BuildError(f"the payloads' requirements cannot be installed: {trouble}")
    return found


def make_build(cache: Path, wanted: Mapping[str, Any], *, sweep_first: bool) -> Path:
    """Builds, and gives the result its name; whatever ends it before leaves nothing behind."""
    began, builds = time.monotonic(), cache / "horovod-builds"
    builds.mkdir(parents=True, exist_ok=True)
    if sweep_first:
        sweep(builds)
    folder = Path(tempfile.mkdtemp(dir=builds, prefix=time.strftime("%Y%m%d-%H%M%S-")))
    folder.chmod(0o755)
    try:
        torch = build(folder, wanted)
        name = publish(folder, cache, wanted, torch, time.monotonic() - began)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    say(f"done in {time.monotonic() - began:.0f} s")
    return name


if __name__ == "__main__":
    main()
