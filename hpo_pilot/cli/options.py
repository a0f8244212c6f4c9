"""Options that many commands share, and the client that they name."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, cast

import typer

from hpo_pilot.cli.completion import complete_search
from hpo_pilot.client.search_client import SearchClient

SERVICE_VARIABLE = "HPO_PILOT_SERVICE"
TOKEN_FILE_VARIABLE = "HPO_PILOT_TOKEN_FILE"  # noqa: S105  the name of a variable

#: One that says itself what holds without it.
option = functools.partial(typer.Option, show_default=False)

WorkDirOption = Annotated[
    Path | None, option("--workdir", metavar="W", help="Work folder: store, logs, reports. Default: ./hpo-pilot")
]
StoreOption = Annotated[
    str | None, option("--store", metavar="URL", help="Another store, as a SQLAlchemy URL (or HPO_PILOT_STORE).")
]
ServiceOption = Annotated[
    str | None, option("--service", metavar="URL", help="A service instead of a store (or HPO_PILOT_SERVICE).")
]
TokenFileOption = Annotated[
    Path | None, option("--token-file", metavar="FILE", help="Your token for the service (or HPO_PILOT_TOKEN_FILE).")
]
CaOption = Annotated[
    Path | None,
    option(
        "--ca", metavar="FILE", help="The authority that the service's certificate comes from (or REQUESTS_CA_BUNDLE)."
    ),
]
LogFormatOption = Annotated[
    str | None,
    option("--log-format", metavar="text|json", help="How the log on stderr is written (or HPO_PILOT_LOG_FORMAT)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The search's name or number.", autocompletion=complete_search)
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The search file (YAML).", show_default=False)]
#: The largest numbers of options: a machine has fewer nodes, and nothing waits for more than a year.
MOST_NODES = 200_000
MOST_SECONDS = 366 * 86_400
#: A trial's or fold's number, as databases take it.
MOST_NUMBER = 2**31 - 1

SlotsOption = Annotated[
    int | None, option("--slots", min=0, max=10_000, help="Jobs side by side. Default: as many as the cores hold.")
]

#: What names the embedded PanDA server; as `hpo_pilot.store.EMBEDDED`, which would bring SQLAlchemy to every command.
EMBEDDED_SERVER = "embedded"
ServerOption = Annotated[
    str | None,
    option(
        "--server",
        metavar="URL|embedded",
        help="The PanDA server. Default: where the search's tasks are, else PANDA_URL_SSL, else the embedded one.",
    ),
]

P = ParamSpec("P")

#: What `on_client` adds to a command, by name.
_CLIENT_OPTIONS: dict[str, Any] = {
    "workdir": WorkDirOption,
    "store": StoreOption,
    "service": ServiceOption,
    "token_file": TokenFileOption,
    "ca": CaOption,
}


def on_client(command: Callable[Concatenate[SearchClient, P], None]) -> Callable[..., None]:
    """Makes a command of a function on a client: it gets the options that say which client, and is called with it."""

    @functools.wraps(command)
    def with_client(**given: Any) -> None:
        options = {name: given.pop(name) for name in _CLIENT_OPTIONS}
        with client_of(**options) as client:
            cast(Callable[..., None], command)(client, **given)

    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in _CLIENT_OPTIONS.items()
    ]
    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    parameters = [*named, *added]
    with_client.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_client.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_client


def client_of(
    *,
    workdir: Path | None = None,
    store: str | None = None,
    service: str | None = None,
    token_file: Path | None = None,
    ca: Path | None = None,
) -> SearchClient:
    """The client that the options name: a service where one is named, else the store of the work folder.

    HPO_PILOT_SERVICE counts where no option says otherwise: ``--workdir`` and ``--store`` mean a store here.

    Raises:
        InputError: they contradict each other, or the token file is missing.
    """
    from hpo_pilot.errors import InputError

    url = service_of(workdir, store, service)
    if url is None:
        from hpo_pilot.client.local_client import LocalClient

        if token_file is not None or ca is not None:
            raise InputError(f"--token-file and --ca are for a service: name it with --service or {SERVICE_VARIABLE}")
        return LocalClient(workdir, store)
    from hpo_pilot.client.rest_client import RestClient

    named = os.environ.get(TOKEN_FILE_VARIABLE)
    token = token_file or (Path(named) if named else None)
    if token is None:
        raise InputError(
            f"the service {url} wants a token: name the file that has yours with --token-file or {TOKEN_FILE_VARIABLE}"
        )
    return RestClient(url, token, ca=ca, workdir=workdir)


def service_of(workdir: Path | None, store: str | None, service: str | None) -> str | None:
    """The URL of the service that the options mean, if they mean one.

    Raises:
        InputError: a service and a store are named.
    """
    from hpo_pilot.errors import InputError

    if service:
        if store:
            raise InputError("--service and --store: a search is either behind a service or in a store; name one")
        return service
    if workdir is not None or store is not None:
        return None
    return os.environ.get(SERVICE_VARIABLE) or None
