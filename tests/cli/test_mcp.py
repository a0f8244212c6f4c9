"""`hpo-pilot mcp` with the client of the official SDK, at a work folder and at a service."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.operations.client import SearchClient
from tests.rest_api import add_results, start_api, write_search

sdk = pytest.importorskip("mcp", reason="the SDK is in the extra `test`")

Calls = list[tuple[str, dict[str, Any]]]
COMMAND = ("-m", "hpo_pilot.cli", "mcp")


def talk(options: list[str], calls: Calls) -> tuple[dict[str, Any], list[Any]]:
    """Makes calls over one connection; returns the tools by name, and the answers; mistakes are text."""
    from mcp.client.stdio import stdio_client

    async def connected() -> tuple[dict[str, Any], list[Any]]:
        server = sdk.StdioServerParameters(command=sys.executable, args=[*COMMAND, *options])
        async with stdio_client(server) as streams, sdk.ClientSession(*streams) as session:
            await session.initialize()
            tools = {tool["name"]: tool for tool in (await session.list_tools()).model_dump(by_alias=True)["tools"]}
            answers = []
            for name, arguments in calls:
                result = (await session.call_tool(name, arguments)).model_dump(by_alias=True)
                text = result["content"][0]["text"]
                answers.append(text if result["isError"] else json.loads(text))
            return tools, answers

    return asyncio.run(asyncio.wait_for(connected(), 120))


Place = Callable[[], tuple[list[str], SearchClient, Path]]


@pytest.fixture(params=["work folder", "service"])
def place(request: pytest.FixtureRequest, folder: Path) -> Any:
    """The options that choose a place, a client of its user alice, and its work folder."""
    if request.param == "work folder":
        work = request.getfixturevalue("work")
        with SearchClient.local(work) as client:
            yield ["--workdir", str(work)], client, work
        return
    with start_api(folder / "api") as api, api.client("alice") as client:
        yield ["--service", api.url, "--token-file", str(api.token_file("alice"))], client, api.workdir


def test_only_reading(place: Any, folder: Path) -> None:
    options, client, work = place
    client.submit(write_search(folder, "shown"))
    add_results(work, "shown")
    one = {"identity": "shown"}
    calls: Calls = [("searches", {}), ("status", one), ("best", one), ("trials", {**one, "after": 1, "limit": 1})]
    tools, answers = talk(options, [*calls, ("status", {"identity": "no"}), ("trial", one), ("pause", one)])
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools.values())
    assert tools["trial"]["inputSchema"]["required"] == ["identity", "number"]
    (found,), status, best, (trial,), *refused = answers
    assert (found["name"], status["name"], best["number"], trial["number"]) == ("shown", "shown", 2, 2)
    assert ["no search 'no'" in refused[0], "number: Field required" in refused[1], "--changes" in refused[2]] == [
        True
    ] * 3
    assert client.status("shown")["state"] == "running"


def test_changes_within_the_budget(place: Any, folder: Path) -> None:
    options, client, work = place
    first, second = (str(write_search(folder, name)) for name in ("first", "second"))
    segmented = str(write_search(folder, "many", segments=["a", "b"], budget={"trials": 3}))
    one = {"identity": "first"}
    calls: Calls = [("submit", {"file": segmented}), ("submit", {"file": first}), ("submit", {"file": second})]
    calls += [("annotate", {**one, "note": "by an assistant"}), ("extend", {**one, "changes": {"trials": 9}})]
    tools, answers = talk([*options, "--changes", "--trials", "5"], calls)
    assert "extend" not in tools
    assert "would add 6 trials" in answers[0]
    assert answers[1]["name"] == "first"
    assert "would add 4 trials, and this connection may add 1 more" in answers[2]
    assert answers[3]["note"] == "by an assistant"
    assert "no tool" in answers[4]
    add_results(work, "first")
    calls = [("pause", one), ("resume", one), ("retry", {**one, "trials": [1]}), ("retry", one), ("stop", one)]
    _, answers = talk([*options, "--changes", "--trials", "1"], calls)
    assert [answer["state"] for answer in answers[:2]] == ["paused", "running"]
    assert answers[2]["added"] == 1
    assert isinstance(answers[3], str)
    assert answers[4]["state"] in ("stopping", "stopped")
    assert {search["name"] for search in client.searches()} == {"first"}


def test_searches_of_others_can_only_be_read(work: Path, folder: Path) -> None:
    with start_api(folder / "api") as api, api.client("alice") as alice:
        alice.submit(write_search(folder, "hers"))
        for options in (
            ["--service", api.url, "--token-file", str(api.token_file("bob"))],
            ["--workdir", str(api.workdir)],
        ):
            _, (read, paused) = talk(
                [*options, "--changes"], [(name, {"identity": "hers"}) for name in ("status", "stop")]
            )
            assert read["owner"] == "alice"
            assert "only alice or an operator" in paused


def test_what_is_no_message(work: Path) -> None:
    sent = [
        "{",
        "[" * 100_000,
        "[]",
        '{"method": "notifications/x"}',
        '{"id": 1, "method": "prompts/list", "params": 3}',
    ]
    sent += [
        '{"id": 2, "method": "tools/call", "params": {"name": "status", "arguments": [1]}}',
        '{"id": 3, "method": "ping"}',
    ]
    command = [sys.executable, *COMMAND, "--workdir", str(work)]
    done = subprocess.run(command, input="\n".join(sent), capture_output=True, text=True, check=True, timeout=120)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    codes = [answer.get("error", {}).get("code") for answer in answers]
    assert codes == [-32700, -32700, -32700, -32601, None, None]
    assert answers[4]["result"]["isError"]
