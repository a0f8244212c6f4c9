"""Command-line options on who is let in and how connections are protected: the same for all our servers."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.auth import Tokens
from hpo_pilot.server.access.gate import Gate
from hpo_pilot.server.access.tls import ServedCertificate


def add_security(parser: argparse.ArgumentParser) -> None:
    """Adds the options; `certificate_of` and `gate_of` read them, and ``--tokens``."""
    tls = parser.add_argument_group("TLS")
    tls.add_argument("--tls-cert", type=Path, help="a certificate, with its chain (PEM); read again when renewed")
    tls.add_argument("--tls-key", type=Path, help="its key (PEM)")
    tls.add_argument(
        "--insecure-behind-proxy",
        action="store_true",
        help="listen without TLS on more than this machine, for a proxy that has it",
    )
    others = parser.add_argument_group("other issuers")
    others.add_argument("--issuers", type=Path, help="JSON file of OIDC issuers whose tokens are taken as well")


def gate_of(options: argparse.Namespace, stack: ExitStack) -> Gate:
    """Who is let in; `stack` ends what that needs.

    Raises:
        InputError: a file is missing or wrong.
    """
    issuers = None
    if options.issuers is not None:
        # Few servers need it, and its checks cost every start a tenth of a second.
        from hpo_pilot.server.access.oidc import Issuers  # noqa: PLC0415

        issuers = Issuers(options.issuers)
        issuers.start()
        stack.callback(issuers.stop)
    return Gate(Tokens(options.tokens, issuers))


def certificate_of(options: argparse.Namespace) -> ServedCertificate | None:
    """The certificate that protects connections; None: nothing does.

    Raises:
        InputError: a file is missing or wrong, or one of the two is not given.
    """
    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise InputError("--tls-cert and --tls-key go together")
    return ServedCertificate(options.tls_cert, options.tls_key)
