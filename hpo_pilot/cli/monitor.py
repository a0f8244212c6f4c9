"""The command `monitor`: web pages over a work folder, and links to them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpo_pilot.cli.network import (
    AuthorityOption,
    BehindProxyOption,
    HostOption,
    IssuersOption,
    PublicUrlOption,
    TlsCertOption,
    TlsKeyOption,
)
from hpo_pilot.cli.options import (
    TOKEN_FILE_VARIABLE,
    ServiceOption,
    StoreOption,
    TokenFileOption,
    WorkDirOption,
    service_of,
)
from hpo_pilot.cli.show import advised

if TYPE_CHECKING:
    from hpo_pilot.service.api_process import ApiProcess


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(monitor)


def monitor(
    link: Annotated[
        bool, typer.Option("--link", help="Print a one-time link to pages that run already, and start none.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port. Default: a free one.", show_default=False)
    ] = None,
    host: HostOption = "127.0.0.1",
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    ca: AuthorityOption = None,
    public_url: PublicUrlOption = None,
    insecure_behind_proxy: BehindProxyOption = False,
    issuers: IssuersOption = None,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
    service: ServiceOption = None,
    token_file: TokenFileOption = None,
) -> None:
    """Show searches as web pages until stopped; nothing is steered, so `run` and `serve` may work meanwhile."""
    from hpo_pilot.errors import InputError

    named = service_of(workdir, store, service)
    if named is not None:
        _of_service(named, token_file, ca)
        return
    if link:
        _print_link(workdir, token_file, ca)
        return
    if token_file is not None:
        raise InputError("--token-file is for --link and --service: pages of your own sign you in by themselves")
    from hpo_pilot.service.reach import Reach
    from hpo_pilot.service.watching import watch

    reach = Reach(
        host=host,
        port=port,
        certificate=tls_cert,
        key=tls_key,
        authority=ca,
        public_url=public_url,
        behind_proxy=insecure_behind_proxy,
        issuers=issuers,
    )

    def ready(pages: ApiProcess) -> None:
        typer.echo(f"the monitor is at {pages.url}")
        say_link(pages)
        if host_is_here(pages.url):
            typer.echo(f"from another machine: {tunnel(pages.url)}, then open the link there")
        typer.echo(advised("another link: `hpo-pilot monitor --link`; Ctrl-C ends the pages"))

    watch(workdir, store=store, reach=reach, on_ready=ready)


def say_link(pages: ApiProcess) -> None:
    """Prints a link that signs this machine's user in."""
    typer.echo(f"open {pages.link()} (good for ten minutes, and once)")


def host_is_here(url: str) -> bool:
    """Whether an address is this machine's own, so that others need a tunnel."""
    from urllib.parse import urlsplit

    return (urlsplit(url).hostname or "") in ("127.0.0.1", "::1", "localhost")


def tunnel(url: str) -> str:
    """The command that brings an address of this machine to another."""
    from socket import gethostname
    from urllib.parse import urlsplit

    port = urlsplit(url).port
    return f"ssh -N -L {port}:127.0.0.1:{port} {gethostname()}"


def _of_service(url: str, token_file: Path | None, ca: Path | None) -> None:
    """Where a service's pages are; with a token a link that signs its owner in."""
    from hpo_pilot.service.one_time_link import one_time_link

    typer.echo(f"the monitor is at {url.rstrip('/')}")
    token = _token_of(token_file)
    if token is None:
        typer.echo("sign in there with your token, or name it here for a link: --token-file FILE")
        return
    typer.echo(f"open {one_time_link(url, token, ca)} (good for ten minutes, and once)")


def _print_link(workdir: Path | None, token_file: Path | None, ca: Path | None) -> None:
    from hpo_pilot.service.one_time_link import one_time_link
    from hpo_pilot.service.reach import AUTHORITIES
    from hpo_pilot.service.watching import address_of_pages
    from hpo_pilot.service.workdir import WorkDir

    folder = WorkDir.at(workdir)
    url, token = address_of_pages(workdir), _token_of(token_file) or folder.tokens / "user.token"
    given = folder.tls / AUTHORITIES
    typer.echo(one_time_link(url, token, ca or (given if given.exists() else None)))


def _token_of(token_file: Path | None) -> Path | None:
    named = os.environ.get(TOKEN_FILE_VARIABLE)
    return token_file or (Path(named) if named else None)
