"""HTTP sessions with a server of ours: the certificate authorities that are meant, and no login but our own."""

from __future__ import annotations

import os
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path

import requests
from requests.utils import get_environ_proxies


def open_session(server: str, authorities: Path | None = None) -> requests.Session:
    """A session for calls to one server.

    Args:
        server: its URL.
        authorities: a PEM file, or a folder of hashed ones, of the authorities to trust; None: those of the
            environment (REQUESTS_CA_BUNDLE, SSL_CERT_FILE), else the usual ones.
    """
    session = requests.Session()
    # What requests otherwise works out anew for each call: proxies and certificates of the environment. It would also
    # put a login of ~/.netrc in the place of our token.
    session.trust_env = False
    session.proxies = get_environ_proxies(server)
    named = str(authorities) if authorities is not None else None
    session.verify = named or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or True
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # the one thing that threads would share
    return session
