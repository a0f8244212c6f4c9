"""What this machine has, and what is missing for what."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from hpo_pilot.config.site_file import SiteFileError, load_site, site_files
from hpo_pilot.errors import HpoPilotError
from hpo_pilot.launchers import LAUNCHERS
from hpo_pilot.panda.panda_server import environment_server, environment_vo
from hpo_pilot.service.target import nickname_at
from hpo_pilot.service.training_python import built_horovods, own_versions, python_on_path, versions_in
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import Store
from hpo_pilot.store.engine import shown
from hpo_pilot.transformation.container import RUNTIMES

_RUNTIMES = tuple(program for runtime in RUNTIMES.values() for program in runtime.programs)
_LAUNCHERS = tuple(name for name in LAUNCHERS if name != "plain")
_TRAINING = ("torch", "horovod")
_BATCH = ("sbatch", "bsub", "qsub", "flux")


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Attributes:
        what: the thing.
        ok: whether it is there and works.
        detail: what it is, or what it would be needed for.
        needed: whether nothing works without it.
    """

    what: str
    ok: bool
    detail: str
    needed: bool = False


def examine(workdir: Path | None, store: str | None) -> list[Finding]:
    """Looks at this machine."""
    memory = psutil.virtual_memory()
    return [
        Finding("cores", True, f"{len(os.sched_getaffinity(0))} usable", needed=True),
        Finding("memory", True, f"{memory.total / 1e9:.1f} GB, {memory.available / 1e9:.1f} GB free", needed=True),
        _gpus(),
        *(_package(name, use, needed=needed) for name, use, needed in _packages()),
        *_training(),
        _programs("container runtime", _RUNTIMES, "payload.container needs one"),
        _programs("launcher", _LAUNCHERS, "payloads of several ranks need one"),
        _programs("batch system", _BATCH, "pilots in allocations need one"),
        _sites(),
        _programs("Rucio", ("rucio",), "outputs at PanDA servers other than the embedded one are fetched with it"),
        _panda_server(workdir),
        _attempt("work folder", lambda: _work_folder(workdir)),
        *_privacy(WorkDir.at(workdir)),
        _attempt("store", lambda: _store(workdir, store)),
    ]


def _packages() -> tuple[tuple[str, str, bool], ...]:
    return (
        ("panda-client", "talks to PanDA servers", True),
        ("scikit-optimize", "the bayesian optimizer", True),
        ("deap", "the evolutionary and cma optimizers", True),
    )


def _package(name: str, use: str, *, needed: bool) -> Finding:
    try:
        return Finding(name, True, version(name), needed)
    except PackageNotFoundError:
        return Finding(name, False, f"not installed; {use}", needed)


def _training() -> list[Finding]:
    """PyTorch and Horovod where a payload's command finds them: our own Python, which `run` puts first, and PATH's."""
    own, other = sys.executable, python_on_path()
    found = {own: own_versions(_TRAINING), **({other: versions_in(other, _TRAINING)} if other else {})}
    nowhere = "not in " + " and not in ".join(found)
    built = next(iter(built_horovods()), None)
    hints = {"torch": "PyTorch payloads need it", "horovod": "payloads over several GPUs or nodes need it"}
    hints["horovod"] += "; `make horovod` builds it"
    if built:
        hints["horovod"] = f"`make horovod` built {built[1]}: put {built[0]} first in PATH"
    findings = []
    for name in _TRAINING:
        having = [f"{versions[name]} in {python}" for python, versions in found.items() if name in versions]
        findings.append(Finding(name, bool(having), ", ".join(having) or f"{nowhere}; {hints[name]}"))
    return findings


def _gpus() -> Finding:
    nvidia = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    amd = sorted(path.name for path in Path("/dev/dri").glob("renderD*")) if Path("/dev/kfd").exists() else []
    found = nvidia + amd
    return Finding("GPU", bool(found), ", ".join(found) or "none; payloads that ask for one will not run here")


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
    """Whether the server of the environment answers, and who we are there."""
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


def _credentials() -> str:
    """By what panda-client says who we are; never the thing itself."""
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
    """Whether other accounts can look into the work folder; nothing where there is none, which is said already."""
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
        return f"{shown(opened.engine.url)}, {len(opened.searches())} searches"
    finally:
        opened.close()


def _attempt(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look(), needed=True)
    except HpoPilotError as error:
        return Finding(what, False, str(error), needed=True)
