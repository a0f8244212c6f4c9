"""Where a server of ours listens, how its clients call it, and whom they trust there."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.tls import is_wildcard, names_of, self_made, served_name
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.trust import hashed_folder

#: The addresses of this machine for itself, by version of the protocol.
_HERE = {
    4: [ipaddress.ip_network("127.0.0.0/8")],
    6: [ipaddress.ip_network("::1"), ipaddress.ip_network("::ffff:0:0/96")],
}


@dataclass(frozen=True)
class Reach:
    """What the options of `hpo-pilot serve` say of its network side; the default is this machine alone, plain HTTP.

    Attributes:
        host: name or address to listen on.
        port: None: any free one.
        self_made: TLS with a certificate that the work folder makes and renews.
        certificate: TLS with this certificate (PEM, with its chain).
        key: of that certificate.
        authority: PEM file of the authorities behind that certificate; None: those that everybody knows.
        public_url: how clients call the server, where that is not what it listens on.
        behind_proxy: plain HTTP on a network address is meant: a TLS proxy is in front.
        issuers: file of OIDC issuers whose tokens are taken as well.
        dn_header: header in which a proxy hands on the name of a verified certificate.
        dn_roles: file of roles by that name.
        trusted_proxies: whence that header is taken.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    self_made: bool = False
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    public_url: str | None = None
    behind_proxy: bool = False
    issuers: Path | None = None
    dn_header: str | None = None
    dn_roles: Path | None = None
    trusted_proxies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.self_made and (self.certificate or self.key):
            raise InputError("give --tls self, or --tls-cert and --tls-key, not both")
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
                "tokens: add --tls self, or --tls-cert and --tls-key; with a TLS proxy in front, "
                "--insecure-behind-proxy"
            )

    @property
    def is_open(self) -> bool:
        """Whether anybody but this machine may reach the server."""
        return self.behind_proxy or self.public_url is not None or not _is_loopback(self.host)

    @property
    def trusts_this_machine(self) -> bool:
        """Whether the header of certificates' names is taken from this machine, where a proxy may be, and others."""
        proxies = [ipaddress.ip_network(address, strict=False) for address in self.trusted_proxies]
        return not proxies or any(network.overlaps(here) for network in proxies for here in _HERE[network.version])

    @property
    def has_tls(self) -> bool:
        """Whether the server itself speaks TLS."""
        return self.self_made or self.certificate is not None

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
        if self.self_made:
            return self_made(workdir.tls, names_of(self.host)).authority_folder
        if self.authority is None:
            return None
        return hashed_folder(self.authority, workdir.tls / "given")

    def authority_file(self, workdir: WorkDir) -> Path | None:
        """The same as one PEM file, to hand to pilots elsewhere."""
        return self_made(workdir.tls, names_of(self.host)).authority if self.self_made else self.authority

    def server_options(self, workdir: WorkDir) -> list[str]:
        """These options for ``python -m hpo_pilot.server``, but for the port."""
        options = ["--host", self.host]
        if self.self_made:
            options += ["--tls", "self", "--tls-folder", str(workdir.tls)]
        named = {
            "--tls-cert": self.certificate,
            "--tls-key": self.key,
            "--issuers": self.issuers,
            "--dn-header": self.dn_header,
            "--dn-roles": self.dn_roles,
        }
        for name, value in named.items():
            if value is not None:
                options += [name, str(value)]
        for address in self.trusted_proxies:
            options += ["--trusted-proxy", address]
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
