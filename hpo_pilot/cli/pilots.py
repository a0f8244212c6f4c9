"""The commands `pilots` and `sites`: pilots in allocations, and site profiles."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from hpo_pilot.advice import printable
from hpo_pilot.cli.options import (
    MOST_NODES,
    MOST_NUMBER,
    MOST_SECONDS,
    JsonOption,
    LogFormatOption,
    WorkDirOption,
    complete_site,
    option,
    options_of,
    with_options,
)
from hpo_pilot.cli.output import Column, add_row, advised, console, dump, print_columns
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.steering.workdir import DEFAULT_QUEUE, WorkDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpo_pilot.hpc.allocations import AllocationFile, AllocationManager
    from hpo_pilot.hpc.batch_system import Allocation, AllocationSpec
    from hpo_pilot.hpc.keeper import PilotAccess
    from hpo_pilot.hpc.site_profile import SiteProfile
    from hpo_pilot.jobs import JobNeeds


#: The command that starts a server which compute nodes reach.
_SERVE = "`hpo-pilot serve --host 0.0.0.0 --tls-cert FILE --tls-key FILE`"


@dataclass(frozen=True, kw_only=True)
class _Allocations:
    """The options that `pilots submit` and `pilots keep` share."""

    site: Annotated[str, option("--site", metavar="S", help="The site profile (hpo-pilot sites), or its file.")]
    walltime: Annotated[
        str, option("--walltime", metavar="H:MM", help="Walltime of each allocation: 2:00, or 1-12:00 with days.")
    ]
    queue: Annotated[
        str | None, option("--queue", help="The batch queue, partition or QOS. Default: the profile's.")
    ] = None
    panda_queue: Annotated[
        str | None, option("--panda-queue", metavar="PQ", help="The PanDA queue. Default: the embedded server's.")
    ] = None
    account: Annotated[str | None, option("--account", help="The project to charge. Default: the profile's.")] = None
    server: Annotated[
        str | None, option("--server", metavar="URL", help="The PanDA server. Default: the work folder's embedded one.")
    ] = None
    token_file: Annotated[
        Path | None, option("--token-file", metavar="FILE", help="A pilot's token. Default: the work folder's own.")
    ] = None
    ca: Annotated[
        Path | None, option("--ca", metavar="FILE", help="Authorities behind the server's certificate (PEM).")
    ] = None
    proxy: Annotated[
        str | None, option("--proxy", metavar="URL", help="The facility's web proxy. Default: the profile's.")
    ] = None
    node_cores: Annotated[
        int | None, option("--node-cores", min=1, max=MOST_NUMBER, help="Cores of each node. Default: the profile's.")
    ] = None
    node_gpus: Annotated[
        int | None, option("--node-gpus", min=0, max=MOST_NUMBER, help="GPUs of each node. Default: the profile's.")
    ] = None
    folder: Annotated[
        Path | None,
        option(
            "--folder",
            help="Seen by login and compute nodes. Default: the site's shared scratch, else the work folder.",
        ),
    ] = None
    pilot_option: Annotated[
        list[str] | None,
        option("--pilot-option", metavar="WORD", help="One more word for `hpo-pilot pilot`. May be repeated."),
    ] = None
    workdir: WorkDirOption = None

    def access(self) -> PilotAccess:
        """Returns the PanDA server that the options name, by default the embedded one of the work folder."""
        from hpo_pilot.hpc.keeper import PilotAccess
        from hpo_pilot.panda.server import address, environment_vo
        from hpo_pilot.pilot.settings import PilotSettings
        from hpo_pilot.server.tokens import Role
        from hpo_pilot.steering.embedded import running_server
        from hpo_pilot.steering.server_processes import AUTHORITIES
        from hpo_pilot.trust import is_loopback

        folder = WorkDir.at(self.workdir)
        if self.server is not None:
            url = address(self.server, "--server")
            if self.token_file is None or self.panda_queue is None:
                missing = "--token-file, a file with a pilot's token" if self.token_file is None else "--panda-queue"
                raise InputError(f"--server {url} also needs {missing}")
            # The virtual organisation of the user's own PanDA tokens; without such tokens that of our tokens.
            vo = environment_vo() if os.environ.get("PANDA_AUTH") == "oidc" else PilotSettings.vo
            return PilotAccess(url, self.panda_queue, self.token_file, self.ca, vo, self.site)
        found = running_server(folder)
        if found is None:
            raise InputError(
                f"no service runs in {folder.root}: start {_SERVE} there, or name --server, --token-file and "
                "--panda-queue"
            )
        if is_loopback(urlsplit(found.url).hostname or ""):
            typer.echo(
                f"warning: the embedded server is at {found.url}, which compute nodes cannot reach unless they are "
                f"this machine: start it with {_SERVE}",
                err=True,
            )
        ca = self.ca
        if ca is None and found.authorities is not None:
            ca = found.authorities / AUTHORITIES
        token = self.token_file or folder.tokens / f"{Role.PILOT.value}.token"
        return PilotAccess(found.url, self.panda_queue or DEFAULT_QUEUE, token, ca, found.vo, self.site)

    def _root(self) -> Path:
        """Returns the folder that login and compute nodes share."""
        from hpo_pilot.hpc.site_files import find_site

        if self.folder is not None:
            return self.folder.absolute()
        shared = find_site(self.site).scratch.shared
        if shared is None:
            return WorkDir.at(self.workdir).root
        expanded = os.path.expandvars(shared)
        if "$" in expanded:
            raise InputError(f"{self.site}'s shared scratch is {shared}, which is not set here: give --folder")
        return Path(expanded, "hpo-pilot")

    def planner(self, access: PilotAccess, nodes: int) -> Callable[[str], AllocationSpec]:
        """Returns a function that makes the allocation of a name."""
        from hpo_pilot.hpc.allocations import PilotCommand
        from hpo_pilot.hpc.batch_system import AllocationSpec, active_environment, walltime_minutes
        from hpo_pilot.hpc.site_files import find_site

        profile, minutes = find_site(self.site), walltime_minutes(self.walltime)
        command = PilotCommand(access, self._root(), tuple(self.pilot_option or ()))
        batch = (self.queue, self.account, self.proxy, active_environment(os.environ), self.node_cores, self.node_gpus)
        return lambda name: AllocationSpec(
            profile, nodes, minutes, name, command.folder(name), command.words(name), *batch
        )


@contextmanager
def _checked(**given: Any) -> Iterator[_Allocations]:
    """Checks site and walltime first, so that their errors are reported before errors of this machine."""
    from hpo_pilot.hpc.batch_system import walltime_minutes
    from hpo_pilot.hpc.batch_systems import make_batch_system
    from hpo_pilot.hpc.site_files import find_site

    wanted = _Allocations(**{**given, "site": site_named(given["site"])})
    make_batch_system(find_site(wanted.site).batch.system)
    walltime_minutes(wanted.walltime)
    yield wanted


def add_pilot_commands(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(name="pilots", help="Pilots in allocations of a batch system.", no_args_is_help=True)
    group.command()(with_options(submit, options_of(_Allocations), _checked))
    group.command("list")(list_pilots)
    group.command()(cancel)
    group.command()(with_options(keep, options_of(_Allocations), _checked))
    app.add_typer(group)


def submit(
    wanted: _Allocations,
    nodes: Annotated[int, option("--nodes", min=1, max=MOST_NODES, help="Nodes of the allocation.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job script; submit nothing.")] = False,
) -> None:
    """Submit an allocation whose pilot runs jobs on all its nodes in parallel."""
    from hpo_pilot.hpc.allocations import check_shape, new_name
    from hpo_pilot.hpc.batch_systems import make_batch_system

    access = wanted.access()
    spec = wanted.planner(access, nodes)(new_name())
    if dry_run:
        check_shape(spec)
        typer.echo(make_batch_system(spec.site.batch.system).script(spec), nl=False)
        return
    done = _manager(wanted.workdir).submit(spec, server=access.server, panda_queue=access.queue)
    typer.echo(
        f"submitted {done.name} as job {done.job_id}: {nodes} nodes of {wanted.site}, {wanted.walltime}; "
        f"output: {spec.output}"
    )


def list_pilots(
    as_json: JsonOption = False,
    everything: Annotated[bool, typer.Option("--all", help="Also allocations that ended long ago.")] = False,
    workdir: WorkDirOption = None,
) -> None:
    """List the allocations of the work folder, as the batch systems report them now."""
    from hpo_pilot.hpc.batch_system import BatchState

    now = time.time()
    found = [
        one for one in _manager(workdir).refresh() if everything or not one.is_over or now - one.changed < 7 * 86400
    ]
    if as_json:
        dump([one.document() for one in found])
        return
    if not found:
        said = "there are no allocations: `hpo-pilot pilots submit` starts one, `hpo-pilot pilots keep` as jobs wait"
        typer.echo(advised(said))
        return
    table = [
        Column("name", least=12),
        Column("job"),
        Column("site", rank=3),
        Column("nodes", rank=2),
        Column("walltime", rank=2),
        Column("state"),
        Column("for", rank=1),
        Column("panda queue", rank=4),
    ]
    for one in found:
        add_row(table, _row(one, now))
    print_columns(console(), table)
    for one in found:
        if one.state is BatchState.FAILED:
            typer.echo(f"{one.name} failed: {_last_line(one.output)}")


def cancel(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Names or job ids.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All allocations that are not over.")] = False,
    workdir: WorkDirOption = None,
) -> None:
    """Cancel allocations: their pilots return their jobs and end."""
    if bool(ids) == everything:
        raise InputError("name the allocations to cancel, or give --all; `hpo-pilot pilots list` shows them")
    manager = _manager(workdir)
    names = list(ids or ()) or [one.name for one in manager.refresh() if not one.is_over]
    unsure = []
    for one in manager.cancel(names):
        if one.job_id is None:
            unsure.append(one.name)
        else:
            typer.echo(f"cancelled {one.name}, job {one.job_id}")
    if unsure:
        raise TryAgainError(f"{', '.join(unsure)}: it is not known yet whether it was submitted; cancel it in a minute")


def room_for(spec: AllocationSpec, needs: JobNeeds, jobs: int | None) -> int:
    """Returns how many such jobs an allocation runs at once, at most `jobs`; that many if the site does not tell."""
    from hpo_pilot.hpc.plan import jobs_at_once

    node = spec.site.node
    # Without its cores, a node would have room for one job; with the user's number, only its GPUs limit it.
    cores = spec.node_cores or node.cores or (needs.cores * math.ceil(jobs / spec.nodes) if jobs else None)
    site = spec.site.model_copy(update={"node": node.model_copy(update={"cores": cores})})
    found = jobs_at_once(site, needs, spec.nodes, spec.minutes)
    return min(found, jobs or found)


def keep(
    wanted: _Allocations,
    max_nodes: Annotated[
        int, option("--max-nodes", min=1, max=MOST_NODES, help="Most nodes of all allocations together.")
    ],
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=MOST_NODES, help="Nodes of each allocation.")] = 1,
    jobs: Annotated[
        int | None,
        option("--jobs", min=1, max=MOST_NUMBER, help="Most jobs at once in an allocation. Default: as many as fit."),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=MOST_SECONDS, help="Seconds between two checks.")] = 30.0,
    idle: Annotated[
        float,
        typer.Option(min=0, max=MOST_SECONDS, help="Cancel allocations after this time without jobs, in seconds."),
    ] = 300.0,
    settle: Annotated[
        float, typer.Option(min=0, max=MOST_SECONDS, help="Seconds that a started allocation has to take jobs.")
    ] = 60.0,
    log_format: LogFormatOption = None,
) -> None:
    """Submit allocations while jobs wait, within the site's job limits, until stopped; running allocations stay."""
    from hpo_pilot.hpc.allocations import check_shape, new_name
    from hpo_pilot.hpc.keeper import AllocationKeeper, KeeperSettings
    from hpo_pilot.logs import configure_logging

    configure_logging("keeper", form=log_format)
    if nodes > max_nodes:
        raise InputError(f"--nodes {nodes} of one allocation are more than --max-nodes {max_nodes}")
    access = wanted.access()
    plan = wanted.planner(access, nodes)
    first = plan(new_name())
    check_shape(first)
    room = jobs or nodes * max(1, first.site.node.gpu_count)

    if not (first.site.node.cores or first.site.node.gpu_count or first.node_cores or jobs):
        one = f"the profile {first.site.name} does not say how many cores a node has"
        typer.echo(f"{one}: each is counted as room for one job; --node-cores N or --jobs N say more")

    keeper = AllocationKeeper(
        _manager(wanted.workdir),
        KeeperSettings(access.server, access.queue, first.site.name, max_nodes, room, idle, settle),
        plan,
        access.demand,
        at_once=partial(room_for, jobs=jobs),
        tell=typer.echo,
    )
    stop = threading.Event()

    def end(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)  # the second one ends it even while a batch system hangs

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with _allocations(wanted.workdir).kept_by_one(access.server, access.queue, first.site.name):
        typer.echo(
            f"keeping up to {max_nodes} nodes of {wanted.site} for the jobs of {access.queue} at {access.server}"
        )
        keeper.run(stop, interval)
    said = "stopped; allocations go on: `hpo-pilot pilots list` shows them, `hpo-pilot pilots cancel --all` ends them"
    typer.echo(advised(said))


def _allocations(workdir: Path | None) -> AllocationFile:
    from hpo_pilot.hpc.allocations import AllocationFile

    return AllocationFile(WorkDir.at(workdir).root)


def _manager(workdir: Path | None) -> AllocationManager:
    from hpo_pilot.hpc.allocations import AllocationManager

    return AllocationManager(_allocations(workdir))


def _last_line(path: Path) -> str:
    """Returns the last line of a failed allocation's output, and the path of the whole output."""
    from hpo_pilot.logs import last_line

    try:
        said = last_line(path)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return f"{printable(said)} (all of it: {path})" if said else f"{path} is empty"


def _row(one: Allocation, now: float) -> tuple[str, ...]:
    from hpo_pilot.hpc.batch_system import walltime_text

    state = one.state.value if one.state is not None else "being submitted"
    since = walltime_text(max(0, int(now - (one.changed or one.submitted))) // 60)
    shown = f"{state} ({printable(one.reason)})" if one.reason else state
    return (
        one.name,
        one.job_id or "-",
        one.site,
        str(one.nodes),
        walltime_text(one.minutes),
        shown,
        since,
        one.panda_queue,
    )


def add_site_commands(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(name="sites", help="Site profiles: what machines offer.", invoke_without_command=True)
    group.callback()(list_sites)
    group.command("show")(show_site)
    group.command("check")(check_sites)
    app.add_typer(group)


def look_first_in(folder: Path) -> None:
    """Makes this process, and its child processes, look for profiles in a folder before all others.

    Raises:
        InputError: there is no such folder.
    """
    from hpo_pilot.hpc.site_folders import SITES_VARIABLE

    if not folder.is_dir():
        raise InputError(f"--sites {folder}: there is no such folder")
    named = [str(folder.resolve()), os.environ.get(SITES_VARIABLE, "")]
    os.environ[SITES_VARIABLE] = os.pathsep.join(name for name in named if name)


def site_named(given: str) -> str:
    """Returns the name of a profile that is given by its name or its file, as `sites check` takes it.

    Raises:
        SiteFileError: the file has mistakes.
    """
    from hpo_pilot.hpc.site_files import load_site

    file = Path(given)
    if file.suffix != ".yaml":
        return given
    name = load_site(file).name
    look_first_in(file.parent)
    return name


def list_sites(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the known site profiles."""
    from hpo_pilot.hpc.site_files import SiteFileError, load_site, site_files

    if context.invoked_subcommand is not None:
        return
    files = site_files()
    profiles: dict[str, SiteProfile | None] = {}
    for name, path in files.items():
        try:
            profiles[name] = load_site(path)
        except SiteFileError as error:
            profiles[name] = None
            typer.echo(f"hpo-pilot: {error}", err=True)
    if as_json:
        sound = {name: profile for name, profile in profiles.items() if profile is not None}
        dump([{**profile.model_dump(mode="json"), "file": str(files[name])} for name, profile in sound.items()])
        return
    table = [
        Column("site"),
        Column("node", least=16),
        Column("batch", rank=1),
        Column("launcher", rank=2),
        Column("file", rank=3, least=12, tail=True),
    ]
    for name, profile in profiles.items():
        cells = [name, "its file is wrong", "", "", str(files[name])]
        if profile is not None:
            cells[1:4] = _node(profile), profile.batch.system, profile.launcher.name
        add_row(table, cells)
    print_columns(console(), table)


def _node(profile: SiteProfile) -> str:
    node = profile.node
    gpus = f"{node.gpus.count} x {node.gpus.model or node.gpus.kind}" if node.gpus is not None else None
    parts = [
        f"{node.cores} cores" if node.cores else None,
        f"{node.memory_mb / 1000:g} GB" if node.memory_mb else None,
        gpus,
        node.architecture,
    ]
    shape = ", ".join(part for part in parts if part) or "not said"
    return f"{node.count} nodes: {shape}" if node.count else shape


def show_site(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The profile's name.", show_default=False, autocompletion=complete_site),
    ],
    as_json: JsonOption = False,
) -> None:
    """Print a profile: its file as it stands, or as JSON with all defaults."""
    from hpo_pilot.hpc.site_files import find_site, site_files

    profile = find_site(name)
    path = site_files()[name]
    if as_json:
        dump({**profile.model_dump(mode="json"), "file": str(path)})
        return
    typer.echo(f"# {path}")
    typer.echo(path.read_text(encoding="utf-8-sig"), nl=False)


def check_sites(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A site file (YAML).", show_default=False)],
) -> None:
    """Check a site file; every mistake is reported with its place."""
    from hpo_pilot.hpc.site_files import load_site

    profile = load_site(file)
    typer.echo(f"{file}: site {profile.name!r} is valid: {_node(profile)}; {profile.batch.system}")
