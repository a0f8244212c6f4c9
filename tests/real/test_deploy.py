"""The examples in deploy/, each checked by the tool that reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.real.processes import missing
from tests.real.slurm import Slurm, slurm

__all__ = ["slurm"]

DEPLOY = Path(__file__).parents[2] / "deploy"
#: What Harvester's SlurmSubmitter puts in (pandaharvester/harvestersubmitter/slurm_submitter.py, make_placeholder_map).
HARVESTER = {
    "accessPoint": "/tmp",
    "harvesterID": "harvester",
    "workerID": 7,
    "nNode": 2,
    "localQueueName": "debug",
    "pandaQueueName": "CLUSTER_PULL",
    "requestWalltimeMinute": 60,
}


def tool(name: str, package: str) -> str:
    """Where a program is; beside this Python, or the system's."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
    return found or missing(f"{name} ({package}): `make test-real` installs it, if root")


def check(*argv: str | Path, **options: object) -> str:
    """Runs a validator; what it says."""
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=600, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout + done.stderr)


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.stem)
def test_systemd_takes_the_units(path: Path, tmp_path: Path) -> None:
    verify = tool("systemd-analyze", "systemd")
    text = path.read_text()
    assert "/opt/hpo-pilot/bin/hpo-pilot" in text
    # It looks whether the program is there.
    (tmp_path / path.name).write_text(text.replace("/opt/hpo-pilot/bin/hpo-pilot", sys.executable))
    said = check(verify, "verify", "--man=no", tmp_path / path.name)
    assert path.name not in said, said
    (tmp_path / path.name).write_text(text.replace("Restart=always", "Restrat=always"))
    argv = [verify, "verify", str(tmp_path / path.name)]
    assert "Restrat" in subprocess.run(argv, capture_output=True, text=True, check=False).stderr


def nginx_test(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    nginx, openssl = tool("nginx", "nginx-light"), tool("openssl", "openssl")
    key = [
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(folder / "hostkey.pem"),
        "-out",
        str(folder / "hostcert.pem"),
    ]
    check(openssl, "req", "-x509", *key, "-subj", "/CN=panda.example.org", "-days", "2")
    (folder / "site.conf").write_text(text.replace("/etc/grid-security", str(folder)))
    places = " ".join(f"{name}_temp_path {folder};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    http = f"http {{ access_log off; {places} include {folder}/site.conf; }}"
    (folder / "nginx.conf").write_text(f"pid {folder}/pid; error_log stderr; events {{}} {http}")
    argv = [nginx, "-t", "-q", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    return subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)


def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    done = nginx_test(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert nginx_test(tmp_path, text.replace("ssl_certificate_key", "ssl_certificate_kee", 1)).returncode != 0


def test_compose_takes_its_file_and_what_it_names_is_there(tmp_path: Path) -> None:
    folder = DEPLOY / "compose"
    compose = tool("podman-compose", "PyPI: podman-compose")
    tool("podman", "podman")  # which it calls
    said = check(compose, "-f", folder / "compose.yaml", "config", cwd=folder)
    # Some releases say their version first.
    merged = yaml.safe_load(re.split(r"(?m)^(?=(?:name|secrets|services|volumes):)", said, maxsplit=1)[-1])
    assert set(merged["services"]) == {"database", "service", "proxy"}
    for service in merged["services"].values():
        assert (
            "PASSWORD" not in " ".join(service.get("environment", {}))
            or "POSTGRES_PASSWORD_FILE" in service["environment"]
        )
    build = merged["services"]["service"]["build"]
    assert (folder / build["context"] / build["dockerfile"]).exists()
    assert (folder / merged["services"]["proxy"]["volumes"][0].split(":")[0]).exists()


@pytest.mark.parametrize("path", sorted((DEPLOY / "kubernetes").glob("*.yaml")), ids=lambda path: path.stem)
def test_kubernetes_takes_its_resources(path: Path, tmp_path: Path) -> None:
    validate = tool("kubernetes-validate", "PyPI: kubernetes-validate")
    said = check(validate, "--strict", path)
    resources = [resource for resource in yaml.safe_load_all(path.read_text()) if resource]
    assert said.count("passed for resource") == len(resources)
    assert not [resource for resource in resources if resource["kind"] == "Secret"]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(path.read_text().replace("replicas:", "replica:", 1))
    assert subprocess.run([validate, "--strict", str(wrong)], capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("name", ["pilots/slurm.sh", "harvester/slurm-pull.sh", "harvester/slurm-push.sh"])
def test_slurm_takes_the_scripts(slurm: Slurm, tmp_path: Path, name: str) -> None:
    text = (DEPLOY / name).read_text()
    if name.startswith("harvester"):
        assert set(re.findall(r"{(\w*)}", text)) <= set(HARVESTER)
        text = text.format_map(HARVESTER)  # as Harvester does; what else stands in braces would be an error
    # This Slurm has one partition, two nodes and no accounts.
    text = text.replace("-p gpu", "-p debug").replace("--nodes=4", "--nodes=2")
    script = tmp_path / "job.sh"
    script.write_text(text)
    check("bash", "-n", script)
    assert "to start at" in check("sbatch", "--test-only", script, env=slurm.environment)
