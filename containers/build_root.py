#!/usr/bin/env python3
"""Makes an unpacked image root for a payload, without a registry, without root.

    python3 build_root.py TARGET --requirements sklearn/requirements.txt
    python3 build_root.py TARGET --requirements sklearn/requirements.txt --base debian

TARGET is what `payload.container` of a search file may name: charliecloud, podman and apptainer run it.
It holds Python with the packages of the requirements, a shell and the usual small programs; no pip, no compiler. Two
bases:

- `machine`: this machine's Python, programs and the libraries they need, copied. Seconds, no network but pip's.
- `debian`: a Debian of its own, made by mmdebstrap from the package sources that this machine's apt uses.

pip is that of the Python that runs this. TARGET appears in one step, when all is done. Standard library alone.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SUITE = "bookworm"  # its Python is 3.11
#: What of the machine's programs goes in, where it has them: what a payload's shell lines use.
PROGRAMS = (  # noqa: SIM905  a page, one to a line
    "sh cat chmod cp cut date dirname basename env expr false grep gzip head hostname id ln ls mkdir mktemp mv nproc rm"
    " rmdir sed sleep sort tail tar tee test touch tr true uname wc"
).split()
#: The machine's libraries that wheels count on (PEP 600 has the list; of it, what is not for screens).
WHEELS_NEED = [
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "libdl.so.2",
    "librt.so.1",
    "libc.so.6",
    "libutil.so.1",
    "libpthread.so.0",
    "libresolv.so.2",
]
#: Of Python's library: what only developers need. Byte code stays: imports are slow without it.
LEFT_OUT = shutil.ignore_patterns("site-packages", "test", "idlelib", "tkinter", "ensurepip", "config-*", "*.a")
FOLDERS = ("dev", "etc", "home", "mnt", "proc", "root", "run", "sys", "tmp", "var/tmp")
#: The user inside, for runtimes that do not take the caller's.
USER = "payload:x:1000:1000::/home/payload:/bin/sh"


class RootError(Exception):
    """It cannot be made; the message says what to do."""


def machine_base(root: Path) -> Path:
    """Copies this machine's Python, a shell and small programs.

    Returns:
        The folder in `root` where packages go.
    """
    library = Path(sysconfig.get_path("stdlib"))
    python = (Path(sys.base_prefix) / "bin" / f"python{PYTHON}").resolve()
    shutil.copytree(library, inside(root, library), ignore=LEFT_OUT)
    programs = {f"/usr/bin/{name}": found for name in PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))}
    (root / "usr" / "bin").mkdir(parents=True, exist_ok=True)
    (root / "bin").symlink_to("usr/bin")
    for name, program in {**programs, str(python): str(python)}.items():
        copy(Path(program), root, name)
    for folder in (root / "usr" / "bin", inside(root, python.parent)):  # the latter for venvs of this Python
        for name in ("python3", "python"):
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(python)
    for file in [*map(Path, programs.values()), python, *library.glob("lib-dynload/*.so")]:
        for needed in libraries(file):
            copy(Path(needed), root, needed)
    for name in WHEELS_NEED:
        found = system_library(name)
        if found is not None:
            copy(found, root, str(found))
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\n")
    return inside(root, sysconfig.get_path("purelib", vars={"base": sys.base_prefix}))


def debian_base(root: Path) -> Path:
    """Unpacks a Debian with Python; see machine_base.

    Raises:
        RootError: there is no mmdebstrap, or it fails.
    """
    if shutil.which("mmdebstrap") is None:
        raise RootError("--base debian needs mmdebstrap (`apt-get install mmdebstrap`); --base machine does without")
    sources = [str(path) for path in map(Path, ("/etc/apt/sources.list", *debian_sources())) if path.is_file()]
    small = ["man", "locale", "doc", "info", "lintian"]
    argv = ["mmdebstrap", "--quiet", "--variant=essential", "--include=python3", '--aptopt=Acquire::Languages "none"']
    argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in small]
    argv += ["--dpkgopt=path-include=/usr/share/doc/*/copyright", SUITE, "-", *sources]
    unpack = ["tar", "--extract", "--directory", str(root), "--no-same-owner", "--exclude=./dev/*"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as making:
        unpacked = subprocess.run(unpack, stdin=making.stdout, check=False)
    if making.returncode or unpacked.returncode:
        raise RootError(f"mmdebstrap failed with status {making.returncode}: see above")
    shutil.rmtree(root / "var" / "lib" / "apt" / "lists", ignore_errors=True)
    (root / "usr" / "bin" / "python").symlink_to("python3")
    versions = [path.name for path in (root / "usr" / "lib").glob("python3.*")]
    if f"python{PYTHON}" not in versions:
        raise RootError(f"{SUITE} has {', '.join(versions)}: run this with that Python, so that pip takes its packages")
    return root / "usr" / "local" / "lib" / f"python{PYTHON}" / "dist-packages"


def debian_sources() -> list[str]:
    """The machine's own package sources that are Debian's; others have other archives' keys."""
    folder = Path("/etc/apt/sources.list.d")
    return [str(path) for path in sorted(folder.glob("*.sources")) if SUITE in path.read_text(errors="replace")]


BASES = {"machine": machine_base, "debian": debian_base}


def install(packages: Path, root: Path, requirements: list[Path]) -> None:
    """Puts the requirements where the root's Python finds them: wheels alone, so that no compiler is needed.

    Raises:
        RootError: pip cannot.
    """
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    argv += ["--only-binary=:all:", "--target", str(packages)]
    for file in requirements:
        argv += ["--requirement", str(file)]
    if subprocess.run(argv, check=False).returncode:
        raise RootError("pip failed: see above")
    shutil.rmtree(packages / "bin", ignore_errors=True)  # commands that name the Python outside
    for path in sorted(packages.rglob("*")):
        if path.name == "tests" and path.is_dir():
            shutil.rmtree(path)
        elif path.suffix == ".a":  # for those who compile
            path.unlink()
    # With the paths that they have inside.
    compiling = [sys.executable, "-m", "compileall", "-q", "-s", str(root), "-p", "/", str(packages)]
    subprocess.run(compiling, stdout=subprocess.DEVNULL, check=False)  # some packages bring templates, not Python


def finish(root: Path) -> None:
    """The folders and files that runtimes put the machine's own over, and a user."""
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name in ("hosts", "nsswitch.conf", "resolv.conf"):
        (root / "etc" / name).touch()
    with (root / "etc" / "passwd").open("a") as file:
        file.write(f"{USER}\n")
    with (root / "etc" / "group").open("a") as file:
        file.write("payload:x:1000:\n")
    (root / "home" / "payload").mkdir(exist_ok=True)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    root.chmod(0o755)  # the temporary folder that it was is nobody else's


def inside(root: Path, path: str | Path) -> Path:
    """Where a path of the image lies."""
    return root / str(path).lstrip("/")


def copy(file: Path, root: Path, name: str) -> None:
    """Copies a file to a path of the image, once."""
    target = inside(root, name)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def libraries(file: Path) -> list[str]:
    """The shared libraries that a program or a library loads."""
    said = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", said)


def system_library(name: str) -> Path | None:
    """Where the machine has a shared library; found by loading it, so that it is of the right architecture."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return None
    stem = name.split(".so", maxsplit=1)[0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(stem) and path.with_name(name).exists():
            return path.with_name(name)
    return None


def build(target: Path, base: str, requirements: list[Path]) -> None:
    """Makes TARGET, in one step at the end.

    Raises:
        RootError: it is there already, or cannot be made.
    """
    if target.exists():
        raise RootError(f"{target} is there already: remove it first, or name another")
    target.parent.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        packages = BASES[base](root)
        packages.mkdir(parents=True, exist_ok=True)
        if requirements:
            install(packages, root, requirements)
        finish(root)
        root.rename(target)
    except OSError as error:
        raise RootError(f"{target} cannot be made: {error}") from error
    finally:
        shutil.rmtree(root, ignore_errors=True)


def size(root: Path) -> int:
    """What it takes, in bytes."""
    return sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir())


def main() -> None:
    """Makes a root, and says how big it is."""
    parser = argparse.ArgumentParser(description="Makes an unpacked image root for a payload.")
    parser.add_argument("target", type=Path, help="the folder to make")
    parser.add_argument("--requirements", type=Path, action="append", default=[], help="packages, as a file for pip")
    parser.add_argument("--base", choices=sorted(BASES), default="machine", help="what it is made of (machine)")
    given = parser.parse_args()
    began = time.monotonic()
    try:
        build(given.target.absolute(), given.base, given.requirements)
    except RootError as error:
        sys.exit(f"build_root: {error}")
    sys.stderr.write(f"build_root: {size(given.target) / 1e6:.0f} MB in {time.monotonic() - began:.0f} s\n")
    sys.stdout.write(f"{given.target.absolute()}\n")


if __name__ == "__main__":
    main()
