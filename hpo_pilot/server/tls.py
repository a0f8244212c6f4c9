"""TLS: the certificate that a server is given, taken again when it is renewed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from cryptography import x509

from hpo_pilot.errors import InputError

log = logging.getLogger(__name__)


def is_wildcard(host: str) -> bool:
    """Returns whether listening there means: on every address of the machine."""
    return host in ("", "0.0.0.0", "::")  # noqa: S104  # compared, not listened on


def served_name(chain: Path) -> str:
    """A name that the certificate holds for, to make URLs with: its first that is no pattern.

    Raises:
        InputError: it has none, or is no certificate.
    """
    try:
        certificate = x509.load_pem_x509_certificate(chain.read_bytes())
        names = _names_in(certificate)
    except OSError as error:
        raise InputError(f"the certificate {chain}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{chain} is no certificate in PEM form: {error}") from error
    found = next((name for name in names if not name.startswith("*")), None)
    if found is None:
        raise InputError(f"the certificate {chain} names no host: say with --public-url what clients shall use")
    return found


def _names_in(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


class ServedCertificate:
    """The certificate that a running server shows: taken anew when its files change."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Checks it.

        Args:
            chain: PEM file of the certificate and of the intermediate certificates.
            key: PEM file of its key.

        Raises:
            InputError: they cannot be used together.
        """
        self.chain = chain
        self.key = key
        self._check()
        self._stamp = self._look()

    def refresh(self, context: ssl.SSLContext) -> bool:
        """Uses the current contents of the files for new connections.

        Returns:
            True if there was anything new.
        """
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            self._check()
            context.load_cert_chain(self.chain, self.key, password=_no_password)
        except (InputError, OSError) as error:
            log.error("%s; the certificate taken before stays in use", error)
            return False
        self._stamp = stamp
        log.warning("a new certificate is in use: %s", self.chain)
        return True

    def _check(self) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key, password=_no_password)
        except OSError as error:  # ssl.SSLError is one
            raise InputError(
                f"the certificate {self.chain} with the key {self.key}: {error.strerror or error}; "
                "give files in PEM form that belong together, the key without a password"
            ) from error

    def _look(self) -> tuple[int, ...]:
        seen = [path.stat() for path in (self.chain, self.key)]
        return tuple(number for status in seen for number in (status.st_mtime_ns, status.st_ino))


def _no_password() -> str:
    """Answers OpenSSL, which would otherwise ask at the terminal."""
    return ""
