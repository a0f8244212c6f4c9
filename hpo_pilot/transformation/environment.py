"""What a job's processes find in their environment."""

from typing import Dict, Mapping

#: Parts of variable names that mark secrets; jobs get none of the pilot's.
_SECRETS = frozenset(
    ["TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "X509", "OIDC"]
)


def without_secrets(environment: Mapping[str, str]) -> Dict[str, str]:
    """A copy without what looks like a credential."""
    return {name: value for name, value in environment.items() if not _SECRETS & set(name.upper().split("_"))}
