"""Where a server of ours listens, how its clients call it, and whom they trust there."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.tls import is_wildcard, served_name
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.trust import hashed_folder
from hpo_pilot.whole_file import write_whole

#: In the folder of authorities, all of them as one PEM file.
AUTHORITIES = "ca.pem"


@dataclass(frozen=True)
class Reach:
    """What the options of `hpo-pilot serve` say of its network side; the default is this machine alone, plain HTTP.

    Attributes:
        host: name or address to listen on.
        port: None: any free one.
        certificate: TLS with this certificate (PEM, with its chain).
        key: of that certificate.
        authority: PEM file of the authorities behind that certificate; None: those that everybody knows.
        public_url: how clients call the server, where that is not what it listens on.
        behind_proxy: plain HTTP on a network address is meant: a TLS proxy is in front.
        issuers: file of OIDC issuers whose tokens are taken as well.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    public_url: str | None = None
    behind_proxy: bool = False
    issuers: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InputError("--tls-cert and --tls-key go together")
        if self.behind_proxy and self.public_url is None:
            raise InputError("--insecure-behind-proxy needs --public-url: how pilots and users call the proxy")
        if self.public_url is not None:
            parts = urlsplit(self.public_url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
                raise InputError(f"--public-url {self.public_url}: give a URL such as https://panda.example.org:25443")
        if not (self.has_tls or self.behind_proxy or _is_loopback(self.host)):
            raise InputError(
                f"--host {self.host} is more than this machine, and without TLS whoever reads the network reads the "
                "tokens: add --tls-cert and --tls-key; with a TLS proxy in front, --insecure-behind-proxy"
            )

    @property
    def is_open(self) -> bool:
        """Whether anybody but this machine may reach the server."""
        return self.behind_proxy or self.public_url is not None or not _is_loopback(self.host)

    @property
    def has_tls(self) -> bool:
        """Whether the server itself speaks TLS."""
        return self.certificate is not None

    def url(self, port: int) -> str:
        """How clients call a server of these options on this port.

        Raises:
            InputError: the certificate given names no host.
        """
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        scheme = "https" if self.has_tls else "http"
        if self.certificate is not None:
            host = served_name(self.certificate)
        else:
            host = _own_name() if is_wildcard(self.host) else self.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def authorities(self, workdir: WorkDir) -> Path | None:
        """The folder of authorities that clients must trust; None: those that everybody knows, or no TLS.

        Raises:
            InputError: the authority's file makes no sense.
        """
        if self.authority is None:
            return None
        folder = hashed_folder(self.authority, workdir.tls)
        write_whole(folder / AUTHORITIES, self.authority.read_text(), 0o644)
        return folder

    def server_options(self) -> list[str]:
        """These options for ``python -m hpo_pilot.server``, but for the port."""
        options = ["--host", self.host]
        named = {
            "--tls-cert": self.certificate,
            "--tls-key": self.key,
            "--issuers": self.issuers,
        }
        for name, value in named.items():
            if value is not None:
                options += [name, str(value)]
        return [*options, "--insecure-behind-proxy"] if self.behind_proxy else options


def _own_name() -> str:
    """A name of this machine that can be looked up, at least here; else the loopback address."""
    for name in (socket.getfqdn(), socket.gethostname()):
        if not name.startswith("localhost"):
            try:
                socket.getaddrinfo(name, None)
            except OSError:
                continue
            return name
    return "127.0.0.1"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
