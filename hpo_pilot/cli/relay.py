"""The relay: a login node's way out for compute nodes that have none."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from hpo_pilot.cli.options import option

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
    connections: Annotated[int, typer.Option(min=1, help="Connections at once, at most.")] = 1000,
) -> None:
    """Let compute nodes reach the named https servers, and nothing else: an HTTP proxy for `pilots submit --proxy`."""
    import asyncio

    from hpo_pilot.batch.relay import Address, Relay, RelayLimits

    at = Address.read(listen, "--listen")
    servers = [Address.read(server, "--to") for server in to]
    asyncio.run(_serve(Relay(servers, RelayLimits(connections=connections)), at, servers))


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
