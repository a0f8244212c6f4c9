"""Tests with real parts: run by `make test-real`, which installs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Scan
from tests.real.processes import missing
from tests.real.target import Target, embedded_target, named_target

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` needs only Python: it leaves these tests out."""
    if os.environ.get("HPO_PILOT_TEST_REAL") == "1":
        long = os.environ.get("HPO_PILOT_TEST_LONG") == "1"
        for item in items:
            if item.get_closest_marker("long") and not long:
                item.add_marker(pytest.mark.skip(reason="a long training: HPO_PILOT_TEST_LONG=1 runs it"))
        return
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.skip(reason="needs real parts: `make test-real` runs it"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium for the pages and the figures; while it is open, no test in this process can run an event loop."""
    program = shutil.which("chromium") or shutil.which("google-chrome") or missing("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright (tests/real/requirements.txt)")
    arguments = ["--no-sandbox", "--enable-unsafe-swiftshader"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def barriers() -> Callable[[Any], list[tuple[str, str]]]:
    """Returns the serious findings of axe on a page: each with the HTML of its first element."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        missing("axe-playwright-python (tests/real/requirements.txt)")

    def find(page: Any) -> list[tuple[str, str]]:
        found = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
        return [(one["id"], one["nodes"][0]["html"][:200]) for one in found]

    return find


@pytest.fixture(scope="session")
def horovod() -> Path:
    """The Python for which `make horovod` built Horovod."""
    named = os.environ.get("HPO_PILOT_TEST_HOROVOD")
    if not named:
        script = Path(__file__).parents[2] / "deploy" / "horovod" / "build.py"
        done = subprocess.run(["python3", script, "--where"], capture_output=True, text=True, check=False)
        named = done.stdout.strip() or missing(done.stderr.strip())
    return Path(named)


@pytest.fixture(scope="session")
def environment(horovod: Path) -> dict[str, str]:
    """Where `python` and `horovodrun` are those of the build."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPO_PILOT_", "HOROVOD_"))}
    return {**kept, "PATH": f"{horovod.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def start(
    tmp_path: Path, environment: dict[str, str], payload_files: list[Path]
) -> Callable[..., subprocess.Popen[str]]:
    """Starts a command beside the payload's files, in a folder of that name."""

    def begin(name: str, command: str, point: dict[str, Any], **variables: str) -> subprocess.Popen[str]:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for file in payload_files:
            shutil.copy(file, folder)
        (folder / "input.json").write_text(json.dumps(point))
        return subprocess.Popen(
            command.split(),
            cwd=folder,
            env={**environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return begin


@pytest.fixture
def train(tmp_path: Path, start: Callable[..., subprocess.Popen[str]], seconds: float) -> Callable[..., dict[str, Any]]:
    """Trains to the end, which must come in so many seconds; returns output.json, with what was said."""

    def run(name: str, command: str, point: dict[str, Any], **variables: str) -> dict[str, Any]:
        process = start(name, command, point, **variables)
        said, _ = process.communicate(timeout=seconds)
        assert process.returncode == 0, said
        result: dict[str, Any] = json.loads((tmp_path / name / "output.json").read_text())
        return {**result, "said": said}

    return run


@pytest.fixture
def kill_after_a_checkpoint(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> Callable[..., None]:
    """Starts a training as `start`, and kills it when it has written a checkpoint."""

    def run(name: str, command: str, point: dict[str, Any]) -> None:
        process = start(name, command, point)
        end = time.monotonic() + 600
        while not list((tmp_path / name / "ckpt").glob("*.pt")) and time.monotonic() < end:
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (tmp_path / name / "output.json").exists(), "it had ended before the kill: give it more epochs"

    return run


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The server that the environment names; by default an embedded one over TLS."""
    named = bool(os.environ.get("PANDA_URL_SSL"))
    with named_target() if named else embedded_target(tmp_path_factory.mktemp("panda")) as server:
        yield server


@pytest.fixture
def scan(tmp_path: Path, target: Target) -> Scan:
    """A work folder whose commands go to the target with nothing but panda-client's variables."""
    return Scan(tmp_path, target.environment)
