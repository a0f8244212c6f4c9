"""Certificates for tests: each is its own authority, as the line of openssl in the manual makes one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from hpo_pilot.trust import hashed_folder

HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key; `folder` is what panda-client takes as X509_CERT_DIR."""

    chain: Path
    key: Path
    folder: Path

    @property
    def options(self) -> list[str]:
        """With which a server of ours shows it."""
        return ["--tls-cert", str(self.chain), "--tls-key", str(self.key)]


def self_signed(folder: Path, names: Iterable[str] = HERE) -> Certificate:
    """A new certificate for these names and addresses, in a folder that is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificate(folder / "cert.pem", folder / "key.pem", folder / "authorities")
    key = ec.generate_private_key(ec.SECP256R1())
    common = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hpo-pilot test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(common)
        .issuer_name(common)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    made.key.chmod(0o600)
    made.chain.write_bytes(certificate.public_bytes(Encoding.PEM))
    hashed_folder(made.chain, made.folder)
    return made


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
