#!/usr/bin/env python3
"""Makes and examines a release: lock files, wheel and source archive, SBOM, licences, known vulnerabilities.

    .venv/bin/python deploy/release.py lock              # make lock: deploy/locks/ from setup.cfg
    .venv/bin/python deploy/release.py licences          # part of make check
    .venv/bin/python deploy/release.py make              # make release: dist/, from the last commit

It runs the tools of `deploy/locks/release.txt` in the environment of the Python that runs it.
"""

from __future__ import annotations

import argparse
import configparser
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LOCKS = ROOT / "deploy" / "locks"
_DIST = ROOT / "dist"

#: Lock files: the extras of setup.cfg that each covers, and whether it covers the base. The first decides on versions.
LOCKS = {
    "develop": (("service", "postgresql", "test", "check", "bench"), True),
    "service": (("service", "postgresql"), True),
    "steering": (("steering",), True),
    "pilot": ((), True),
    "build": (("build",), False),
    "release": (("release",), False),
}

#: Licences under which a library may be a part of the images: permissive ones, and those of the LGPL and the MPL, which
#: bind changes of the library alone. The GPL and the AGPL would bind hpo-pilot too; they are left out on purpose.
ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0", "PSF-2.0"),
    *("Unlicense", "WTFPL", "Zlib", "MPL-2.0"),
    *("LGPL-2.1-or-later", "LGPL-3.0-only", "LGPL-3.0-or-later"),
}

#: Names of licences in metadata older than SPDX expressions (PEP 639), and in classifiers.
_OLDER_NAMES = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 3-clause": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "GNU Library or Lesser General Public License (LGPL)": "LGPL-3.0-or-later",
    "ISC License (ISCL)": "ISC",
    "LGPL": "LGPL-3.0-or-later",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


class ReleaseError(Exception):
    """The release cannot be made as it is; the message says why and what to do."""


def run(*argv: str | Path, folder: Path = ROOT, stdin: str | None = None, **variables: str) -> str:
    """Runs a program and returns what it prints.

    Raises:
        ReleaseError: it failed.
    """
    environment = {**os.environ, **variables}
    done = subprocess.run(argv, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, argv))} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def tool(name: str) -> Path:
    """Returns the path of a program of this environment."""
    return Path(sys.executable).with_name(name)


# --- lock files ---


def asked_for(name: str) -> list[str]:
    """Returns the requirements of setup.cfg that a lock file covers."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras, base = LOCKS[name]
    asked = [setup["options"]["install_requires"]] if base else []
    asked += [setup["options.extras_require"][extra] for extra in extras]
    return [line for line in "\n".join(asked).splitlines() if line]


def lock(upgrade: bool) -> None:
    """Writes the lock files: versions and hashes of all libraries, for Python 3.11 and later."""
    for name in LOCKS:
        argv = [tool("uv"), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
        argv += ["--no-annotate", "--no-header", "--output-file", _LOCKS / f"{name}.txt", "-"]
        argv += ["--constraint", _LOCKS / "develop.txt"] if name != "develop" else ["--upgrade"] if upgrade else []
        run(*argv, stdin="\n".join(asked_for(name)))


def locked(name: str) -> dict[str, str]:
    """Returns name and version of each library in a lock file that belongs in this environment."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = re.findall(r"^([\w.-]+==.*?) \\$", (_LOCKS / f"{name}.txt").read_text(), re.MULTILINE)
    wanted = [one for one in map(Requirement, lines) if one.marker is None or one.marker.evaluate()]
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in wanted}


# --- licences ---


def licence_of(metadata: importlib.metadata.PackageMetadata) -> str:
    """Returns the licences that a library may be used under, as an SPDX expression; as it writes them, if unknown."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    written = metadata.get("License") or ""
    named = [one.rpartition(" :: ")[2] for one in metadata.get_all("Classifier", []) if one.startswith("License ::")]
    for name in [written, *named]:
        known = _OLDER_NAMES.get(name.strip(), name.strip())
        if known in ALLOWED:
            return known
    return written.partition("\n")[0].strip() or " ".join(named) or "none named"


def allowed(expression: str) -> bool:
    """Returns whether an SPDX expression without parentheses in parentheses allows a library in the images."""
    plain = re.sub(r"\(([^()]*)\)", lambda found: "MIT" if allowed(found[1]) else "no", expression)
    return any(all(one.strip() in ALLOWED for one in way.split(" AND ")) for way in plain.split(" OR "))


def licences(name: str = "service") -> None:
    """Checks the licences of all libraries in a lock file.

    Raises:
        ReleaseError: a library is not installed, or has a licence that ALLOWED does not have.
    """
    refused = []
    for library in locked(name):
        try:
            licence = licence_of(importlib.metadata.metadata(library))
        except importlib.metadata.PackageNotFoundError:
            raise ReleaseError(f"{library} of deploy/locks/{name}.txt is not installed: `make venv` first") from None
        if not allowed(licence):
            refused.append(f"{library}: {licence}")
    if refused:
        raise ReleaseError(
            "these libraries may not go into the images; use others, or add a licence that agrees with Apache-2.0 to "
            "ALLOWED of deploy/release.py:\n  " + "\n  ".join(refused)
        )


# --- wheel and source archive ---


def contents(wheel: Path) -> dict[str, int]:
    """Returns names and checksums of a wheel's files, its list of them apart."""
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: one.CRC for one in archive.infolist() if not one.filename.endswith("/RECORD")}


def build(source: Path, target: Path) -> tuple[Path, Path]:
    """Builds the source archive, and the wheel from it.

    Returns:
        The wheel and the source archive.

    Raises:
        ReleaseError: they cannot be built, the wheel lacks files of the package, or the archive makes another one.
    """
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    argv = (sys.executable, "-m", "build", "--no-isolation")
    run(*argv, "--outdir", target, source, SOURCE_DATE_EPOCH=epoch)
    run(*argv, "--wheel", "--outdir", target / "direct", source, SOURCE_DATE_EPOCH=epoch)
    (wheel,), (archive,), (direct,) = (target.glob(one) for one in ("*.whl", "*.tar.gz", "direct/*.whl"))
    packed = contents(wheel)
    if other := packed.items() ^ contents(direct).items():
        raise ReleaseError(f"wheels of the checkout and of the source archive differ: {sorted(dict(other))}")
    shutil.rmtree(target / "direct")
    wanted = {str(one.relative_to(source)) for one in (source / "hpo_pilot").rglob("*") if one.is_file()}
    names = {*packed, *(name.partition("/data/share/hpo_pilot/")[2] for name in packed)}
    wanted |= {f"sites/{one.name}" for one in (source / "deploy" / "sites").glob("*.yaml")}
    if missing := {one for one in wanted if "/build/" not in one} - names:
        raise ReleaseError(f"the wheel lacks {sorted(missing)}: see package_data in setup.cfg")
    return wheel, archive


def install(wheel: Path, folder: Path) -> Path:
    """Installs the wheel with the libraries of `deploy/locks/service.txt`, as the image does.

    Returns:
        The folder of the programs.
    """
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    wheels = folder / "wheels"
    run(*pip, "wheel", "--require-hashes", "--no-build-isolation", "-w", wheels, "-r", _LOCKS / "service.txt")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "released")
    python = folder / "released" / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-index", "--no-deps", *wheels.glob("*.whl"), wheel)
    run(*pip, "--python", python, "check")
    return python.parent


_TRAINING = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
print(f"loss={(parser.parse_args().x - 1) ** 2}")
"""
_SEARCH = """\
search: tried
space: {x: {type: real, low: -2, high: 2}}
budget: {trials: 4, parallel: 2}
payload: {files: training, command: 'python train.py --x {x}', result: {stdout: 'loss=(\\S+)'}}
resources: {cores: 1, memory_mb: 500, minutes: 5}
"""


def attempt(programs: Path, version: str, folder: Path) -> None:
    """Uses an installed hpo-pilot outside of the checkout: a search, its report, the manual, the site profiles.

    Raises:
        ReleaseError: something of it does not work.
    """
    folder.mkdir()
    (folder / "training").mkdir()
    (folder / "training" / "train.py").write_text(_TRAINING)
    (folder / "search.yaml").write_text(_SEARCH)
    pilot = programs / "hpo-pilot"

    def call(*words: str) -> str:
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        return run(pilot, *words, folder=folder, PATH=path, HOME=str(folder), NO_COLOR="1")

    if call("--version").split()[-1] != version:
        raise ReleaseError(f"{pilot} --version is not {version}")
    call("run", "search.yaml")
    best = json.loads(call("best", "tried", "--json"))
    if best["state"] != "finished" or not (folder / "hpo-pilot" / "reports" / "tried.html").is_file():
        raise ReleaseError(f"a search with {pilot} has no best trial, or no report: {best}")
    call("manual", "tutorial")
    call("sites", "show", "perlmutter")


# --- what is said about it ---


def describe(programs: Path, target: Path) -> None:
    """Writes the SBOM of an environment with hpo-pilot: CycloneDX JSON."""
    argv = (tool("cyclonedx-py"), "environment", "--output-reproducible", "--output-format", "JSON")
    document = json.loads(run(*argv, programs / "python"))
    for component in document["components"]:
        # The folder with the wheels is gone; their hashes stay.
        references = component.get("externalReferences", [])
        places = [one for one in references if one["url"].startswith("file:")]
        component["externalReferences"] = [one for one in references if one not in places]
        component["hashes"] = [one for place in places for one in place.get("hashes", ())]
    (ours,) = (one for one in document["components"] if one["name"] == "hpo-pilot")
    document["components"].remove(ours)
    document["metadata"]["component"] = {**ours, "type": "application"}
    target.write_text(json.dumps(document, indent=1) + "\n")


def audit() -> None:
    """Looks up known vulnerabilities of the libraries in `deploy/locks/service.txt`; says what could not be looked up.

    Raises:
        ReleaseError: there are some, and the last commit has the tag of a release. Other commits must not fail because
            somebody has found one meanwhile.
    """
    argv = [tool("pip-audit"), "--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    argv += ["--requirement", _LOCKS / "service.txt"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, LookupError):
        print(f"NOT AUDITED for known vulnerabilities: {done.stderr.strip().rpartition(chr(10))[2] or 'no answer'}")
        return
    if known := [f"{one['name']} {one['version']}: {bad['id']}" for one in found for bad in one.get("vulns", ())]:
        text = "libraries have known vulnerabilities; `make lock LOCK=--upgrade`:\n  " + "\n  ".join(known)
        if run("git", "tag", "--points-at", "HEAD").strip():
            raise ReleaseError(text)
        print(text)
        return
    skipped = [str(one["skip_reason"]) for one in found if "skip_reason" in one]
    if len(found) > len(skipped):
        print(f"{len(found) - len(skipped)} libraries have no known vulnerability")
    if skipped:
        print(f"NOT AUDITED for known vulnerabilities: {len(skipped)} of {len(found)} libraries; {skipped[0]}")


def exported(folder: Path) -> Path:
    """Unpacks the last commit: only committed files get into a release."""
    commit = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(commit)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def make() -> None:
    """Makes dist/ and tries what is in it."""
    if run("git", "status", "--porcelain"):
        print("there are changes that are not committed: they are not in this release")
    licences()
    shutil.rmtree(_DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, archive = build(exported(folder / "source"), _DIST)
        version = wheel.name.split("-")[1]
        programs = install(wheel, folder)
        attempt(programs, version, folder / "tried")
        described = _DIST / f"hpo_pilot-{version}.cdx.json"
        describe(programs, described)
    audit()
    for path in (wheel, archive, described):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB")


def main(words: Iterable[str] | None = None) -> None:
    """Does what the first word says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make")
    commands.add_parser("licences")
    commands.add_parser("lock").add_argument("--upgrade", action="store_true", help="take the newest versions")
    given = parser.parse_args(None if words is None else list(words))
    try:
        if given.command == "lock":
            lock(given.upgrade)
        else:
            {"make": make, "licences": licences}[given.command]()
    except ReleaseError as error:
        sys.exit(f"release: {error}")


if __name__ == "__main__":
    main()
