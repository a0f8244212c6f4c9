"""The service on a network: TLS, tokens for pilots elsewhere, and the wrong ways."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import requests

import hpo_pilot.manual
from tests.certificates import self_signed
from tests.end_to_end.conftest import HPO_PILOT
from tests.end_to_end.test_points import FETCHING, GRID

MANUAL = Path(hpo_pilot.manual.__file__).parent
EVERYWHERE = "0.0.0.0"  # noqa: S104  # what is refused


def address(scan) -> str:
    """Where the embedded server of a service is."""
    return (scan.workdir / "tokens" / "address").read_text().partition("\n")[0]


def test_pilots_elsewhere_over_tls(scan, tmp_path):
    """A pilot that has a URL, a CA file and a token of its own, and nothing else of the service."""
    scan.write(GRID, FETCHING)
    made = self_signed(tmp_path / "tls", ["localhost"])
    authority = made.chain
    options = ("--host", "localhost", *made.options, "--ca", str(authority), "--slots", "0")
    with scan.serving(*options) as service:
        url = address(scan)
        assert url.startswith("https://localhost:")
        assert "the REST API is at https://" in service.stdout.readline()
        assert "the monitor is at https://" in service.stdout.readline()
        lines = iter(service.stdout.readline, "")
        assert any(str(authority) in line for line in lines)
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(f"{url}/api/v1/system/is_alive", timeout=600)
        token = tmp_path / "elsewhere.token"
        scan.here("token", "create", "--name", "site", "--role", "pilot", "--days", "1", "-o", str(token))
        scan.here("submit", str(scan.file))
        words = ["--server", url, "--ca", str(authority), "--queue", "LOCAL", "--slots", "2"]
        words += ["--token-file", str(token), "--workdir", str(tmp_path / "pilot"), "--heartbeat", "1"]
        pilot = subprocess.Popen([*HPO_PILOT, "pilot", *words])
        try:
            scan.until("done")
        finally:
            pilot.terminate()
            pilot.wait(600)
        assert scan.json("best", "demo")["value"] == 0.0


def test_everything_of_a_laptop_over_tls(scan, tmp_path):
    """Local pilot, panda-client and the service itself trust what --ca names; the certificate is as in the manual."""
    scan.write(GRID)
    folder = tmp_path / "tls"
    folder.mkdir()
    (line,) = re.findall(r"^openssl req .*$", (MANUAL / "service.md").read_text(), re.MULTILINE)
    made = subprocess.run(
        line.replace("$(hostname -f)", "localhost").split(), cwd=folder, capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr
    options = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))
    with scan.serving(*options, "--ca", str(folder / "cert.pem")):
        scan.here("submit", str(scan.file))
        scan.until("done")
    assert scan.json("best", "demo")["point"] == {"x": 0.25}


def test_wrong_options_are_refused(scan):
    """tests/server/test_tls.py and tests/steering/test_network_options.py have all of them."""
    scan.write({})
    for options, word in (
        (("--host", EVERYWHERE), "add --tls-cert"),
        (("--tls-cert", "x", "--tls-key", "y"), "certificate x"),
        (("--public-url", "panda.example.org"), "give a URL"),
    ):
        assert word in scan.here("serve", *options, status=2).stderr


def test_tokens_by_command(scan, tmp_path):
    token = tmp_path / "jane.token"
    said = scan.here("token", "create", "--name", "jane", "--days", "2", "-o", str(token)).stdout
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text() not in said
    assert "\n" not in token.read_text()
    scan.here("token", "create", "--name", "anna", "--role", "operator")
    shown = scan.json("token", "list")
    assert [(entry["name"], entry["role"], entry["revoked"]) for entry in shown] == [
        ("jane", "user", False),
        ("anna", "operator", False),
    ]
    assert scan.here("token", "create", "--name", "jim", "-o", "-").stdout.count(".") == 2
    assert "revoked" in scan.here("token", "revoke", shown[0]["id"]).stdout
    assert [entry["revoked"] for entry in scan.json("token", "list")] == [True, False, False]
    assert "no valid token" in scan.here("token", "revoke", "nothing", status=2).stderr
    assert "more than 0" in scan.here("token", "create", "--name", "jane", "--days", "0", status=2).stderr
