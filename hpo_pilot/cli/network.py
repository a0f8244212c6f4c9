"""Options of servers: where they listen, with which certificate, and whom they let in."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

_network = partial(typer.Option, rich_help_panel="Network", show_default=False)
_issuers = partial(typer.Option, rich_help_panel="Other issuers", show_default=False)


HostOption = Annotated[
    str, _network(help="Address to listen on. Anything but this machine wants TLS.", show_default=True)
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
