"""The user's name at the embedded server."""

from __future__ import annotations

import getpass
import os
import re


def nickname() -> str:
    """The user's name as PanDA wants it in task names."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no such user in the password database, as in some containers
        name = f"uid{os.getuid()}"
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:30]
