"""A server for a benchmark: in a process of its own, with tasks whose jobs do nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import requests

from hpo_pilot.server.tokens import Role
from tests.bearer import make_token_folder, token
from tests.server_process import ServerProcess
from tests.task_parameters import bare_params


def two_cores() -> None:
    """Holds this process and those that it starts to two cores, where the machine has more."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


class LoadServer:
    """A running server and calls to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._session = requests.Session()
        self._tokens = make_token_folder(folder / "tokens")
        self.start()

    def start(self) -> None:
        self.process = ServerProcess(
            database=f"sqlite:///{self._folder}/panda.db", files=self._folder / "files", tokens=self._tokens
        )
        self.url = self.process.url

    def kill(self) -> None:
        """Kill -9."""
        self.process.process.kill()
        self.process.stop()

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def waited_seconds(self) -> float:
        """Seconds that its threads were ready to run and had no core: what other programs took from it."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9

    def call(self, role: Role, path: str, **arguments: Any) -> Any:
        """One call; its data."""
        headers = {"Authorization": f"Bearer {token('bench', role)}"}
        get = path.startswith(("task/get", "job/get", "pilot/get", "system/"))
        answer = self._session.request(
            "GET" if get else "POST",
            f"{self.url}/api/v1/{path}",
            params=arguments if get else None,
            json=None if get else arguments,
            headers=headers,
            timeout=120,
        )
        reply = answer.json()
        if not reply["success"]:
            raise RuntimeError(f"{path}: {reply['message']}")
        return reply["data"]

    def submit(self, name: str, n_jobs: int, **more: Any) -> int:
        arguments = f"runner%20--points%20{'x' * 2000}%20--number%20"
        parameters = bare_params(f"user.bench.{name}/", n_jobs, arguments) | {"userName": "bench"} | more
        return int(self.call(Role.USER, "task/submit", task_parameters=parameters))


@contextmanager
def load_server(folder: Path) -> Iterator[LoadServer]:
    server = LoadServer(folder)
    try:
        yield server
    finally:
        server.process.stop()
