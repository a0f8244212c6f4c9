"""Protection of tokens on the network: the rule on TLS, names in certificates, folders of authorities."""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hpo_pilot.errors import InputError
from hpo_pilot.files import write_whole

if TYPE_CHECKING:  # a client of a service checks addresses without this library
    from cryptography import x509

#: Remedy for a server that would listen on the network without TLS.
LISTEN_WITH_TLS = "add --tls-cert and --tls-key; or --insecure-behind-proxy, if a proxy in front has TLS"


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_wildcard(host: str) -> bool:
    """Returns whether a server that listens there listens on every address of the machine."""
    return host in ("", "0.0.0.0", "::")  # noqa: S104  # compared, not listened on


def require_tls(place: str, host: str, *, has_tls: bool, remedy: str) -> None:
    """Checks that tokens do not cross a network without TLS.

    Args:
        place: the option or address, for the message.
        host: name or address; on the loopback no TLS is needed.
        has_tls: whether the connection has TLS.
        remedy: what to do instead, for the message.

    Raises:
        InputError: the host is on a network, and there is no TLS.
    """
    if not (has_tls or is_loopback(host)):
        raise InputError(f"{place} is on the network, where without TLS others can read the tokens: {remedy}")


def served_name(chain: Path) -> str:
    """Returns the first host name of a certificate that is not a pattern, for URLs.

    Raises:
        InputError: the file is not a certificate, or the certificate has no such name.
    """
    from cryptography import x509  # noqa: PLC0415

    try:
        certificate = x509.load_pem_x509_certificate(chain.read_bytes())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]
    except OSError as error:
        raise InputError(f"the certificate {chain}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{chain} is not a certificate in PEM form: {error}") from error
    except x509.ExtensionNotFound:
        names = []
    for name in names:
        if not name.startswith("*"):
            return name
    raise InputError(f"the certificate {chain} has no host name: give the address for clients with --public-url")


# Folders of certificate authorities for OpenSSL (`capath`), as panda-client, curl and Pilot 3 use them.

#: Encodings of ASN.1 string types in names (X.680); other types stay unchanged.
_TEXTS = {12: "utf-8", 19: "ascii", 20: "latin-1", 22: "ascii", 26: "ascii", 28: "utf-32-be", 30: "utf-16-be"}
_UTF8_STRING = 12


def hashed_folder(authorities: Path, folder: Path) -> Path:
    """Fills a folder with the certificates of a PEM file, each under the hash of its name.

    The folder serves `requests` as `verify`, panda-client and pilots as `X509_CERT_DIR`, and curl as `--capath`.

    Args:
        authorities: the PEM file.
        folder: the folder; it is made if missing, and other files in it stay.

    Returns:
        The folder.

    Raises:
        InputError: the file has no certificates, or the folder cannot be written.
    """
    from cryptography import x509  # noqa: PLC0415

    try:
        found = x509.load_pem_x509_certificates(authorities.read_bytes())
    except OSError as error:
        raise InputError(f"the certificate file {authorities}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{authorities} has no certificate in PEM form: {error}") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for certificate in found:
            _put(folder, certificate)
    except OSError as error:
        raise InputError(f"cannot write certificates into {folder}: {error.strerror}") from error
    return folder


def name_hash(certificate: x509.Certificate) -> str:
    """Returns the hash of the certificate's subject, as `openssl x509 -hash` prints it."""
    digest = hashlib.sha1(_canonical(certificate.subject.public_bytes()), usedforsecurity=False).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


def _put(folder: Path, certificate: x509.Certificate) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    content = certificate.public_bytes(Encoding.PEM)
    for number in itertools.count():  # other certificates may have the same name, such as an older one
        path = folder / f"{name_hash(certificate)}.{number}"
        if not path.exists():
            write_whole(path, content, 0o644)
            path.chmod(0o644)  # independent of the umask
            return
        if path.read_bytes() == content:
            return


def _canonical(name: bytes) -> bytes:
    """Returns a DER name in OpenSSL's canonical form (`crypto/x509/x_name.c`): UTF-8, lower case, single blanks."""
    (_, sets), *_ = _parts(name)
    result = b""
    for set_tag, attributes in _parts(sets):
        content = b""
        for tag, attribute in _parts(attributes):
            (oid_tag, oid), (kind, value) = _parts(attribute)
            if kind in _TEXTS:
                text = value.decode(_TEXTS[kind], "replace")
                kind, value = _UTF8_STRING, _lowered(text).encode()
            content += _part(tag, _part(oid_tag, oid) + _part(kind, value))
        result += _part(set_tag, content)
    return result


def _lowered(text: str) -> str:
    words = text.strip(" \t\n\v\f\r").replace("\t", " ").split(" ")
    # OpenSSL lowers only ASCII letters.
    return "".join(c.lower() if c.isascii() else c for c in " ".join(word for word in words if word))


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Returns (tag, content) of each element in turn (X.690)."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size]), at + size
        yield tag, der[at : at + length]
        at += length


def _part(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + content
