from __future__ import annotations

import json
import sys
import time

import pytest

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.hpc.batch_system import CommandFailedError, ask_batch_system, run_command

SHOW = (sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")


def test_users_settings_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of login nodes' commands and of those that a pilot asks."""
    for name in ("SQUEUE_FORMAT", "SBATCH_ACCOUNT", "FLUX_JOBS_FORMAT"):
        monkeypatch.setenv(name, "odd")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    for said in (run_command(SHOW), ask_batch_system(SHOW)):
        seen = json.loads(said)
        assert seen["LC_ALL"] == "C.UTF-8" and "odd" not in seen.values() and "PATH" in seen


def test_one_that_hangs_with_children() -> None:
    """A wrapper around the real command: what it leaves behind holds its output open."""
    began = time.monotonic()
    with pytest.raises(TryAgainError, match=r"sh has not answered for 0 s"):
        run_command(("sh", "-c", "sleep 3 & sleep 3"), seconds=0.3)
    assert time.monotonic() - began < 2.5


def test_what_goes_wrong() -> None:
    with pytest.raises(InputError, match=r"there is no no-such-command in PATH here: .* on a login node"):
        run_command(("no-such-command",))
    with pytest.raises(CommandFailedError, match="sh ended with status 3: what is wrong"):
        run_command(("sh", "-c", "echo what is wrong >&2; exit 3"))
    for words in (("no-such-command",), ("sh", "-c", "exit 3")):
        with pytest.raises(InputError):
            ask_batch_system(words)
