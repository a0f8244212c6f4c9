"""What `doctor` says of PyTorch and Horovod: of the Python that a payload's command finds, and of what was built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpo_pilot.steering import doctor
from hpo_pilot.steering.doctor import Finding


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "cache" / "hpo_pilot"


def python_on_path(folder: Path, versions: str) -> Path:
    path = folder / "bin" / "python"
    path.write_text(f"#!/bin/sh\necho '{versions}'\n")
    path.chmod(0o755)
    return path


def findings() -> dict[str, Finding]:
    return {finding.what: finding for finding in doctor._training()}


@pytest.mark.parametrize(
    ("answer", "has"),
    [
        ('{"torch": "2.13.0+cpu", "horovod": "0.28.1"}', True),
        ("{}", False),
        ("no JSON", False),
        ("", False),
        (None, False),
    ],
    ids=["both", "neither", "no JSON", "silent", "no Python"],
)
def test_the_python_of_the_path_is_asked_and_not_our_own(cache, tmp_path, answer, has):
    """Payloads run in the environment that is active, whatever hpo-pilot itself runs in."""
    python = python_on_path(tmp_path, answer) if answer is not None else None
    found = findings()
    assert found["payloads' Python"].ok is (python is not None)
    assert python is None or str(python) in found["payloads' Python"].detail
    assert (found["torch"].ok, found["horovod"].ok, found["horovod"].needed) == (has, has, False)
    if has:
        assert found["torch"].detail == f"2.13.0+cpu in {python}"
        assert found["horovod"].detail == f"0.28.1 in {python}"
    else:
        assert "`make horovod` builds it" in found["horovod"].detail


def test_what_make_horovod_built_is_pointed_to(cache, tmp_path):
    python = python_on_path(tmp_path, "{}")
    for name, made in (("horovod-0123456789ab", 1.0), ("horovod-ba9876543210", 2.0), ("horovod-broken", None)):
        (cache / name).mkdir(parents=True)
        manifest = {"horovod": "0.28.1", "torch": f"2.{made}", "made": made}
        (cache / name / "horovod.json").write_text(json.dumps(manifest))
    found = findings()["horovod"]
    assert not found.ok
    built = cache / "horovod-ba9876543210" / "venv" / "bin"
    assert found.detail == (f"not in {python}; `make horovod` built 0.28.1 with torch 2.2.0: put {built} first in PATH")
