"""Tokens for tests: one signing key per test process, so that a token is good at each of its servers."""

from __future__ import annotations

import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from hpo_pilot.server.tokens import Authority, Role

_HOME = tempfile.TemporaryDirectory(prefix="hpo-pilot-test-tokens-")


@lru_cache
def token(name: str, role: Role) -> str:
    """A token that is good for a day."""
    return Authority(Path(_HOME.name)).issue(name, role, 1)[0]


def make_token_folder(folder: Path) -> Path:
    """A token folder whose key signed the tokens of this module."""
    Authority(Path(_HOME.name))
    shutil.copytree(_HOME.name, folder)
    folder.chmod(0o700)
    return folder
