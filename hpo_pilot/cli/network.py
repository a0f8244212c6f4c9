"""Options of servers: where they listen, with which certificate, and whom they let in."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

_network = partial(typer.Option, rich_help_panel="Network", show_default=False)
_issuers = partial(typer.Option, rich_help_panel="Other issuers and certificates", show_default=False)


class TlsChoice(StrEnum):
    """What `--tls` takes."""

    SELF = "self"  #: a certificate of the server's own making


HostOption = Annotated[
    str, _network(help="Address to listen on. Anything but this machine wants TLS.", show_default=True)
]
TlsOption = Annotated[
    TlsChoice | None,
    _network(help="TLS with a certificate of the server's own making, kept and renewed in the work folder."),
]
TlsCertOption = Annotated[
    Path | None, _network(metavar="FILE", help="TLS with this certificate, chain included (PEM).")
]
TlsKeyOption = Annotated[Path | None, _network(metavar="FILE", help="The key of that certificate (PEM).")]
AuthorityOption = Annotated[
    Path | None,
    _network(metavar="FILE", help="The authorities behind --tls-cert, where they are not the usual ones (PEM)."),
]
PublicUrlOption = Annotated[
    str | None,
    _network(metavar="URL", help="How clients call the server, where it is not the address that it listens on."),
]
BehindProxyOption = Annotated[
    bool,
    _network(
        "--insecure-behind-proxy", help="Listen on the network without TLS: a proxy in front has it.", show_default=True
    ),
]
IssuersOption = Annotated[
    Path | None, _issuers(metavar="FILE", help="OIDC issuers whose tokens are taken as well (JSON).")
]
DnHeaderOption = Annotated[
    str | None,
    _issuers(metavar="NAME", help="Header in which a trusted proxy hands on the name of a verified certificate."),
]
DnRolesOption = Annotated[Path | None, _issuers(metavar="FILE", help="Roles by that name (JSON).")]
TrustedProxyOption = Annotated[
    list[str] | None,
    _issuers(metavar="ADDRESS", help="Whence that header is taken (default: this machine). May be repeated."),
]
