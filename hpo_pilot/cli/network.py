"""Options of servers: where they listen, with which certificate, and whom they let in."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_NETWORK = "Network"
_ISSUERS = "Other issuers and certificates"


class TlsChoice(StrEnum):
    """What `--tls` takes."""

    SELF = "self"  #: a certificate of the server's own making


HostOption = Annotated[
    str,
    typer.Option(
        help="Address to listen on. Anything but this machine wants TLS.",
        rich_help_panel=_NETWORK,
    ),
]
TlsOption = Annotated[
    TlsChoice | None,
    typer.Option(
        help="TLS with a certificate of the server's own making, kept and renewed in the work folder.",
        rich_help_panel=_NETWORK,
        show_default=False,
    ),
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="TLS with this certificate, chain included (PEM).",
        rich_help_panel=_NETWORK,
        show_default=False,
    ),
]
TlsKeyOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The key of that certificate (PEM).", rich_help_panel=_NETWORK, show_default=False
    ),
]
AuthorityOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The authorities behind --tls-cert, where they are not the usual ones (PEM).",
        rich_help_panel=_NETWORK,
        show_default=False,
    ),
]
PublicUrlOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="How clients call the server, where it is not the address that it listens on.",
        rich_help_panel=_NETWORK,
        show_default=False,
    ),
]
BehindProxyOption = Annotated[
    bool,
    typer.Option(
        "--insecure-behind-proxy",
        help="Listen on the network without TLS: a proxy in front has it.",
        rich_help_panel=_NETWORK,
    ),
]
IssuersOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="OIDC issuers whose tokens are taken as well (JSON).",
        rich_help_panel=_ISSUERS,
        show_default=False,
    ),
]
DnHeaderOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Header in which a trusted proxy hands on the name of a verified certificate.",
        rich_help_panel=_ISSUERS,
        show_default=False,
    ),
]
DnRolesOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Roles by that name (JSON).", rich_help_panel=_ISSUERS, show_default=False),
]
TrustedProxyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="Whence that header is taken (default: this machine). May be repeated.",
        rich_help_panel=_ISSUERS,
        show_default=False,
    ),
]
