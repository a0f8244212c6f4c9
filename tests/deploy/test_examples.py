"""The examples for sites and clusters: what they start is what the code takes, and no secret is in them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command_here import command_here

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = [r for p in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for r in yaml.safe_load_all(p.read_text())]
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
QUEUES: dict[str, Any] = json.loads((DEPLOY / "harvester" / "panda_queueconfig.json").read_text())
#: Of Harvester's queue_config_mapper.py: a queue without one of them is not loaded.
MANDATORY = {"messenger", "monitor", "preparator", "stager", "submitter", "sweeper", "workerMaker"}


def options(*command: str) -> set[str]:
    done = command_here(*command, "--help")
    assert done.returncode == 0
    return set(re.findall(r"--[a-z][a-z-]+", done.stdout))


def pods() -> list[dict[str, Any]]:
    return [r["spec"]["template"]["spec"] for r in KUBERNETES if r["kind"] in ("StatefulSet", "Deployment")]


def called(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def pilot_words(text: str) -> list[str]:
    return shlex.split(re.sub(r"\\\n", " ", text).partition("hpo_pilot.pilot ")[2])


def test_every_option_that_containers_are_started_with_is_one() -> None:
    known = {name: options(name) for name in ("serve", "pilot")}
    commands = [pod["containers"][0]["command"] for pod in pods()] + [COMPOSE["services"]["service"]["command"]]
    recipe = (ROOT / "containers" / "service" / "Containerfile").read_text()
    commands.append(json.loads(recipe.rpartition("CMD ")[2]))
    for command in commands:
        assert command[0] == "hpo-pilot"
        assert called(command) <= known[command[1]], command


@pytest.mark.parametrize("name", ["pilots/slurm.sh", "pilots/lsf.sh", "harvester/slurm-pull.sh"])
def test_pilot_scripts_are_what_pilots_submit_prints(name: str, tmp_path: Path) -> None:
    """The same lines for the batch system and the same options, but for names and folders."""
    (tmp_path / "site.token").write_text("token")
    (tmp_path / "site.token").chmod(0o600)
    site, queue = ("generic-lsf", "normal") if "lsf" in name else ("generic-slurm", "gpu")
    argv = [sys.executable, "-m", "hpo_pilot.cli", "pilots", "submit", "--site", site, "--queue", queue]
    argv += ["--account", "my-project", "--nodes", "4", "--walltime", "2:00", "--panda-queue", "CLUSTER_GPU"]
    argv += ["--dry-run"]
    argv += ["--server", "https://panda.example.org:25443", "--token-file", "site.token", "--folder", "shared"]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    ours = (DEPLOY / name).read_text()
    assert called(pilot_words(ours)) - {"--worker-id"} == called(pilot_words(printed))

    def directives(text: str) -> set[str]:
        found = re.findall(r"^#(?:SBATCH|BSUB) (.*)$", text, re.MULTILINE)
        return {line for line in found if not re.match(r"--job-name|-J |--output|-o |--open-mode", line)}

    if name.startswith("pilots"):
        assert directives(ours) == directives(printed)
    else:  # Harvester fills some in, and its queue has no account
        assert {line for line in directives(printed) if not re.match(r"--nodes|-p |-A ", line)} <= directives(ours)


def test_harvester_loads_the_queues() -> None:
    for name, queue in QUEUES.items():
        assert set(queue) >= MANDATORY, name
        for part in MANDATORY:
            assert re.fullmatch(rf"pandaharvester\.harvester{part.lower()}\.[a-z_]+", queue[part]["module"])
            words = re.findall(r"[A-Z][a-z]+", queue[part]["name"])
            assert queue[part]["module"].endswith("." + "_".join(words).lower())
        assert (DEPLOY / "harvester" / Path(queue["submitter"]["templateFile"]).name).exists()
        # Its Slurm submitter reads these without a default.
        assert {"nCore", "nCorePerNode", "logDir", "localQueueName"} <= set(queue["submitter"])
    pull, push = QUEUES["CLUSTER_PULL"], QUEUES["CLUSTER_PUSH"]
    assert (pull["mapType"], push["mapType"]) == ("NoJob", "OneToOne")
    assert "nQueueLimitJob" not in pull and push["nQueueLimitJob"] and push["truePilot"]


def test_no_secret_is_in_them_and_nothing_listens_on_the_network_without_tls() -> None:
    text = "".join(p.read_text() for name in ("compose", "kubernetes", "harvester", "pilots") for p in files(name))
    for name, value in environment():
        assert not re.search("PASSWORD|TOKEN|SECRET", name) or name.endswith("_FILE"), name
        assert value is None or "://" not in value or "@" in value  # a user's name, and the password elsewhere
    assert not re.search(r"://[^/\s@:]*:[^/\s@]+@|BEGIN [A-Z ]*PRIVATE KEY", text)
    assert not [resource for resource in KUBERNETES if resource["kind"] == "Secret"]
    service = COMPOSE["services"]["service"]
    assert not called(service["command"]) & {"--host", "--insecure-behind-proxy"}
    published = {port.split(":")[0] for port in service["ports"]}
    nginx = (DEPLOY / "nginx.conf").read_text()
    assert published == set(re.findall(r"listen (\d+) ssl", nginx)) == set(re.findall(r"listen (\d+)", nginx))
    assert "ports" not in COMPOSE["services"]["database"]
    behind = set(re.findall(r"127\.0\.0\.1:(\d+)", nginx))
    assert behind == {
        word.partition("=")[2] for word in service["command"] if word.startswith(("--port", "--api-port"))
    }
    for pod in pods():
        command = pod["containers"][0]["command"]
        if "--host=0.0.0.0" in command:
            assert {"--tls-cert", "--tls-key"} <= called(command)
        assert not any(word.startswith("--server=http:") for word in command)


def environment() -> list[tuple[str, str | None]]:
    """(name, value) of every variable; None where a cluster's secret has the value."""
    compose = [pair for service in COMPOSE["services"].values() for pair in service.get("environment", {}).items()]
    return compose + [(v["name"], v.get("value")) for pod in pods() for v in pod["containers"][0].get("env", [])]


def files(folder: str) -> list[Path]:
    return [path for path in (DEPLOY / folder).rglob("*") if path.is_file()]


def test_pods_may_do_little() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 1000
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["resources"]["limits"]["memory"]
    (service,) = [resource for resource in KUBERNETES if resource["kind"] == "StatefulSet"]
    assert service["spec"]["replicas"] == 1  # one service steers a store
    (pilot,) = [pod for pod in pods() if "pilot" in pod["containers"][0]["command"]]
    drain = [word for word in pilot["containers"][0]["command"] if word.startswith("--drain-seconds=")]
    assert int(drain[0].partition("=")[2]) < pilot["terminationGracePeriodSeconds"]
