"""Task parameters that the real prun makes of a command line, without sending them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.panda_environment import panda_environment

_SCRIPT = """
import json, sys
from pandaclient import {script}
print("\\x01" + json.dumps({script}.main(True, sys.argv[1:], True)))
"""


def prun(folder: Path, *options: str, script: str = "PrunScript") -> dict[str, Any]:
    """Runs `script` of panda-client in `folder`."""
    environment = panda_environment("http://127.0.0.1:1", folder / "no token", None)
    environment |= {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PANDA_AUTH_ID_TOKEN": "none", "PANDA_SYS": "/none"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(script=script), *options],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "\x01" in done.stdout, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.split("\x01", 1)[1])
    return found
