"""`hpo-pilot doctor`: checks the programs, packages and servers of this machine, and names the missing ones."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.hpc.batch_systems import BATCH_SYSTEMS
from hpo_pilot.hpc.launchers import LAUNCHERS
from hpo_pilot.hpc.site_files import SiteFileError, load_site, site_files
from hpo_pilot.panda.client_process import ClientProcess
from hpo_pilot.panda.manager import SandboxUploads
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.panda.server import PandaServer, address, environment_server, environment_vo
from hpo_pilot.panda.tasks import ChangeFeed
from hpo_pilot.pilot.machine import find_gpus
from hpo_pilot.steering.embedded import nickname_at
from hpo_pilot.steering.workdir import WorkDir, nickname
from hpo_pilot.store import EMBEDDED, Store
from hpo_pilot.store.database import url_without_password
from hpo_pilot.transformation import landlock
from hpo_pilot.transformation.container import RUNTIMES

_RUNTIMES = tuple(program for runtime in RUNTIMES.values() for program in runtime.programs)
_LAUNCHERS = tuple(name for name in LAUNCHERS if name != "plain")
_TRAINING = ("torch", "horovod")
_QUEUES_SHOWN = 8
_BATCH = tuple(kind.submitting[0] for kind in BATCH_SYSTEMS.values())


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        what: name of the checked thing.
        ok: whether it is present and works.
        detail: its version or value; if it is missing, its purpose.
        needed: whether hpo-pilot cannot work without it.
    """

    what: str
    ok: bool
    detail: str
    needed: bool = False


def examine(workdir: Path | None, store: str | None, server: str | None = None) -> list[Finding]:
    """Checks this machine; `server`: also tries each step of a search at that PanDA server."""
    memory = psutil.virtual_memory()
    return [
        Finding("cores", True, f"{len(os.sched_getaffinity(0))} usable", needed=True),
        Finding("memory", True, f"{memory.total / 1e9:.1f} GB, {memory.available / 1e9:.1f} GB free", needed=True),
        _gpus(),
        *(_package(name, use) for name, use in _PACKAGES.items()),
        *_training(),
        _programs("container runtime", _RUNTIMES, "payload.container needs one"),
        _isolation(),
        _programs("launcher", _LAUNCHERS, "payloads of several ranks need one"),
        _programs("batch system", _BATCH, "pilots in allocations need one"),
        _sites(),
        _programs("Rucio", ("rucio",), "outputs at PanDA servers other than the embedded one are fetched with it"),
        *([_panda_server(workdir)] if server in (None, EMBEDDED) else _tried_server(str(server), workdir)),
        _attempt("work folder", lambda: _work_folder(workdir)),
        *_privacy(WorkDir.at(workdir)),
        _attempt("store", lambda: _store(workdir, store)),
    ]


#: Packages that a service needs, and what for.
_PACKAGES = {
    "panda-client": "talks to PanDA servers",
    "scikit-optimize": "the bayesian optimizer",
    "deap": "the evolutionary and cma optimizers",
}


def _package(name: str, use: str) -> Finding:
    try:
        return Finding(name, True, version(name), needed=True)
    except PackageNotFoundError:
        return Finding(name, False, f"not installed; {use}", needed=True)


def _training() -> list[Finding]:
    """Checks the Python of payloads, and its PyTorch and Horovod."""
    what, python = "payloads' Python", python_on_path()
    remedy = "activate the environment of your training before you submit, or name its Python in payload.python"
    found = versions_in(python, _TRAINING) if python else {}
    built = next(iter(built_horovods()), None)
    hints = {"torch": "payloads of PyTorch need it, over several GPUs or nodes too (torchrun)"}
    hints["horovod"] = "only payloads that train with Horovod need it"
    hints["horovod"] += "; `make horovod` builds it"
    if built:
        hints["horovod"] = f"`make horovod` built {built[1]}: put {built[0]} first in PATH"
    whose = f"{python}, of the environment active here; payload.python names another"
    findings = [Finding(what, bool(python), whose if python else f"no python and no python3 in PATH; {remedy}")]
    for name in _TRAINING:
        lacking = f"not in {python}; {hints[name]}" if python else hints[name]
        findings.append(Finding(name, name in found, f"{found[name]} in {python}" if name in found else lacking))
    return findings


def _gpus() -> Finding:
    found = [" ".join(filter(None, (gpu.vendor, gpu.model, gpu.identifier))) for gpu in find_gpus()]
    return Finding("GPU", bool(found), ", ".join(found) or "none; payloads that ask for one will not run here")


def _isolation() -> Finding:
    trouble = landlock.trouble(())
    return Finding(
        "payload isolation",
        not trouble,
        f"{trouble}; payloads can read their pilot's files" if trouble else "by Landlock",
    )


def _programs(what: str, names: tuple[str, ...], use: str) -> Finding:
    found = [name for name in names if shutil.which(name)]
    return Finding(what, bool(found), ", ".join(found) or f"none of {', '.join(names)}; {use}")


def _sites() -> Finding:
    wrong = []
    files = site_files()
    for path in files.values():
        try:
            load_site(path)
        except SiteFileError as error:
            wrong.append(str(error.problems[0]))
    return Finding("site profiles", bool(files) and not wrong, "; ".join(wrong) or ", ".join(files) or "none")


def _panda_server(workdir: Path | None) -> Finding:
    """Checks that the server of the environment answers and knows the user."""
    what = "PanDA server"
    try:
        url = environment_server()
        if url is None:
            return Finding(what, True, "the embedded one; PANDA_URL_SSL or --server names another")
        name = nickname_at(url, WorkDir.make(workdir).log("panda-client"))
    except HpoPilotError as error:
        return Finding(what, False, str(error), needed=True)
    return Finding(
        what, True, f"{url} answers; you are {name}, VO {environment_vo()}, by {_credentials()}", needed=True
    )


def _tried_server(server: str, workdir: Path | None) -> list[Finding]:
    """Tries each step of a search at a PanDA server; leaves out the steps after a failed one that they need."""
    findings: list[Finding] = []

    def tried(what: str, look: Callable[[], str], *, needed: bool = True) -> bool:
        findings.append(_attempt(what, look, needed=needed))
        return findings[-1].ok

    try:
        url = address(server, "--server")
        log = WorkDir.make(workdir).log("panda-client")
    except HpoPilotError as error:
        return [Finding("PanDA server", False, str(error), needed=True)]
    at = PandaServer(url, None, "", environment_vo())
    with contextlib.closing(ClientProcess(at.environment(), log)) as client:
        if not tried("PanDA server", lambda: _answering(client, at)):
            return findings
        if tried("credentials", lambda: f"you are {nickname_at(url, log)}, VO {at.vo}, by {_credentials()}"):
            tried("group", lambda: _group(client), needed=False)
            tried("upload", lambda: _upload(client, at))
            tried("queues", lambda: _queues(client), needed=False)
    return findings


def _answering(client: ClientProcess, server: PandaServer) -> str:
    status, answer = client.call("hello")
    if status != 0:
        raise TryAgainError(f"the PanDA server {server.url} does not answer well: {answer}")
    with contextlib.closing(ChangeFeed(server)) as feed, contextlib.suppress(TryAgainError):
        if feed.is_there():
            return f"{server.url} answers; it is an embedded one of hpo-pilot"
    return f"{server.url} answers by API v1; panda-server does not tell its version"


def _group(client: ClientProcess) -> str:
    known = client.call("userAttributes")
    groups = [*dict.fromkeys([*(known.get("production_working_groups") or ()), *(known.get("fqans") or ())])]
    is_production = bool(known.get("is_production_user"))
    role = "with" if is_production else "without"
    seen = f"groups: {', '.join(map(str, groups))}" if groups else "it sees no groups of yours"
    # killJob of panda-server 1.0.4 ignores such calls without an error; panda-client sends no other code.
    limit = "; with that role PanDA kills no single job of yours: early stopping stops none" if is_production else ""
    return f"the server knows you as {known.get('user_dn_clean')}, {role} a production role; {seen}{limit}"


def _upload(client: ClientProcess, server: PandaServer) -> str:
    """Uploads a small file as a search uploads its sandbox: one per day, which the server deletes like any other."""
    cache = SandboxUploads(client, use_cache_server=server.uses_cache_server)
    with tempfile.TemporaryDirectory(prefix="hpo-pilot-") as folder:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        file = build_sandbox(None, {"doctor": nickname(), "day": day}, Path(folder))
        kept, size = cache.keep(file, again=True), file.stat().st_size
    if not client.call("touchFile", kept.name, server.uses_cache_server):
        raise TryAgainError(f"{kept.source} took a small file and does not have it: {kept.name} cannot be touched")
    return f"{kept.source} took a file of {size / 1e3:.0f} kB, registered it, and has it"


def _queues(client: ClientProcess) -> str:
    found = client.call("queues")
    online = sorted(name for name, state in found.items() if state == "online")
    if not found:
        raise TryAgainError("the server describes no queue for users' jobs; an embedded one without --queues takes any")
    names = ", ".join(online[:_QUEUES_SHOWN]) + (", …" if len(online) > _QUEUES_SHOWN else "")
    return f"{len(online)} of {len(found)} for users' jobs are online" + (f": {names}" if names else "")


def _credentials() -> str:
    """Returns where panda-client finds the credentials; never the credentials themselves."""
    if os.environ.get("PANDA_AUTH") != "oidc":
        return f"the proxy {os.environ.get('X509_USER_PROXY') or f'/tmp/x509up_u{os.getuid()}'}"  # noqa: S108 - where it is
    for variable in ("PANDA_AUTH_ID_TOKEN", "OIDC_AUTH_TOKEN_FILE", "OIDC_AUTH_ID_TOKEN"):
        if os.environ.get(variable):
            return f"the token of {variable}"
    return f"the token that panda-client keeps in {Path(os.environ.get('PANDA_CONFIG_ROOT') or '.', '.token')}"


def _work_folder(workdir: Path | None) -> str:
    folder = WorkDir.make(workdir)
    free = shutil.disk_usage(folder.root).free
    return f"{folder.root}, {free / 1e9:.1f} GB free"


def _privacy(workdir: WorkDir) -> list[Finding]:
    """Checks whether other accounts can read the work folder; no finding without a work folder."""
    what = "privacy"
    try:
        found = workdir.open_to_others()
        mode = workdir.root.stat().st_mode
    except OSError:
        return []
    if not found:
        return [Finding(what, True, "no other account can read the work folder")]
    if found == [workdir.root]:
        remedy = f"chmod 700 {shlex.quote(str(workdir.root))}"
        return [Finding(what, False, f"other accounts can read the work folder (mode {mode & 0o777:04o}): {remedy}")]
    names = ", ".join(path.name for path in found)
    remedy = shlex.join(["chmod", "go-rwx", *map(str, found)])
    return [Finding(what, False, f"other accounts can read {names} in the work folder: {remedy}")]


def _store(workdir: Path | None, store: str | None) -> str:
    opened = Store.open(WorkDir.make(workdir).store_url(store))
    try:
        return f"{url_without_password(opened.engine.url)}, {len(opened.searches())} searches"
    finally:
        opened.close()


def _attempt(what: str, look: Callable[[], str], *, needed: bool = True) -> Finding:
    try:
        return Finding(what, True, look(), needed)
    except HpoPilotError as error:
        return Finding(what, False, str(error), needed)


#: A program that prints versions of packages without importing them.
_ASK = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_PATIENCE = 20.0  # seconds: a Python on a shared file system may start slowly


def python_on_path() -> str | None:
    """Returns the Python that a command like `python train.py` starts."""
    return shutil.which("python") or shutil.which("python3")


def versions_in(python: str, names: Iterable[str]) -> dict[str, str]:
    """Returns the versions of installed packages in a Python; empty if that Python does not answer."""
    try:
        done = subprocess.run([python, "-c", _ASK, *names], capture_output=True, timeout=_PATIENCE, check=True)
        found: dict[str, str] = json.loads(done.stdout)
        return found
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}  # a Python 3.7 or older, or one that does not answer


def built_horovods() -> list[tuple[Path, str]]:
    """Returns the builds of `make horovod` on this machine, newest first: (bin folder, description)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpo_pilot"
    found = []
    for path in cache.glob("horovod-*/horovod.json"):
        try:
            manifest = json.loads(path.read_text())
            what = f"{manifest['horovod']} with torch {manifest['torch']}"
            found.append((float(manifest["made"]), path.parent / "venv" / "bin", what))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # A build in progress is being replaced.
    return [(folder, what) for _, folder, what in sorted(found, reverse=True)]
