"""Folders of authorities, as OpenSSL looks them up."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from hpo_pilot.errors import InputError
from hpo_pilot.trust import hashed_folder, name_hash


def certificate(**names: str) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(getattr(NameOID, oid), value) for oid, value in names.items()])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )


@pytest.mark.parametrize(
    "names",
    [
        {"COMMON_NAME": "hpo-pilot authority 0123"},
        {"COUNTRY_NAME": "CH", "ORGANIZATION_NAME": "  Some   Where ", "COMMON_NAME": "Ärzte & Söhne"},
        {"DOMAIN_COMPONENT": "CERN", "EMAIL_ADDRESS": "Jane@Example.org", "COMMON_NAME": "x" * 60},
    ],
)
def test_the_hash_is_openssls(tmp_path: Path, names: dict[str, str]) -> None:
    made = certificate(**names)
    path = tmp_path / "ca.pem"
    path.write_bytes(made.public_bytes(Encoding.PEM))
    command = ["openssl", "x509", "-noout", "-hash", "-in", str(path)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except FileNotFoundError:
        pytest.skip("there is no openssl command here")
    assert name_hash(made) == said


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_the_hashes_of_the_systems_authorities() -> None:
    folder = Path(ssl.get_default_verify_paths().openssl_capath or "/etc/ssl/certs")
    compared = 0
    for path in folder.glob("*.[0-9]"):
        if len(path.stem) == 8:
            assert name_hash(x509.load_pem_x509_certificate(path.read_bytes())) == path.stem, path
            compared += 1
    if not compared:
        pytest.skip(f"no hashed certificates in {folder}")


def test_each_certificate_once_and_those_of_one_name_side_by_side(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    first, second = certificate(COMMON_NAME="a"), certificate(COMMON_NAME="a")
    pem.write_bytes(first.public_bytes(Encoding.PEM) + second.public_bytes(Encoding.PEM))
    for _ in range(2):
        folder = hashed_folder(pem, tmp_path / "folder")
    assert sorted(path.name for path in folder.iterdir()) == [f"{name_hash(first)}.0", f"{name_hash(first)}.1"]
    assert ssl.create_default_context(capath=str(folder)) is not None


@pytest.mark.parametrize("content", [None, "", "nothing"])
def test_files_without_a_certificate(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"ca\.pem"):
        hashed_folder(path, tmp_path / "folder")
