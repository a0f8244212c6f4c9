"""Command-line options on who is let in and how connections are protected: the same for all our servers."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.auth import Tokens
from hpo_pilot.server.access.distinguished_name import ProxyHeader
from hpo_pilot.server.access.gate import Gate
from hpo_pilot.server.access.tls import Certificate, ServedCertificate, names_of, self_made


def add_security(parser: argparse.ArgumentParser) -> None:
    """Adds the options; `certificate_of` and `gate_of` read them, and ``--tokens`` and ``--host``."""
    tls = parser.add_argument_group("TLS")
    tls.add_argument("--tls", choices=["self"], help="self: a certificate of the server's own making")
    tls.add_argument("--tls-folder", type=Path, help="where that certificate and its authority are kept")
    tls.add_argument("--tls-cert", type=Path, help="a given certificate, with its chain (PEM); read again when renewed")
    tls.add_argument("--tls-key", type=Path, help="its key (PEM)")
    tls.add_argument(
        "--insecure-behind-proxy",
        action="store_true",
        help="listen without TLS on more than this machine, for a proxy that has it",
    )
    others = parser.add_argument_group("other issuers and certificates")
    others.add_argument("--issuers", type=Path, help="JSON file of OIDC issuers whose tokens are taken as well")
    others.add_argument(
        "--dn-header", metavar="NAME", help="header in which a proxy hands on the name of a verified certificate"
    )
    others.add_argument("--dn-roles", type=Path, metavar="FILE", help="JSON file of roles by distinguished name")
    others.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="whence that header is taken (default: this machine); may be repeated",
    )


def gate_of(options: argparse.Namespace, stack: ExitStack) -> Gate:
    """Who is let in; `stack` ends what that needs.

    Raises:
        InputError: a file is missing or wrong, or an option lacks another.
    """
    issuers = None
    if options.issuers is not None:
        # Few servers need it, and its checks cost every start a tenth of a second.
        from hpo_pilot.server.access.oidc import Issuers  # noqa: PLC0415

        issuers = Issuers(options.issuers)
        issuers.start()
        stack.callback(issuers.stop)
    proxy = None
    if options.dn_header is not None:
        if options.dn_roles is None:
            raise InputError("--dn-header needs --dn-roles FILE: who may do what")
        proxy = ProxyHeader(options.dn_header, options.dn_roles, options.trusted_proxy)
    elif options.dn_roles is not None or options.trusted_proxy:
        raise InputError("--dn-roles and --trusted-proxy say how --dn-header is taken, which is missing")
    return Gate(Tokens(options.tokens, issuers), proxy)


def certificate_of(options: argparse.Namespace) -> ServedCertificate | None:
    """The certificate that protects connections; None: nothing does.

    Raises:
        InputError: a file is missing or wrong, or the options contradict each other.
    """
    given = (options.tls_cert, options.tls_key)
    if options.tls == "self":
        if any(given):
            raise InputError("--tls self makes a certificate: give it, or --tls-cert and --tls-key, not both")
        folder: Path | None = options.tls_folder
        if folder is None:
            raise InputError("--tls self needs --tls-folder, where the certificate is kept")
        names = names_of(options.host)
        return ServedCertificate(self_made(folder, names), lambda: self_made(folder, names))
    if not any(given):
        return None
    if not all(given):
        raise InputError("--tls-cert and --tls-key go together")
    return ServedCertificate(Certificate(options.tls_cert, options.tls_key), None)
