"""What a job's processes find in their environment."""

import re
from typing import Dict, Mapping

#: Parts of variable names that mark secrets; jobs get none of the pilot's.
_SECRETS = frozenset(["TOKEN", "TOKENS", "X509", "OIDC"])

#: The same, wherever they stand in a name: PGPASSWORD.
_SECRET = re.compile("SECRET|PASSW(OR)?D|CREDENTIAL")

#: A URL with a password, such as a database's; but without that of a proxy a job may reach nothing.
_PASSWORD = re.compile(r"://[^/\s@:]*:[^/\s@]+@")
_PROXY = "_PROXY"


def without_secrets(environment: Mapping[str, str]) -> Dict[str, str]:
    """A copy without what looks like a credential."""
    return {name: value for name, value in environment.items() if not _is_secret(name.upper(), value)}


def _is_secret(name: str, value: str) -> bool:
    if _SECRETS & set(name.split("_")) or _SECRET.search(name):
        return True
    return _PASSWORD.search(value) is not None and not name.endswith(_PROXY)
