"""A Pilot 3, set up for one server on this machine and run where it can harm nobody (see `isolated`).

PyPI's newest is 3.7.0.36. Later ones are in the public repository PanDAWMS/pilot3: `HPO_PILOT_TEST_PILOT3` names
folders with such sources, each with its `pilot.py`, separated by colons; the tests then run each of them as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import requests

from tests.real.processes import missing, sdist

VERSION = "3.7.0.36"
#: What `Pilot3` is made from by default: that version from PyPI.
FROM_PYPI = f"PyPI's {VERSION}"
#: Users that every Debian has and that own no processes.
USER = "games"
_ISOLATED = Path(__file__).parent / "isolated"

_LOCAL = re.compile(r"//(localhost|127\.0\.0\.1)\b")
_URL = re.compile(r"\b\w+://[^\s;]+|\b[\w-]+(\.[\w-]+)*\.(ch|gov|org)\b")


def sources() -> list[str]:
    """What tests make a `Pilot3` from, one after the other."""
    named = os.environ.get("HPO_PILOT_TEST_PILOT3", "")
    return [FROM_PYPI, *(folder for folder in named.split(os.pathsep) if folder)]


class Pilot3:
    """One Pilot 3 and its folder, which is its user's."""

    def __init__(
        self, server: str, token: Path, *, queue: str = "LOCAL", vo: str = "hpo_pilot", source: str = FROM_PYPI
    ) -> None:
        """Sets it up.

        Args:
            server: URL on this machine.
            token: file with a pilot's token.
            queue: of the jobs that it takes.
            vo: virtual organisation of the token.
            source: one of `sources()`.
        """
        self.server, self.queue, self.vo = server, queue, vo
        self.folder = Path(tempfile.mkdtemp(prefix="pilot3-"))
        self.log = self.folder / "pilot.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._sources = self.folder / "pilot3"
        if source == FROM_PYPI:
            with tarfile.open(sdist("panda-pilot", VERSION)) as archive:
                archive.extractall(self.folder, filter="data")
            (self.folder / f"panda-pilot-{VERSION}").rename(self._sources)
        else:
            shutil.copytree(source, self._sources, ignore=shutil.ignore_patterns(".git"))
        self.version = (self._sources / "PILOTVERSION").read_text().strip()
        for name in ("work", "cache", "harvester"):
            (self.folder / name).mkdir()
        (self.folder / "local.cfg").write_text(self._config())
        (self.folder / "pilot.token").write_text(token.read_text())
        transformation = requests.get(f"{server}/trf/user/runGen-00-00-02", timeout=600)
        transformation.raise_for_status()
        (self.folder / "harvester" / "runGen-00-00-02").write_bytes(transformation.content)
        for path in (self.folder, *self.folder.rglob("*")):
            shutil.chown(path, USER, USER)

    def _config(self) -> str:
        """Its own configuration with every address turned to the server here."""
        text = (self._sources / "pilot" / "util" / "default.cfg").read_text()
        cache = f"{self.server}/cache"
        settings = {
            "pandaserver": self.server,
            "iddsserver": self.server,
            "rtlogging": "none",
            "heartbeat": "3",
            "free_space_limit": "100 MB",
            "free_space_limit_running": "50 MB",
            "update_sleep": "1",
            "utility_after_payload_started": "",
            "cache_dir": str(self.folder / "cache"),
            "queuedata_url": cache + "/schedconfig/{pandaqueue}.all.json",
            "queues_url": cache + "/schedconfig/{pandaqueue}.json",
            "storages_url": cache + "/ddmendpoints.json",
            **dict.fromkeys(("queuedata_cvmfs", "queues_cvmfs", "storages_cvmfs"), "CVMFS_PATH/none"),
            "host": self.server,
            "url": self.server,
            "scratch": str(self.folder / "work"),
            "redundant": "",
            "middleware_container": "",
            "middleware_container_no_path": "",
        }
        for key, value in settings.items():
            text, count = re.subn(rf"(?m)^{key}:.*$", lambda _, line=f"{key}: {value}": line, text)
            assert count, f"its configuration has no {key} any more"
        for line in text.splitlines():
            if not line.startswith("#") and (found := _URL.search(line)):
                assert _LOCAL.search(found[0]), f"it would call {found[0]}"
        return text

    def start(self, lifetime: int = 300) -> subprocess.Popen[bytes]:
        """Starts it: it takes jobs until there are none, one after another."""
        host, _, port = self.server.rpartition(":")
        folder = self.folder
        env = {
            "PATH": f"{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "PILOT_NOKILL": "1",
            "PILOT_HOME": str(folder),
            "HARVESTER_PILOT_CONFIG": str(folder / "local.cfg"),
            "HARVESTER_WORKDIR": str(folder / "harvester"),
            "OIDC_AUTH_TOKEN": str(folder / "pilot.token"),
            "OIDC_AUTH_ORIGIN": self.vo,
        }
        argv = [
            *(str(_ISOLATED), USER, "env", "-C", str(self._sources), *(f"{k}={v}" for k, v in env.items())),
            *("python3", "pilot.py", "-a", str(folder / "work"), "-q", self.queue),
            *("-j", "user", "-i", "PR", "-t", "-u", "-d"),
            *("--pilot-user=generic", "-w", "generic", f"--url={host}", "-p", port, "--use-https=False"),
            *("--harvester-submit-mode=PULL", "--use-rucio-traces=False", "--cleanup=False", "-l", str(lifetime)),
            *(f"--queuedata-url={self.server}/cache/schedconfig/{{pandaqueue}}.all.json",),
            *(f"--storagedata-url={self.server}/cache/ddmendpoints.json", "--allow-same-user=False"),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self._process

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-20_000:]

    def stop(self) -> None:
        """Ends it and whatever it started: its namespace goes with it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        """Ends it, and removes its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def check_isolation() -> None:
    """Ends the test where a Pilot 3 cannot be kept apart from the rest of the machine."""
    done = subprocess.run([str(_ISOLATED), USER, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        missing(f"a Pilot 3 is run in a PID namespace of its own alone: {done.stderr.strip()}")
