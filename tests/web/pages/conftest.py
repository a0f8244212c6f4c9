"""Pages in process: a store with searches, and browsers that are signed in or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.here import User
from hpo_pilot.server.tokens import Role, Tokens
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SteeringStore
from hpo_pilot.web.api_context import Context, Uploads
from hpo_pilot.web.app import Pages as Monitor
from hpo_pilot.web.live import ChangeWatcher
from hpo_pilot.web.sessions import Sessions
from tests.bearer import make_token_folder, token
from tests.rest_api import add_results, set_state, write_search

BASE = "http://testserver"


@dataclass
class Pages:
    """A monitor, and the folder that it shows."""

    root: Path
    monitor: Monitor
    app: object
    store: SteeringStore
    sessions: Sessions

    @property
    def workdir(self) -> Path:
        return self.root / "work"

    def browser(self, name: str | None = "alice", role: Role = Role.USER) -> TestClient:
        """A browser of somebody who has signed in; None: of nobody."""
        client = TestClient(self.app, base_url=BASE, follow_redirects=False, raise_server_exceptions=False)
        client.headers.update({"accept": "text/html", "sec-fetch-site": "same-origin"})
        if name is not None:
            answer = client.post("/login", data={"token": token(name, role), "next": "/"})
            assert answer.status_code == 303, answer.text
        return client

    def submit(self, name: str, owner: str = "alice", **document: object) -> str:
        file = write_search(self.root / "files", name, **document)
        SearchClient.local(self.workdir, user=User(owner), opened=self.store).submit(file)
        return name

    def results(self, name: str, count: int = 3, log: str = "Traceback") -> None:
        add_results(self.workdir, name, count, log)

    def state(self, name: str, state: object, message: str = "") -> None:
        set_state(self.workdir, name, state, message)


@contextmanager
def made_pages(root: Path) -> Iterator[Pages]:
    """A monitor of a new work folder."""
    tokens = make_token_folder(root / "tokens")
    workdir = WorkDir.make(root / "work")
    with closing(SteeringStore.open(workdir.store_url())) as store:
        sessions = Sessions(tokens, run="one")
        context = Context(store, workdir, Uploads(workdir.uploads, 1 << 20, 4 << 20), ChangeWatcher(lambda _name: None))
        monitor = Monitor(context, Tokens(tokens), sessions, behind_proxy=False)
        yield Pages(root, monitor, monitor.application(), store, sessions)
        monitor.close_waiting()


@pytest.fixture(scope="session")
def pages(tmp_path_factory) -> Iterator[Pages]:
    """A monitor for all tests; each makes searches of its own names."""
    with made_pages(tmp_path_factory.mktemp("monitor")) as made:
        yield made


def form_token(page: str) -> str:
    """What a page's forms carry."""
    return page.split('name="form" value="', 1)[1].split('"', 1)[0]
