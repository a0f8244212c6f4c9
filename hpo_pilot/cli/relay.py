"""The relay: a login node's way out for compute nodes that have none."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from hpo_pilot.cli.options import LogFormatOption, option

if TYPE_CHECKING:
    from hpo_pilot.batch.relay import Address, Relay


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(relay)


def relay(
    listen: Annotated[
        str, option("--listen", metavar="HOST:PORT", help="The login node's address in the compute nodes' network.")
    ],
    to: Annotated[
        list[str], option("--to", metavar="HOST:PORT", help="A server that may be reached. May be repeated.")
    ],
    connections: Annotated[int, typer.Option(min=1, max=100_000, help="Connections at once, at most.")] = 1000,
    log_format: LogFormatOption = None,
) -> None:
    """Let compute nodes reach the named https servers, and nothing else: an HTTP proxy for `pilots submit --proxy`."""
    import asyncio

    from hpo_pilot.batch.relay import Address, Relay, RelayLimits
    from hpo_pilot.logs import configure_logging

    configure_logging("relay", form=log_format)
    at = Address.read(listen, "--listen")
    servers = [Address.read(server, "--to") for server in to]
    _allow_files(2 * connections + 100)  # each connection has two ends
    asyncio.run(_serve(Relay(servers, RelayLimits(connections=connections)), at, servers))


def _allow_files(wanted: int) -> None:
    """Raises this process's limit on open files, which is 1024 on many login nodes, as far as it may."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        typer.echo(
            f"warning: {hard} files may be open here, which is enough for {hard // 2 - 50} connections", err=True
        )


async def _serve(relay: Relay, at: Address, servers: list[Address]) -> None:
    import asyncio

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = await relay.listen(at)
    try:
        names = ", ".join(map(str, servers))
        typer.echo(f"relaying to {names}: hpo-pilot pilots submit --proxy http://{at}")
        await stop.wait()
    finally:
        # Its connections end with the process: pilots try again, and Server.wait_closed would wait for them.
        server.close()
