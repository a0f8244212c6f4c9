"""Records what clients ask the embedded server and what it answers, and replays it.

``python -m tests.recorded.conversations [CLIENT ...]`` records (prun, pbook and panda-client are in `.venv`; a Pilot 3
wants root, see tests/real/pilot3.py; `HPO_PILOT_TEST_PILOT3` names a folder with the sources of a newer one).
"""

from __future__ import annotations

import calendar
import contextlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote_plus, unquote_plus

import requests
import yaml

from hpo_pilot.server.tokens import Role
from tests.bearer import make_token_folder, token
from tests.panda_environment import panda_environment
from tests.recorded.neutral import Neutral
from tests.recorded.proxy import RecordingProxy
from tests.server_process import ServerProcess

DATA = Path(__file__).parent / "data"
_PILOT = str(Path(sys.executable).parent / "hpo-pilot")
_OURS = ("HPO_PILOT_STORE", "HPO_PILOT_SERVICE", "HPO_PILOT_TOKEN_FILE", "PANDA_URL_SSL")
_PAYLOAD = """
import json, os, sys
open("model.txt", "w").write("a model")
if os.environ["HPO_PILOT_TRIAL"] == "2":
    sys.exit("no good")
json.dump({"status": 0, "loss": json.load(open("input.json"))["x"]}, open("output.json", "w"))
"""


@contextlib.contextmanager
def embedded_server(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """An embedded server with an empty database; its URL, and a token by role, all of them ada's."""
    tokens = {role: token("ada", Role(role)) for role in ("user", "pilot")}
    database, made = folder / "panda.db", make_token_folder(folder / "tokens")
    with ServerProcess(database=database, files=folder / "files", tokens=made, stderr=folder / "server.log") as server:
        yield server.url, tokens


def _environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OURS} | {"COLUMNS": "200"} | more


class Party:
    """A folder with an embedded server behind a proxy, and the environment of its user."""

    def __init__(self, root: Path, url: str, tokens: dict[str, str], proxy: RecordingProxy) -> None:
        self.root, self.url, self.proxy, self.desk = root, url, proxy, root / "desk"
        self.desk.mkdir()  # prun packs all that is there
        for role, text in tokens.items():
            (root / f"{role}.token").write_text(text)
            (root / f"{role}.token").chmod(0o600)
        named = panda_environment(proxy.url, root / "user.token", None)
        named |= {"PANDA_NICKNAME": "ada", "PANDA_CONFIG_ROOT": str(root / ".panda"), "PANDA_SYS": sys.prefix}
        self.environment = _environment(**named, PANDA_PYTHON_EXEC=sys.executable, TERM="dumb")

    def __call__(self, *words: str) -> str:
        program = str(Path(sys.executable).parent / words[0])
        argv = [program, *words[1:]]
        done = subprocess.run(
            argv, cwd=self.desk, env=self.environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def search(self, **changes: Any) -> None:
        """Runs a search at the server to its end."""
        (self.desk / "training").mkdir(exist_ok=True)
        (self.desk / "training" / "train.py").write_text(_PAYLOAD)
        payload = {"files": "training", "command": "python3 -I -S train.py", "outputs": ["model.txt"]}
        document = {"search": "demo", "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}}, "optimizer": "random"}
        document |= {"budget": {"trials": 3, "parallel": 3}, "payload": payload, **changes}
        document["resources"] = {"minutes": 10, "memory_mb": 500}
        (self.desk / "demo.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        self("hpo-pilot", "run", "demo.yaml", "--workdir", "work", "--server", f"{self.proxy.url}/server/panda")

    @contextlib.contextmanager
    def pilot(self) -> Iterator[None]:
        """A pilot of ours."""
        argv = [_PILOT, "pilot", "--server", self.proxy.url, "--queue", "LOCAL", "--slots", "1", "--heartbeat", "1"]
        argv += ["--token-file", str(self.root / "pilot.token"), "--workdir", str(self.root / "pilot")]
        with (self.root / "pilot.log").open("wb") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, env=_environment())
        try:
            yield
        finally:
            process.terminate()
            process.wait(600)


def ours(party: Party) -> None:
    """Our manager, through panda-client, and our pilot; a task is killed too."""
    with party.pilot():
        party.search()
        party("hpo-pilot", "fetch", "best", "demo", "--workdir", "work", "-o", "out")


def prun_pbook(party: Party) -> None:
    """Those of prun and pbook, as tests/real/test_prun_pbook.py has them."""
    (party.desk / "run.py").write_text("import json\njson.dump({'n': 1}, open('userJobMetadata.json', 'w'))\n")
    switch = party.root / "works"

    def prun(command: str, *options: str) -> int:
        words = ["prun", "--exec", command, "--outDS", f"user.ada.{len(party.proxy.exchanges)}", "--noBuild"]
        out = party(*words, "--vo", "hpo_pilot", "--site", "LOCAL", *options)
        found = re.search(r"jediTaskID=(\d+)", out)
        assert found, out
        return int(found[1])

    def wait(task: int, *states: str) -> None:
        row = re.compile(rf"^\s*{task}\s+\d+\s+({'|'.join(states)})\b", re.MULTILINE)
        end = time.monotonic() + 600
        while not row.search(party("pbook", "-c", f"show({task})")):
            assert time.monotonic() < end, f"task {task} is not {' or '.join(states)}"

    with party.pilot():
        task = prun("python3 run.py", "--nJobs", "2")
        wait(task, "done")
        party("pbook", "-c", f"get_user_job_metadata({task}, 'metadata.json')")
        task = prun(f"test -e {switch}", "--nJobs", "1", "--maxAttempt", "1")
        wait(task, "failed", "finished", "exhausted")
        switch.touch()
        party("pbook", "-c", f"retry({task})")
        wait(task, "done")
        for call, ends in (("finish", "finished|failed|done"), ("kill", "aborted")):
            task = prun("sleep 3000", "--nJobs", "1")
            wait(task, "running", "scouting")
            party("pbook", "-c", f"{call}({task})")
            wait(task, ends)
        party("pbook", "-c", "show()")


def _pilot3(party: Party, source: str) -> None:
    from tests.real.pilot3 import USER, Pilot3

    grid = party.root / "files" / "grid"
    grid.mkdir(exist_ok=True)
    shutil.chown(grid, USER, USER)
    for folder in (grid.parent, party.root):
        folder.chmod(0o711)
    pilot = Pilot3(party.proxy.url, party.root / "pilot.token", source=source)
    pilot.start()
    try:
        party.search(budget={"trials": 2, "parallel": 2})
    finally:
        pilot.remove()


def pilot3_old(party: Party) -> None:
    """PyPI's newest Pilot 3."""
    from tests.real.pilot3 import FROM_PYPI

    _pilot3(party, FROM_PYPI)


def pilot3_new(party: Party) -> None:
    """A Pilot 3 from its repository."""
    _pilot3(party, os.environ["HPO_PILOT_TEST_PILOT3"].split(os.pathsep)[0])


CLIENTS: dict[str, Callable[[Party], None]] = {
    function.__name__: function for function in (ours, prun_pbook, pilot3_old, pilot3_new)
}


def record(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="recorded-") as folder:
        root = Path(folder)
        with embedded_server(root) as (url, tokens):
            proxy = RecordingProxy(url, {text: role for role, text in tokens.items()})
            CLIENTS[name](Party(root, url, tokens, proxy))
            proxy.close()
    neutral = Neutral()
    kept = []
    for made in proxy.exchanges:
        exchange = json.loads(json.dumps(made).replace(proxy.url, "<server>").replace(folder, "/recorded"))
        answer = _read(exchange.pop("answer"), exchange.pop("type"))
        kept.append({**exchange, "answer": neutral(json.loads(json.dumps(answer).replace("<server>", url)))})
    text = json.dumps(kept)
    assert not any(token in text for token in tokens.values())
    DATA.mkdir(exist_ok=True)
    (DATA / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


def _read(text: str, kind: str) -> Any:
    """An answer as a document; of a file only that it has something in it."""
    if "json" in kind or text[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    if re.match(r"^\w+=[^ \n]*(&\w+=|$)", text):
        return dict(parse_qsl(text, keep_blank_values=True))
    return text if len(text) < 200 else "<file>"


def recorded(name: str) -> list[dict[str, Any]]:
    """The requests of a client with the answers, in their order."""
    return json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))


def differences(name: str, folder: Path) -> dict[str, Any]:
    """Asks a new server everything that a client asked; the answers that differ, recorded and now, by the call."""
    neutral = Neutral({str(folder): "/recorded"})
    found: dict[str, Any] = {}
    with embedded_server(folder) as (url, tokens), requests.Session() as session:
        for number, exchange in enumerate(recorded(name)):
            headers = {**exchange["headers"], "Accept-Encoding": "identity"}
            if exchange["role"]:
                headers["Authorization"] = f"Bearer {tokens[exchange['role']]}"
            path = re.sub(r"timeout=[\d.]+", "timeout=0", exchange["path"].replace("<server>", url))
            path = re.sub(r"(?<=[?&]since=)[^&]+", lambda found, at=exchange["time"]: _since(found[0], at), path)
            body = exchange["body"].replace("<server>", url).encode("latin-1")
            answer = session.request(
                exchange["method"], url + path, data=body, headers=headers, timeout=600, allow_redirects=False
            )
            said = _read(answer.content.decode("latin-1"), answer.headers.get("Content-Type", ""))
            was, now = [exchange["status"], exchange["answer"]], [answer.status_code, said]
            if "/hpo_pilot/changes" in path:  # what it tells of has been told of already, or not yet
                was, now = ([one[0], sorted(one[1]["data"])] for one in (was, now))
            if neutral(was) != neutral(now):
                found[f"{number} {exchange['method']} {exchange['path']}"] = neutral([was, now])
    return found


def _since(asked: str, at: float) -> str:
    """A time in a question: what was then the present is after all that the replay did, the rest before it."""
    then = calendar.timegm(time.strptime(unquote_plus(asked)[:19], "%Y-%m-%d %H:%M:%S"))
    moment = time.time() + (60 if then > at - 5 else -86_400)
    return quote_plus(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment)))


if __name__ == "__main__":
    for chosen in sys.argv[1:] or list(CLIENTS):
        record(chosen)
        sys.stdout.write(f"{chosen}\n")
