"""Options that many commands share, the client that they name, and shell completion."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, cast

import typer
from typer import Context

from hpo_pilot.errors import InputError
from hpo_pilot.operations.client import SearchClient

# --- shell completion of names of searches and sites ---
#
# The shell waits for it at every press of the tab key. It therefore imports nothing heavy: it reads a local SQLite
# store with the standard library, and never asks a service, which may be slow. `hpo-pilot --install-completion` sets
# it up.

#: A word and its explanation.
Offer = tuple[str, str]

#: Largest number of offers: the newest ones are offered.
_MOST = 200

#: Longest wait for a store that another process writes, in seconds.
_PATIENCE = 0.1


def complete_search(ctx: Context, incomplete: str) -> list[Offer]:
    """Names of searches, with their states; none if the store is missing, locked or of another version."""
    import sqlite3

    path = _store_path(ctx)
    if path is None or not path.is_file():
        return []
    query = "SELECT name, state FROM searches ORDER BY id DESC"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_PATIENCE)) as store:
            return [offer for offer in store.execute(query) if offer[0].startswith(incomplete)][:_MOST]
    except sqlite3.Error:
        return []


def complete_site(ctx: Context, incomplete: str) -> list[str]:
    """Names of site profiles."""
    from hpo_pilot.hpc.site_folders import site_folders

    given = ctx.find_root().params.get("site_folder")
    folders = [*([Path(given)] if given else []), *site_folders()]
    names = {path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.yaml")}
    return sorted(name for name in names if name.startswith(incomplete))


def _store_path(ctx: Context) -> Path | None:
    """Returns the file of the store that the command line names; None: a service or another database."""
    given = ctx.params
    if service_of(given.get("workdir"), given.get("store"), given.get("service")) is not None:
        return None
    url = given.get("store") or os.environ.get("HPO_PILOT_STORE")
    if url:
        return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
    return Path(given.get("workdir") or "hpo-pilot") / "hpo-pilot.db"


SERVICE_VARIABLE = "HPO_PILOT_SERVICE"
TOKEN_FILE_VARIABLE = "HPO_PILOT_TOKEN_FILE"  # noqa: S105  the name of a variable

#: Option and argument whose help text names the default.
option = functools.partial(typer.Option, show_default=False)
argument = functools.partial(typer.Argument, show_default=False)

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
    option("--ca", metavar="FILE", help="The authority of the service's certificate (or REQUESTS_CA_BUNDLE)."),
]
LogFormatOption = Annotated[
    str | None,
    option("--log-format", metavar="text|json", help="Format of the log on stderr (or HPO_PILOT_LOG_FORMAT)."),
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
    int | None, option("--slots", min=0, max=10_000, help="Jobs at once. Default: as many as the cores hold.")
]

#: The name of the embedded PanDA server. It equals `hpo_pilot.store.EMBEDDED`; importing that would load SQLAlchemy in
#: every command.
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
T = TypeVar("T")


def with_options(
    command: Callable[Concatenate[T, P], None],
    options: Mapping[str, tuple[Any, Any]],
    make: Callable[..., AbstractContextManager[T]],
) -> Callable[..., None]:
    """Makes a command of a function. The command takes `options`; `make` builds the first argument from them.

    Args:
        command: the function.
        options: type and default of each option, by name.
        make: makes the first argument from the options.
    """

    @functools.wraps(command)
    def completed(**given: Any) -> Any:
        with make(**{name: given.pop(name) for name in options}) as first:
            cast(Callable[..., None], command)(first, **given)

    first_name = next(iter(inspect.signature(command).parameters))
    command.__annotations__.pop(first_name, None)  # it is no option: its type need not be imported
    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()
    only = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, only, default=default, annotation=kind) for name, (kind, default) in options.items()
    ]
    parameters = [*(parameter.replace(kind=only) for parameter in own), *added]
    completed.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    completed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return completed


def options_of(make: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the options that the parameters of a function or class declare, for `with_options`."""
    parameters = inspect.signature(make, eval_str=True).parameters.values()
    return {parameter.name: (parameter.annotation, parameter.default) for parameter in parameters}


def on_client(command: Callable[Concatenate[SearchClient, P], None]) -> Callable[..., None]:
    """Makes a command of a function whose first argument is a client; the command has the options that choose it."""
    return with_options(command, options_of(client_of), client_of)


def client_of(
    *,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
    service: ServiceOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> SearchClient:
    """Returns the client that the options choose: a service if one is named, else the store of the work folder.

    HPO_PILOT_SERVICE is the default; ``--workdir`` and ``--store`` choose a local store instead.

    Raises:
        InputError: the options contradict each other, or the token file is missing.
    """
    url = service_of(workdir, store, service)
    if url is None:
        if token_file is not None or ca is not None:
            raise InputError(f"--token-file and --ca are for a service: name it with --service or {SERVICE_VARIABLE}")
        return SearchClient.local(workdir, store)
    from hpo_pilot.operations.remote import RemoteService

    if (token := token_of(token_file)) is None:
        raise InputError(
            f"the service {url} needs a token: name the file with your token by --token-file or {TOKEN_FILE_VARIABLE}"
        )
    return SearchClient(RemoteService(url, token, ca=ca, workdir=workdir))


def token_of(token_file: Path | None) -> Path | None:
    """Returns the file with the user's token, by default the one that HPO_PILOT_TOKEN_FILE names."""
    named = os.environ.get(TOKEN_FILE_VARIABLE)
    return token_file or (Path(named) if named else None)


def service_of(workdir: Path | None, store: str | None, service: str | None) -> str | None:
    """Returns the URL of the service that the options name; None: a local store.

    Raises:
        InputError: a service and a store are named.
    """
    if service:
        if store:
            raise InputError("--service and --store: a search is either behind a service or in a store; name one")
        return service
    if workdir is not None or store is not None:
        return None
    return os.environ.get(SERVICE_VARIABLE) or None
