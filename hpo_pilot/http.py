"""HTTP sessions for calls to a server, with the right certificate authorities and no other login than our token."""

from __future__ import annotations

import os
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path

import requests
from requests.utils import get_environ_proxies


def open_session(server: str, authorities: Path | None = None) -> requests.Session:
    """Opens a session for calls to one server.

    Args:
        server: its URL.
        authorities: a PEM file with the authorities to trust, or a folder with hashed names; None: from the
            environment (REQUESTS_CA_BUNDLE, SSL_CERT_FILE), else the usual authorities.
    """
    session = requests.Session()
    # Otherwise requests reads proxies and certificates of the environment at each call, and replaces our token by a
    # login of ~/.netrc.
    session.trust_env = False
    session.proxies = get_environ_proxies(server)
    named = str(authorities) if authorities is not None else None
    session.verify = named or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or True
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # cookies would be shared by threads
    return session
