"""The variables by which panda-client finds a server."""

from __future__ import annotations

from pathlib import Path


def panda_environment(url: str, token_file: Path, authorities: Path | None) -> dict[str, str]:
    """Those of whose tokens are a server's own; `authorities`: the folder of those behind its certificate."""
    base = f"{url}/server/panda"
    return {
        "PANDA_URL": base,
        "PANDA_URL_SSL": base,
        "PANDACACHE_URL": base,
        "PANDA_BEHIND_REAL_LB": "1",
        "PANDA_AUTH": "oidc",
        "PANDA_AUTH_VO": "hpo_pilot",
        "OIDC_AUTH_TOKEN_FILE": str(token_file),
        "X509_CERT_DIR": str(authorities or ""),
    }
