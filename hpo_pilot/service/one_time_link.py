"""Asking the pages for a link that signs somebody in, once."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

import requests

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.pilot.session import open_session

_SECONDS = 20.0


def one_time_link(url: str, token_file: Path, authorities: Path | None) -> str:
    """A link to the pages that signs in whose token it is; good for ten minutes, and once.

    The token goes to the pages' server alone, in a header; what the link carries is a code of that server's making.

    Args:
        url: of the pages: scheme://host:port.
        token_file: of a user or an operator.
        authorities: those behind the certificate; None: those that everybody knows.

    Raises:
        InputError: the token cannot be read, or is not taken.
        TryAgainError: nobody answers there.
    """
    address = url.rstrip("/")
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(parts.hostname or "")):
        raise InputError(f"{address}: a token goes to https:// addresses alone, or to this machine")
    try:
        token = token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token file {token_file} cannot be read: {error}") from error
    try:
        with open_session(address, authorities) as session:
            answer = session.post(
                f"{address}/login/link",
                headers={"Authorization": f"Bearer {token}"},
                timeout=_SECONDS,
                allow_redirects=False,
            )
            said = answer.json()
    except requests.exceptions.SSLError as error:
        raise InputError(f"the certificate of {address} is not trusted: {error}; name its authority: --ca") from error
    except requests.exceptions.JSONDecodeError as error:
        raise InputError(f"{address} answers, but has no pages of this version: is it an hpo-pilot service?") from error
    except requests.RequestException as error:
        raise TryAgainError(f"the pages at {address} do not answer: {error}") from error
    if answer.status_code in (401, 403):
        raise InputError(f"{address} does not take the token of {token_file}: {said.get('error', 'without a reason')}")
    if not answer.ok or not isinstance(said.get("path"), str):
        raise TryAgainError(f"{address} made no link: {said.get('error', f'status {answer.status_code}')}")
    return f"{address}{said['path']}"


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
