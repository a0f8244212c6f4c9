"""Commands of servers and machines: serve, monitor, pilot, doctor, token; and the manual."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Any, Concatenate
from urllib.parse import urlsplit

import typer
from rich.console import Console

from hpo_pilot.advice import command
from hpo_pilot.cli.options import (
    CaOption,
    JsonOption,
    LogFormatOption,
    P,
    ServerOption,
    ServiceOption,
    SlotsOption,
    StoreOption,
    TokenFileOption,
    WorkDirOption,
    argument,
    on_client,
    option,
    options_of,
    service_of,
    token_of,
    with_options,
)
from hpo_pilot.cli.output import advised, dump
from hpo_pilot.errors import InputError
from hpo_pilot.files import write_whole
from hpo_pilot.jobs.results import from_epoch
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.report.formatting import when
from hpo_pilot.steering.workdir import WorkDir

if TYPE_CHECKING:
    from hpo_pilot.steering.server_processes import ApiProcess, NetworkOptions


_network = functools.partial(typer.Option, rich_help_panel="Network", show_default=False)
_issuers = functools.partial(typer.Option, rich_help_panel="Other issuers", show_default=False)

HostOption = Annotated[
    str, _network(help="Address to listen on. Addresses other than this machine need TLS.", show_default=True)
]
TlsCertOption = Annotated[
    Path | None, _network(metavar="FILE", help="TLS with this certificate, chain included (PEM).")
]
TlsKeyOption = Annotated[Path | None, _network(metavar="FILE", help="The key of that certificate (PEM).")]
AuthorityOption = Annotated[
    Path | None, _network(metavar="FILE", help="Authorities of --tls-cert, if the system does not know them (PEM).")
]
PublicUrlOption = Annotated[
    str | None, _network(metavar="URL", help="URL that clients use, if it differs from the address to listen on.")
]
BehindProxyOption = Annotated[
    bool,
    _network(
        "--insecure-behind-proxy",
        help="Listen on the network without TLS, behind a proxy that has it.",
        show_default=True,
    ),
]
IssuersOption = Annotated[
    Path | None, _issuers(metavar="FILE", help="OIDC issuers whose tokens are accepted too (JSON).")
]


def on_network(command: Callable[Concatenate[NetworkOptions, P], None]) -> Callable[..., None]:
    """Makes a command of a function whose first argument is `NetworkOptions`; the command takes these options."""
    return with_options(command, options_of(_network_of), _network_of)


@contextmanager
def _network_of(
    *,
    host: HostOption = "127.0.0.1",
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    ca: AuthorityOption = None,
    public_url: PublicUrlOption = None,
    insecure_behind_proxy: BehindProxyOption = False,
    issuers: IssuersOption = None,
) -> Iterator[Any]:  # NetworkOptions, which is not imported for the signature
    from hpo_pilot.steering.server_processes import NetworkOptions

    yield NetworkOptions(
        host=host,
        certificate=tls_cert,
        key=tls_key,
        authority=ca,
        public_url=public_url,
        behind_proxy=insecure_behind_proxy,
        issuers=issuers,
    )


@on_network
def serve(
    network: NetworkOptions,
    slots: SlotsOption = None,
    port: Annotated[int | None, option(min=1, max=65535, help="The embedded server's port.")] = None,
    api_port: Annotated[int | None, option(min=1, max=65535, help="The REST API's port.")] = None,
    queues: Annotated[
        Path | None,
        option(
            "--queues",
            metavar="FILE",
            help="The embedded server's queues (YAML, see deploy/queues.yaml). Default: any name is one.",
        ),
    ] = None,
    server_processes: Annotated[
        int, option(min=1, max=64, help="Processes of the embedded server; more than one needs PostgreSQL.")
    ] = 1,
    server: ServerOption = None,
    notify_hosts: Annotated[
        str, option(metavar="HOST,…", help="The only hosts for notifications; *: any. Default: public addresses.")
    ] = "",
    log_format: LogFormatOption = None,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Run the steering service until stopped, with the embedded PanDA server and a local pilot, or with another."""
    from hpo_pilot.logs import configure_logging
    from hpo_pilot.operations.quotas import quotas_of
    from hpo_pilot.steering.embedded import EmbeddedPanda
    from hpo_pilot.steering.service import serve as run_service

    quotas_of(WorkDir.make(workdir), "")  # a wrong file is told now, and not to the first user

    configure_logging("service", form=log_format)

    def ready(panda: EmbeddedPanda | str, api: ApiProcess) -> None:
        if isinstance(panda, EmbeddedPanda):
            typer.echo(f"serving; the embedded PanDA server is at {panda.url}, its tokens are in {panda.token_folder}")
        else:
            typer.echo(f"serving; searches go to the PanDA server {panda}")
        trust = ("--ca", api.authority_file) if api.authority_file is not None else ()
        again = command("list", "--service", api.url, "--token-file", api.token_file, *trust)
        typer.echo(f"the REST API is at {api.url}: {again}")
        typer.echo(f"the monitor is at {api.url}")
        if sys.stdout.isatty():
            say_link(api)
        else:
            # Other users may read a journal, so it gets no link. Users who may read the work folder can ask for one.
            typer.echo(advised("a link that signs you in: `hpo-pilot monitor --link`"))
        if api.authority_file is not None:
            typer.echo(f"clients elsewhere must trust {api.authority_file} (--ca)")

    run_service(
        workdir,
        store=store,
        slots=slots,
        reach=replace(network, port=port),
        queues=queues,
        processes=server_processes,
        server=server,
        api_port=api_port,
        notify_hosts=notify_hosts.casefold().replace(",", " ").split(),
        on_ready=ready,
        on_warning=lambda warning: typer.echo(f"warning: {warning}", err=True),
    )


def pilot(context: typer.Context) -> None:
    """Run a pilot: take jobs of a queue from a PanDA server and run them here (see hpo-pilot pilot --help)."""
    from hpo_pilot.pilot.__main__ import main

    raise typer.Exit(main(context.args))


@on_client
def doctor(
    client: SearchClient,
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="Also try this PanDA server: token, upload, queues.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Examine this machine (container runtimes, launchers, GPUs, Horovod, panda-client, store) or a service.

    With --server it also examines a PanDA server: whether it answers, accepts your credentials and a small upload, who
    you are there, and which queues it has. It submits nothing.
    """
    findings = client.doctor(server)
    if as_json:
        dump(findings)
    else:
        width = max(len(finding["what"]) for finding in findings)
        for finding in findings:
            typer.echo(f"{'ok  ' if finding['ok'] else 'none'}  {finding['what']:<{width}}  {finding['detail']}")
    if any(finding["needed"] and not finding["ok"] for finding in findings):
        raise typer.Exit(3)


@on_network
def monitor(
    network: NetworkOptions,
    link: Annotated[
        bool, typer.Option("--link", help="Print a one-time link to pages that already run; start none.")
    ] = False,
    port: Annotated[int | None, option(min=1, max=65535, help="The port. Default: a free one.")] = None,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
    service: ServiceOption = None,
    token_file: TokenFileOption = None,
) -> None:
    """Show searches as web pages until stopped; steers nothing, so `run` and `serve` may work at the same time."""
    named = service_of(workdir, store, service)
    if named is not None:
        _of_service(named, token_file, network.authority)
        return
    if link:
        _print_link(workdir, token_file, network.authority)
        return
    if token_file is not None:
        raise InputError("--token-file is for --link and --service: pages of your own sign you in by themselves")
    from hpo_pilot.steering.server_processes import serve_pages
    from hpo_pilot.trust import is_loopback

    def ready(pages: ApiProcess) -> None:
        typer.echo(f"the monitor is at {pages.url}")
        say_link(pages)
        at = urlsplit(pages.url)
        if is_loopback(at.hostname or ""):
            tunnel = f"ssh -N -L {at.port}:127.0.0.1:{at.port} {gethostname()}"
            typer.echo(f"from another machine: {tunnel}, then open the link there")
        typer.echo(advised("another link: `hpo-pilot monitor --link`; Ctrl-C stops the pages"))

    serve_pages(workdir, store=store, reach=replace(network, port=port), on_ready=ready)


def say_link(pages: ApiProcess) -> None:
    """Prints a link that signs this machine's user in."""
    typer.echo(f"open {pages.link()} (good for ten minutes, and once)")


def _of_service(url: str, token_file: Path | None, ca: Path | None) -> None:
    """Prints the address of a service's pages; with a token, a link that signs its owner in."""
    from hpo_pilot.steering.server_processes import one_time_link

    typer.echo(f"the monitor is at {url.rstrip('/')}")
    token = token_of(token_file)
    if token is None:
        typer.echo("sign in there with your token, or name it here for a link: --token-file FILE")
        return
    typer.echo(f"open {one_time_link(url, token, ca)} (good for ten minutes, and once)")


def _print_link(workdir: Path | None, token_file: Path | None, ca: Path | None) -> None:
    from hpo_pilot.steering.server_processes import AUTHORITIES, address_of_pages, one_time_link

    folder = WorkDir.at(workdir)
    url, token = address_of_pages(workdir), token_of(token_file) or folder.tokens / "user.token"
    given = folder.tls / AUTHORITIES
    typer.echo(one_time_link(url, token, ca or (given if given.exists() else None)))


_STDOUT = Path("-")


class RoleChoice(StrEnum):
    """Values of `--role`. They equal `server.auth.Role`; importing that would load the server's libraries."""

    USER = "user"
    PILOT = "pilot"
    OPERATOR = "operator"


def add_token_commands(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(name="token", help="Tokens of the work folder's server.", no_args_is_help=True)
    group.command("create")(create_token)
    group.command("login")(login_token)
    group.command("list")(list_tokens)
    group.command("revoke")(revoke_token)
    app.add_typer(group)


def create_token(
    name: Annotated[str, option(help="Owner of the token: tasks and files belong to this name.")],
    role: Annotated[
        RoleChoice, typer.Option(help="user: own searches; pilot: takes jobs; operator: everything, for everybody.")
    ] = RoleChoice.USER,
    days: Annotated[float, typer.Option(max=36_500, help="Days of validity.")] = 30.0,
    vo: Annotated[str, option(help="The only virtual organisation that may use it. Default: any.")] = "",
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            metavar="FILE",
            help="File for the token, readable by you only; - is standard output. Default: a file beside the others.",
        ),
    ] = None,
    workdir: WorkDirOption = None,
) -> None:
    """Create a token and write it to a file; it is stored nowhere else."""
    from hpo_pilot.server.tokens import Authority, Role, write_private

    folder = WorkDir.make(workdir).tokens
    token, made = Authority(folder).issue(name, Role(role.value), days, vo)
    if output == _STDOUT:
        typer.echo(token)
        return
    path = output or folder / f"{''.join(c if c.isalnum() or c in '-_' else '_' for c in name)}-{made.id}.token"
    try:
        # Without a line end: panda-client and Pilot 3 send the content of the file unchanged.
        write_private(path, token)
    except OSError as error:
        raise InputError(f"cannot write the token to {path}: {error.strerror}") from error
    typer.echo(
        f"token {made.id} of {name}, role {role.value}, valid until {when(from_epoch(made.expires))}, is in {path}"
    )


def login_token(
    output: Annotated[Path, option("--output", "-o", metavar="FILE", help="File for the token, for you only.")],
    service: ServiceOption = None,
    ca: CaOption = None,
) -> None:
    """Get a token of a service's issuer: sign in with a browser on any device, by the code that is printed."""
    from hpo_pilot.operations.sign_in import device_token

    named = service_of(None, None, service)
    if named is None:
        raise InputError("give --service URL (or HPO_PILOT_SERVICE): the service at which to sign in")
    if output.is_dir() or not os.access(output.parent, os.W_OK):
        raise InputError(f"{output} cannot be written: name a file in an existing folder of yours")
    token = device_token(named.rstrip("/").removesuffix("/api/v1"), ca, typer.echo)
    write_whole(output, token, 0o600)
    typer.echo(f"the token is in {output}; it expires as its issuer decides, then sign in again")


def list_tokens(as_json: JsonOption = False, workdir: WorkDirOption = None) -> None:
    """List the tokens that have not expired, without the tokens themselves."""
    from hpo_pilot.server.tokens import Authority

    found = Authority(_token_folder(workdir)).issued()
    if as_json:
        dump([asdict(token) for token in found])
        return
    for token in found:
        state = "revoked" if token.revoked else f"until {when(from_epoch(token.expires))}"
        typer.echo(f"{token.id}  {token.role.value:<8}  {state:<22}  {token.name}{f'  ({token.vo})' * bool(token.vo)}")


def revoke_token(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="Id of the token (hpo-pilot token list).")],
    workdir: WorkDirOption = None,
) -> None:
    """Revoke a token at once; a running server notices by itself."""
    from hpo_pilot.server.tokens import Authority

    token = Authority(_token_folder(workdir)).revoke(token_id)
    typer.echo(f"token {token.id} of {token.name}, role {token.role.value}, is revoked")


def _token_folder(workdir: Path | None) -> Path:
    """Returns the folder of tokens in the work folder. It must exist: this function does not make it.

    Raises:
        InputError: the folder does not exist.
    """
    folder = WorkDir.at(workdir).tokens
    if not folder.is_dir():
        raise InputError(f"there are no tokens in {folder}: make one first (token create), or name another --workdir")
    return folder


def manual(page: Annotated[str | None, argument(help="The page; without it, list the pages.")] = None) -> None:
    """Read the manual: quick start, how-tos, reference. The monitor shows it at /help."""
    from rich.markdown import Markdown

    from hpo_pilot.manual import PAGES, page_named

    console = Console()
    if page is None:
        width = max(len(one.name) for one in PAGES)
        for one in PAGES:
            typer.echo(f"{one.name:{width}}  {one.title}")
        typer.echo("Read one: hpo-pilot manual NAME")
        return
    text = page_named(page.removesuffix(".md")).text()
    if not console.is_terminal:
        typer.echo(text, nl=False)
        return
    with console.pager(styles=True):
        console.print(Markdown(text))
