"""Lock files agree with setup.cfg and with each other; licences and vulnerabilities are named."""

from __future__ import annotations

import importlib.util
import json
import re
from email.message import Message
from importlib.metadata import PackageMetadata
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "deploy" / "locks").glob("*.txt"))


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_each_version_is_exact_has_hashes_and_names_no_place(path):
    text = path.read_text()
    for block in re.split(r"\n(?=[a-z])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)):
        assert re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)? \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n?)+", block), block
    assert not re.search(r"https?:|index|file:", text)


def test_every_lock_has_what_setup_cfg_asks_for_and_the_same_versions(release):
    assert sorted(release.LOCKS) == [path.stem for path in LOCKS]
    versions: dict[str, set[str]] = {}
    for name in release.LOCKS:
        found = release.locked(name)
        asked = release.asked_for(name)
        assert asked
        for wanted in map(Requirement, asked):
            if wanted.marker is not None and not wanted.marker.evaluate():
                continue
            assert wanted.specifier.contains(found[canonicalize_name(wanted.name)]), f"{wanted}: `make lock`"
        for library, version in found.items():
            versions.setdefault(library, set()).add(version)
    assert {library: found for library, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("expression", "is_allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("BSD-3-Clause AND (MIT OR GPL-2.0-only)", True),
        ("MIT AND GPL-3.0-or-later", False),
        ("AGPL-3.0-only", False),
        ("none named", False),
    ],
)
def test_a_licence_is_allowed_if_one_way_to_use_the_library_is(release, expression, is_allowed):
    assert release.allowed(expression) is is_allowed


def test_a_licence_is_read_from_what_metadata_has(release):
    for fields, licence in [
        ([("License-Expression", "MIT"), ("License", "other")], "MIT"),
        ([("License", ""), ("Classifier", "License :: OSI Approved :: BSD License")], "BSD-3-Clause"),
        ([("License", "Copyright of\nsomebody"), ("Classifier", "Topic :: Physics")], "Copyright of"),
        ([("Classifier", "License :: OSI Approved :: GNU General Public License v3 (GPLv3)")], None),
        ([], "none named"),
    ]:
        metadata = Message()
        for name, value in fields:
            metadata[name] = value
        found = release.licence_of(cast(PackageMetadata, metadata))
        assert found == licence if licence else not release.allowed(found)


def test_a_library_that_may_not_be_used_is_named(release, monkeypatch):
    release.licences()
    monkeypatch.setattr(release, "ALLOWED", release.ALLOWED - {"Zlib"})
    with pytest.raises(release.ReleaseError, match=r"\n  numpy: .*Zlib"):
        release.licences()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "NOT AUDITED"),
        ({"dependencies": [{"name": "a", "skip_reason": "not found"}]}, "NOT AUDITED .*1 of 1 libraries; not found"),
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, "^1 libraries have no known"),
        ({"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}]}, "a 1: CVE-1\n$"),
    ],
)
def test_an_audit_that_saw_nothing_never_passes_as_one(release, monkeypatch, tmp_path, capsys, answer, said):
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer) if answer else ''}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setattr(release, "tool", lambda name: tmp_path / name)
    monkeypatch.setattr(release, "run", lambda *_: "")  # no tag
    release.audit()
    assert re.search(said, capsys.readouterr().out)
    if "CVE" in said:
        monkeypatch.setattr(release, "run", lambda *_: "v1\n")
        with pytest.raises(release.ReleaseError, match=said.strip("\n$")):
            release.audit()
