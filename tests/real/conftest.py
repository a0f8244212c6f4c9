"""Tests with real parts: run by `make test-real`, which installs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.end_to_end.conftest import Scan
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


def missing(what: str) -> NoReturn:
    """Ends a test whose real part this machine lacks: skipped, or failed where everything must be there."""
    if os.environ.get("HPO_PILOT_TEST_STRICT") == "1":
        pytest.fail(f"missing: {what}")
    pytest.skip(what)


@pytest.fixture(scope="session")
def horovod() -> Path:
    """The Python for which `make horovod` built Horovod."""
    named = os.environ.get("HPO_PILOT_TEST_HOROVOD")
    if not named:
        script = Path(__file__).parents[2] / "deploy" / "horovod" / "build.py"
        done = subprocess.run(["python3", script, "--where"], capture_output=True, text=True, check=False)
        named = done.stdout.strip() or missing(done.stderr.strip())
    return Path(named)


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
