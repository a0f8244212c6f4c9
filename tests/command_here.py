"""The command `hpo-pilot` in the tests' own process: quick, for those that only look, or that are refused.

What commands do as processes (signals, a start from nothing, what they load) is tested with processes.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from hpo_pilot.cli.main import main


def command_here(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command as its entry point does.

    Args:
        arguments: the words after `hpo-pilot`.
        cwd: the folder that it runs in.
        env: added to the environment.
    """
    out, err, status = io.StringIO(), io.StringIO(), 0
    handler = signal.getsignal(signal.SIGINT)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"COLUMNS": "200", **(env or {})}))
        stack.enter_context(mock.patch("sys.argv", ["hpo-pilot", *arguments]))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.callback(signal.signal, signal.SIGINT, handler)
        if cwd is not None:
            stack.enter_context(contextlib.chdir(cwd))
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return subprocess.CompletedProcess(["hpo-pilot", *arguments], status, out.getvalue(), err.getvalue())
