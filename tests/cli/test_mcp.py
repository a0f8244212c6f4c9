"""`hpo-pilot mcp` with the client of the official SDK, at a work folder and at a service."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.operations.client import SearchClient
from tests.rest_api import add_results, start_api, write_search

sdk = pytest.importorskip("mcp", reason="the SDK is in the extra `test`")

COMMAND = ("-m", "hpo_pilot.cli", "mcp")


def talk(options: list[str], *calls: tuple[str, dict[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    """Makes calls over one connection; returns the tools by name, and the answers; mistakes are text."""
    from mcp.client.stdio import stdio_client

    async def connected() -> tuple[dict[str, Any], list[Any]]:
        server = sdk.StdioServerParameters(command=sys.executable, args=[*COMMAND, *options])
        async with stdio_client(server) as streams, sdk.ClientSession(*streams) as session:
            await session.initialize()
            tools = {tool["name"]: tool for tool in (await session.list_tools()).model_dump(by_alias=True)["tools"]}
            results = [(await session.call_tool(*call)).model_dump(by_alias=True) for call in calls]
            texts = [(result["content"][0]["text"], result["isError"]) for result in results]
            return tools, [text if is_error else json.loads(text) for text, is_error in texts]

    return asyncio.run(asyncio.wait_for(connected(), 120))


@pytest.fixture(params=["work folder", "service"])
def place(request: pytest.FixtureRequest, folder: Path) -> Any:
    """The options that choose a place, a client of its user alice, and its work folder."""
    if request.param == "work folder":
        work = request.getfixturevalue("work")
        yield ["--workdir", str(work)], request.getfixturevalue("client"), work
        return
    with start_api(folder / "api") as api, api.client("alice") as client:
        yield ["--service", api.url, "--token-file", str(api.token_file("alice"))], client, api.workdir


def test_only_reading(place: tuple[list[str], SearchClient, Path], folder: Path) -> None:
    options, client, work = place
    client.submit(write_search(folder, "shown"))
    add_results(work, "shown")
    one, page = {"identity": "shown"}, {"identity": "shown", "after": 1, "limit": 1}
    good = [("searches", {}), ("status", one), ("best", one), ("trials", page)]
    tools, answers = talk(options, *good, ("status", {"identity": "no"}), ("trial", one), ("pause", one))
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools.values())
    assert tools["trial"]["inputSchema"]["required"] == ["identity", "number"]
    (found,), status, best, (trial,), *refused = answers
    assert (found["name"], status["name"], best["number"], trial["number"]) == ("shown", "shown", 2, 2)
    for text, remedy in zip(refused, ("no search 'no'", "number: Field required", "--changes"), strict=True):
        assert remedy in text
    assert client.status("shown")["state"] == "running"


def test_changes_within_the_budget(place: tuple[list[str], SearchClient, Path], folder: Path) -> None:
    options, client, work = place
    files = [{"file": str(write_search(folder, name))} for name in ("first", "second")]
    segmented = {"file": str(write_search(folder, "many", segments=["a", "b"], budget={"trials": 3}))}
    one, note = {"identity": "first"}, {"identity": "first", "note": "by an assistant"}
    submitted = [("submit", file) for file in (segmented, *files)]
    added = ("extend", {**one, "changes": {"trials": 9}})
    _, answers = talk([*options, "--changes", "--trials", "5"], *submitted, ("annotate", note), added)
    assert "would add 6 trials" in answers[0]
    assert "would add 4 trials, and this connection may add 1 more" in answers[2]
    assert (answers[1]["name"], answers[3]["note"]) == ("first", "by an assistant")
    assert "no tool" in answers[4]
    add_results(work, "first")
    calls = [("pause", one), ("resume", one), ("retry", {**one, "trials": [1]}), ("retry", one), ("stop", one)]
    _, (paused, resumed, retried, refused, stopped) = talk([*options, "--changes", "--trials", "1"], *calls)
    assert (paused["state"], resumed["state"], retried["added"]) == ("paused", "running", 1)
    assert "may add 0 more" in refused
    assert stopped["state"] in ("stopping", "stopped")
    assert {search["name"] for search in client.searches()} == {"first"}


def test_searches_of_others_can_only_be_read(folder: Path) -> None:
    with start_api(folder / "api") as api, api.client("alice") as alice:
        alice.submit(write_search(folder, "hers"))
        service = ["--service", api.url, "--token-file", str(api.token_file("bob"))]
        for options in (service, ["--workdir", str(api.workdir)]):
            calls = [(name, {"identity": "hers"}) for name in ("status", "stop")]
            _, (read, stopped) = talk([*options, "--changes"], *calls)
            assert read["owner"] == "alice"
            assert "only alice or an operator" in stopped


def test_what_is_no_message(work: Path) -> None:
    sent = ["{", "[" * 100_000, "[]", '{"method": "notifications/x"}', '{"id": 1, "method": "x/y", "params": 3}']
    wrong = {"id": 2, "method": "tools/call", "params": {"name": "status", "arguments": [1]}}
    bug = {**wrong, "params": {"name": "status", "arguments": {"identity": "\ud800"}}}
    sent += [json.dumps(wrong), json.dumps(bug), '{"id": 3, "method": "ping"}']
    command = [sys.executable, *COMMAND, "--workdir", str(work)]
    done = subprocess.run(command, input="\n".join(sent), capture_output=True, text=True, check=True, timeout=600)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    codes = [answer.get("error", {}).get("code") for answer in answers]
    assert codes == [-32700, -32700, -32700, -32601, None, None, None]
    assert answers[4]["result"]["isError"] and answers[5]["result"]["isError"]
