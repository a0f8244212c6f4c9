"""TLS: a certificate that was given, or one of our own making, and its renewal while the server runs.

Of our own making are an authority and a certificate signed by it, in one folder:

- ``ca/ca.pem``: the authority, for clients; beside it the same under its hash, so that ``ca`` is also what curl,
  panda-client and a Pilot 3 take as folder of authorities;
- ``ca-key.pem``, ``server-key.pem``: private keys, mode 0600;
- ``server.pem``: the certificate, for 90 days; made anew when 30 are left, or when the machine has another name.
"""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.authority import write_private
from hpo_pilot.trust import hashed_folder

log = logging.getLogger(__name__)

_AUTHORITY_LIFE = timedelta(days=3650)
_LIFE = timedelta(days=90)
_RENEW = timedelta(days=30)
_SLACK = timedelta(minutes=10)  # for clients whose clocks are late

_Stamp = tuple[int, ...]


@dataclass(frozen=True)
class Certificate:
    """Where a certificate and its key are.

    Attributes:
        authority: the PEM file that clients must trust; None: an authority that they know.
    """

    chain: Path
    key: Path
    authority: Path | None = None

    @property
    def authority_folder(self) -> Path | None:
        """The folder of the authority that clients take as `capath`."""
        return self.authority and self.authority.parent

    def check(self) -> None:
        """Makes sure that both can be used together.

        Raises:
            InputError: they cannot.
        """
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key, password=_no_password)
        except OSError as error:  # ssl.SSLError is one
            raise InputError(
                f"the certificate {self.chain} with the key {self.key}: {error.strerror or error}; "
                "give files in PEM form that belong together, the key without a password"
            ) from error


def self_made(folder: Path, names: Iterable[str], *, clock: Callable[[], datetime] | None = None) -> Certificate:
    """The folder's own certificate for these names and addresses; made or renewed where that is due.

    Raises:
        InputError: the folder cannot be written.
    """
    now = clock() if clock else datetime.now(UTC)
    made = Certificate(folder / "server.pem", folder / "server-key.pem", folder / "ca" / "ca.pem")
    try:
        for readable in (folder, folder / "ca"):
            # The keys in it are for their owner alone; pilots of other users may need the authority.
            readable.mkdir(parents=True, exist_ok=True)
            readable.chmod(0o755)
        with _alone(folder):
            authority, authority_key = _authority(folder, now)
            wanted = frozenset(names)
            if not _is_good(made, authority, wanted, now):
                _sign(made, authority, authority_key, wanted, now)
    except OSError as error:
        raise InputError(f"the folder of certificates {folder} cannot be used: {error.strerror}") from error
    return made


def names_of(host: str) -> frozenset[str]:
    """The names and addresses under which clients may look for a server that listens on `host`."""
    names = {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()}
    if not is_wildcard(host):
        names.add(host)
    return frozenset(name.split("%")[0] for name in names if name and _general_name(name) is not None)


def is_wildcard(host: str) -> bool:
    """Whether listening there means: on every address of the machine."""
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


class ServedCertificate:
    """The certificate that a running server shows: taken anew when its files change."""

    def __init__(self, certificate: Certificate, renew: Callable[[], Certificate] | None) -> None:
        """Checks it.

        Args:
            certificate: where it is.
            renew: makes it anew where that is due; None: somebody else does.

        Raises:
            InputError: it cannot be used.
        """
        self.certificate = certificate
        self._renew = renew
        certificate.check()
        self._stamp = self._look()

    def refresh(self, context: ssl.SSLContext) -> bool:
        """Renews what is due and shows new connections what is in the files now.

        Returns:
            True if there was anything new.
        """
        try:
            if self._renew is not None:
                self._renew()
            stamp = self._look()
            if stamp == self._stamp:
                return False
            self.certificate.check()
            context.load_cert_chain(self.certificate.chain, self.certificate.key, password=_no_password)
        except (InputError, OSError) as error:
            log.error("%s; the certificate taken before stays in use", error)
            return False
        self._stamp = stamp
        log.warning("a new certificate is in use: %s", self.certificate.chain)
        return True

    def _look(self) -> _Stamp:
        seen = [path.stat() for path in (self.certificate.chain, self.certificate.key)]
        return tuple(number for status in seen for number in (status.st_mtime_ns, status.st_ino))


def _no_password() -> str:
    """Answers OpenSSL, which would otherwise ask at the terminal."""
    return ""


def _authority(folder: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    public, private = folder / "ca" / "ca.pem", folder / "ca-key.pem"
    try:
        certificate, key = x509.load_pem_x509_certificate(public.read_bytes()), _load_key(private)
        if certificate.public_key() == key.public_key() and certificate.not_valid_after_utc - now > _LIFE:
            hashed_folder(public, public.parent)
            return certificate, key
        log.warning("the authority %s ends or lost its key: another is made, which clients must be given", public)
    except FileNotFoundError:
        log.info("making an authority in %s", folder)
    except ValueError as error:
        log.warning("the authority in %s is damaged (%s): another is made, which clients must be given", folder, error)
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"hpo-pilot authority {identifier.digest.hex()[:16]}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(private, _pem(key))
    write_private(public, certificate.public_bytes(Encoding.PEM).decode())
    public.chmod(0o644)
    for old in public.parent.glob("*.[0-9]"):
        old.unlink()
    hashed_folder(public, public.parent)
    return certificate, key


def _sign(
    made: Certificate,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: frozenset[str],
    now: datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [general for name in sorted(names) if (general := _general_name(name)) is not None]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hpo-pilot server")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    # A server that looks between the two finds a pair that does not fit, keeps the old one, and looks again.
    write_private(made.key, _pem(key))
    write_private(made.chain, certificate.public_bytes(Encoding.PEM).decode())


def _is_good(made: Certificate, authority: x509.Certificate, names: frozenset[str], now: datetime) -> bool:
    try:
        certificate, key = x509.load_pem_x509_certificate(made.chain.read_bytes()), _load_key(made.key)
        certificate.verify_directly_issued_by(authority)
    except (FileNotFoundError, ValueError, TypeError, InvalidSignature):
        return False
    return (
        certificate.public_key() == key.public_key()
        and certificate.not_valid_after_utc - now > _RENEW
        and names <= set(_names_in(certificate))
    )


def _names_in(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def _general_name(name: str) -> x509.GeneralName | None:
    """The name as certificates hold it; None: it has characters that they cannot."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name) if name.isascii() else None


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no key of an elliptic curve")
    return key


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Alone with the folder; the lock ends with the process, however that ends."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
