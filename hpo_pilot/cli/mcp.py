"""The command `mcp`: searches for an assistant program, by the Model Context Protocol on standard input and output.

JSON-RPC, one message a line: https://modelcontextprotocol.io/specification/2025-11-25 (transport stdio, tools).
"""

from __future__ import annotations

import inspect
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

import typer

from hpo_pilot import __version__
from hpo_pilot.cli.options import MOST_NUMBER, on_client, option
from hpo_pilot.cli.output import advised
from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.here import Here, User

_READING = ("validate", "searches", "status", "trials", "trial", "intermediate", "best", "recommend", "events")
#: None of them raises the budget of a search, except `retry`, by the trials that it repeats.
_CHANGING = ("submit", "pause", "resume", "stop", "retry", "annotate")

log = logging.getLogger(__name__)

#: Most trials in one answer; of searches and events the newest.
_MOST = 100
_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")


class Tools:
    """Methods of a client as tools, made from their signatures and docstrings."""

    def __init__(self, client: SearchClient, names: tuple[str, ...], trials: int) -> None:
        """Calls nothing yet.

        Args:
            client: the client.
            names: its methods.
            trials: number of trials that all calls together may add.
        """
        self.client, self.left = client, trials
        self.functions = {name: getattr(client, name) for name in names}
        self.models = {name: _model(function) for name, function in self.functions.items()}

    def descriptions(self) -> list[dict[str, Any]]:
        """Returns the tools as the protocol lists them."""
        return [
            {
                "name": name,
                "description": inspect.getdoc(function),
                "inputSchema": self.models[name].model_json_schema(),
                "annotations": {"readOnlyHint": name in _READING, "destructiveHint": name == "stop"},
            }
            for name, function in self.functions.items()
        ]

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Calls a tool; errors of the call are a part of its result."""
        from pydantic import ValidationError

        try:
            text, failed = json.dumps(self._result(name, arguments)), False
        except ValidationError as error:
            mistakes = (f"{name}: {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            text, failed = "\n".join(mistakes), True
        except HpoPilotError as error:
            text, failed = advised(str(error)), True
        except Exception as error:  # the connection, with its other tools, goes on
            log.exception("%s", name)
            text, failed = f"{name} failed: {error!r}", True
        return {"content": [{"type": "text", "text": text}], "isError": failed}

    def _result(self, name: str, arguments: dict[str, Any]) -> Any:
        if name not in self.functions:
            hint = ": changes need `hpo-pilot mcp --changes`" if name in _CHANGING else ""
            raise InputError(f"there is no tool {name!r} here{hint}")
        given = self.models[name].model_validate(arguments)
        values = {field: getattr(given, field) for field in type(given).model_fields}
        for value in values.values():
            if any(
                abs(each) > MOST_NUMBER for each in (value if isinstance(value, list) else [value]) if type(each) is int
            ):
                raise InputError(f"{name}: no number here is beyond {MOST_NUMBER}")
        added = self._added(name, values)
        if added > self.left:
            message = f"{name} would add {added} trials, and this connection may add {self.left} more"
            raise InputError(f"{message}: only its user can allow more, by `hpo-pilot mcp --trials`")
        result = self.functions[name](**values)
        self.left -= result["added"] if name == "retry" else added
        if isinstance(result, Iterator):
            return list(itertools.islice(result, _MOST))
        return result[-_MOST:] if isinstance(result, list) else result

    def _added(self, name: str, values: dict[str, Any]) -> int:
        """Returns the largest number of trials that a call adds."""
        if name == "submit" and (search := self.client.validate(values["file"])["search"]) is not None:
            confirmed = search["confirm"]["top"] * search["confirm"]["repeats"]
            return int(search["budget"]["trials"] + confirmed) * len(search["segments"] or [None])
        if name == "retry":
            failed = self.client.status(values["identity"])["trials"].get("failed", 0)
            return failed if values["trials"] is None else len(values["trials"])
        return 0


def _model(function: Callable[..., Any]) -> Any:
    """Returns the pydantic model of a method's arguments."""
    from pydantic import ConfigDict, create_model

    kinds, fields = get_type_hints(function), dict[str, Any]()
    for name, parameter in inspect.signature(function).parameters.items():
        default = False if name == "logs" else ... if parameter.default is parameter.empty else parameter.default
        if name not in ("key", "server"):
            fields[name] = (kinds[name], default)
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def answer(tools: Tools, message: Any) -> dict[str, Any] | None:
    """Returns the answer to a message; None: it needs none."""
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return _reply(None, error={"code": -32700, "message": "is no JSON-RPC request on one line"})
    if "id" not in message:
        return None
    method, params = message["method"], message.get("params")
    params = params if isinstance(params, dict) else {}
    result: dict[str, Any] = {}
    if method == "initialize":
        wanted = params.get("protocolVersion")
        about = f"Hyper-parameter searches. An answer has at most {_MOST} members: `after` and `page` have the others. "
        changes = f"All calls together may add {tools.left} trials; no budget can be extended."
        result = {
            "protocolVersion": wanted if wanted in _VERSIONS else _VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hpo-pilot", "version": __version__},
            "instructions": about + (changes if "submit" in tools.functions else "Nothing can be changed."),
        }
    elif method == "tools/list":
        result = {"tools": tools.descriptions()}
    elif method == "tools/call":
        result = tools.call(str(params.get("name")), params.get("arguments") or {})
    elif method != "ping":
        return _reply(message["id"], error={"code": -32601, "message": f"there is no method {method}"})
    return _reply(message["id"], result=result)


def _reply(identity: Any, **content: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, **content}


@on_client
def mcp(
    client: SearchClient,
    changes: Annotated[
        bool, typer.Option("--changes", help="Also submit, pause, resume, stop, retry and annotate your searches.")
    ] = False,
    trials: Annotated[
        int, option("--trials", min=0, max=1_000_000, help="Trials that all submitted searches and retries may add.")
    ] = 64,
) -> None:
    """Serve an assistant program over standard input and output (Model Context Protocol); reads only, by default."""
    if isinstance(client.at, Here):  # as at a service: others' searches can only be read
        client = SearchClient.local(client.at.workdir, client.at.url, user=User(client.at.user.name))
    tools = Tools(client, (*_READING, *(_CHANGING if changes else ())), trials)
    # Only messages may come and go there, whatever the processes do that a call starts.
    source, target = os.fdopen(os.dup(0), encoding="utf-8", errors="replace"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for line in source:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if (reply := answer(tools, message)) is not None:
            print(json.dumps(reply), file=target, flush=True)
