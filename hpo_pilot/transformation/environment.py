"""What a job's processes find in their environment."""

import json
import os
import re
from typing import Dict, Mapping, Optional

#: Parts of variable names that mark secrets; jobs get none of the pilot's.
_SECRETS = frozenset(["TOKEN", "TOKENS", "X509", "OIDC"])

#: The same, wherever they stand in a name: PGPASSWORD.
_SECRET = re.compile("SECRET|PASSW(OR)?D|CREDENTIAL")

#: A URL with a password, such as a database's; but without that of a proxy a job may reach nothing.
_PASSWORD = re.compile(r"://[^/\s@:]*:[^/\s@]+@")
_PROXY = "_PROXY"

#: What batch systems and launchers say of the job that a process is in: it holds there alone.
_OF_THE_JOB = ("COBALT_", "FLUX_", "LSB_", "LSF_", "OMPI_", "PALS_", "PBS_", "PMI", "SLURM")


def keep_environment(folder: str, name: str, environment: Mapping[str, str]) -> None:
    """Keeps the environment of whoever submits a search, for the jobs that run on this machine; no credentials.

    Args:
        folder: where it is kept; made if need be.
        name: under which it is found again.
        environment: of the submitting process.

    Raises:
        OSError: it cannot be written.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, name + ".json")
    new = "%s.%d" % (path, os.getpid())
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(without_secrets(environment), file)
    os.rename(new, path)


def kept_environment(folder: str, name: str, here: Mapping[str, str]) -> Optional[Dict[str, str]]:
    """The environment that was kept; None: there is none.

    Args:
        folder: as `keep_environment` has it.
        name: the same.
        here: this process's own environment, which knows the batch job that it is in.
    """
    try:
        with open(os.path.join(folder, name + ".json")) as file:
            kept = json.load(file)
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict):
        return None
    found = {str(key): str(value) for key, value in kept.items() if not key.startswith(_OF_THE_JOB)}
    found.update((key, value) for key, value in here.items() if key.startswith(_OF_THE_JOB))
    return without_secrets(found)


def without_secrets(environment: Mapping[str, str]) -> Dict[str, str]:
    """A copy without what looks like a credential."""
    return {name: value for name, value in environment.items() if not _is_secret(name.upper(), value)}


def _is_secret(name: str, value: str) -> bool:
    if _SECRETS & set(name.split("_")) or _SECRET.search(name):
        return True
    return _PASSWORD.search(value) is not None and not name.endswith(_PROXY)
