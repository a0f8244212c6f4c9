"""Processes of tests with real parts: started, waited for, ended; and released programs from the package index."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from hpo_pilot.search.yaml_document import read_document
from tests.end_to_end.conftest import Scan


def missing(what: str) -> NoReturn:
    """Ends a test whose real part this machine lacks: skipped, or failed where everything must be there."""
    if os.environ.get("HPO_PILOT_TEST_STRICT") == "1":
        pytest.fail(f"missing: {what}")
    pytest.skip(what)


def until(condition: Callable[[], object], why: str | Path | Callable[[], str] = "", seconds: float = 600.0) -> None:
    """Waits until a condition holds.

    Args:
        condition: called again and again.
        why: what to show if it does not hold in time: a text, a log, or what returns a text.
        seconds: time limit.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            shown = why() if callable(why) else why
            said = shown.read_text(errors="replace") if isinstance(shown, Path) and shown.exists() else shown
            pytest.fail(f"not within {seconds:g} s: {said}")
        time.sleep(0.1)


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A command in the background, with this environment alone; it ends with SIGTERM."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(600)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def serving(scan: Scan, slots: int = 0) -> Iterator[Path]:
    """The service of a work folder, by default without pilots of its own; its log."""
    log = scan.root / "serve.log"
    command = scan.command("serve", "--slots", str(slots))
    with running(command, {**os.environ, **scan.environment}, log) as process:
        until(lambda: "serving" in log.read_text() or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        yield log


def write_search(scan: Scan, file: Path, edit: Callable[[Any], None] = lambda _: None, **changes: Any) -> None:
    """Writes a payload's search file for a test: called `demo`, with random points.

    Args:
        scan: where it is written.
        file: the search file beside the payload.
        edit: changes the document in place.
        changes: keys of the document; None removes the key.
    """
    document = json.loads(json.dumps(read_document(file).value))
    document["payload"]["files"] = str(file.parent)
    edit(document)
    document |= {"search": "demo", "optimizer": "random", **changes}
    scan.file.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))


def sdist(name: str, version: str) -> Path:
    """The source package of a release, downloaded once."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("HPO_PILOT_CACHE") or caches / "hpo_pilot")
    packed = cache / f"{name.replace('panda-client', 'panda_client')}-{version}.tar.gz"
    if packed.is_file():
        return packed
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        # Its metadata is made by its own setup.py, so this must not be one that asks for more.
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        done = subprocess.run(
            [*argv, "--dest", folder, f"{name}=={version}"], capture_output=True, text=True, check=False
        )
        found = Path(folder) / packed.name
        if done.returncode or not found.is_file():
            missing(f"{name} {version} cannot be fetched: {done.stderr[-500:]}")
        return found.replace(packed)
