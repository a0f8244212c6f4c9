"""The worker process with panda-client: reads calls as JSON lines, and writes their results as JSON lines.

panda-client fixes its URLs at import, prints, asks questions, and calls ``sys.exit`` on some failures: here it can do
all that. The worker also records the HTTP status or error of each call, which panda-client hides. Run by
`hpo_pilot.panda.client_process` as ``python -m hpo_pilot.panda.client_worker``; ends at end of input.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The functions of pandaclient.Client that may be called.
CALLS = frozenset(
    {
        *("insertTaskParams", "getTaskStatus", "getTaskParamsMap", "getUserJobMetadata", "get_job_descriptions"),
        *("get_task_details_json", "get_tasks_detailed_info_since", "getJobIDsJediTasksInTimeRange"),
        *("killJobs", "killTask", "putFile", "hello"),
    }
)

#: The types of queues that run users' jobs (panda-server 1.0.4, `pandajedi/jedibrokerage`).
_USERS_QUEUES = ("analysis", "unified")

#: Characters of an unusual answer in results.
_SHOWN = 300


class NotLoggedInError(Exception):
    """panda-client would now ask for a login, and nobody can answer."""


class Transport:
    """The HTTP status or error of the last call, which panda-client does not return."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}

    def watch(self, client_class: Any, errors: type[Exception]) -> None:
        """Records how each request of httpx's client ends.

        Args:
            client_class: httpx's client class; this replaces its `request`.
            errors: its errors for requests without an answer.
        """
        request = client_class.request

        def noting(this: Any, *arguments: Any, **options: Any) -> Any:
            try:
                answer = request(this, *arguments, **options)
            except errors as error:
                self.last = {"error": type(error).__name__, "text": str(error)[:_SHOWN]}
                raise
            self.last = {"status": answer.status_code}
            if answer.status_code != 200:
                self.last["text"] = re.sub(r"<[^>]*>|\s+", " ", answer.text[: 4 * _SHOWN]).strip()[:_SHOWN]
            return answer

        client_class.request = noting


def main() -> None:
    """Serves calls until the other end closes."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    calls = os.fdopen(os.dup(0), "r", buffering=1)
    # panda-client's output must not mix with the answers, and its questions must not read the calls.
    os.dup2(2, 1)
    with open(os.devnull) as nothing:  # noqa: PTH123 - a device, for its descriptor
        os.dup2(nothing.fileno(), 0)
    import httpx  # noqa: PLC0415 - after stdin and stdout are safe

    try:
        from pandaclient import Client, openidc_utils  # noqa: PLC0415
    except OSError as error:
        # It looks up its file cache at import. The next call starts a new process, which may succeed.
        text = f"panda-client finds no PANDACACHE_URL host: {error}"
        calls.readline()
        failed = {"error": text, "transport": {"error": "ConnectError", "text": text}, "ended": True}
        answers.write(json.dumps(failed) + "\n")
        return
    openidc_utils.OpenIdConnect_Utils.get_device_code = _no_login
    transport = Transport()
    transport.watch(httpx.Client, httpx.HTTPError)
    for line in calls:
        answer = _call(Client, json.loads(line), transport)
        answers.write(json.dumps(answer, default=str) + "\n")


def _call(client: Any, request: dict[str, Any], transport: Transport) -> dict[str, Any]:
    name = request["call"]
    transport.last = {}
    try:
        function = _function(client, name)
        if function is None:
            return {"error": f"{name} is not one of panda-client's calls that we use"}
        result = function(*request["args"])
        if not transport.last and name in CALLS and isinstance(result, tuple) and result[0] != 0:
            transport.last = {
                "error": "ConnectError",
                "text": f"panda-client sent nothing: {result[1] or 'see its log'}",
            }
        return {"result": result, "transport": transport.last}
    except NotLoggedInError as error:
        return {"login": str(error)}
    except SystemExit as error:
        return {"error": f"panda-client gave up with status {error.code}: see the log of this process"}
    except Exception as error:  # noqa: BLE001 - whatever panda-client raises is an answer for the other end
        return {"error": f"{type(error).__name__}: {error}", "transport": transport.last}


def _function(client: Any, name: str) -> Callable[..., Any] | None:
    ours: dict[str, Callable[..., Any]] = {
        "putFile": put_file,
        "registeredFile": registered_file,
        "touchFile": touch_file,
        "sourceURL": source_url,
        "nickname": nickname,
        "userAttributes": lambda: dict(_read("system/get_user_attributes", {})),  # panda-client has no such function
        "queues": queues,
    }
    if name in ours or name not in CALLS:
        return ours.get(name)
    found: Callable[..., Any] = getattr(client, name)
    return found


def put_file(path: str, name: str, use_cache_server: bool) -> Any:
    """Uploads a file under another name.

    panda-client sends the given path as the file's name, panda-server 1.0.4 registers that, and JEDI looks for the
    plain name in the task's parameters. So this passes the plain name of a link, in a folder of its own.
    """
    from pandaclient import Client  # noqa: PLC0415

    source = Path(path).absolute()
    with tempfile.TemporaryDirectory(prefix="hpo-pilot-") as folder, contextlib.chdir(folder):
        Path(name).symlink_to(source)
        return Client.putFile(name, False, use_cache_server, False, 1)


def registered_file(path: str) -> str:
    """Returns the name under which the user has registered a gzip file's content; empty: none, or too long ago.

    Raises:
        ValueError: the server cannot tell now.
    """
    with Path(path).open("rb") as file:
        size = file.seek(-8, os.SEEK_END) + 8
        checksum = int.from_bytes(file.read(4), "little")
    # The question of putFile(reuseSandbox=True), which would upload a missing file at once.
    status, answer = _post("file_server/validate_cache_file", {"file_size": size, "checksum": checksum})
    message = str(answer.get("message") or "") if isinstance(answer, dict) else str(answer)
    if status == 0 and message.startswith("FOUND:"):
        return message.rsplit(":", 1)[1]
    if status != 0 or message != "NOTFOUND":
        raise ValueError(f"the server does not say whether it has {path}: {message}")
    return ""


def touch_file(name: str, use_cache_server: bool) -> bool:
    """Extends the life of a file in the server's cache; False: it is gone. panda-client has no such function."""
    status, answer = _post("file_server/touch_cache_file", {"file_name": name}, use_cache_server)
    return status == 0 and isinstance(answer, dict) and answer.get("success") is True


def _post(path: str, parameters: dict[str, Any], use_cache_server: bool = False) -> tuple[int, Any]:
    """Returns status and answer of a call, with panda-client's credentials, TLS and host, as for its own calls."""
    from pandaclient import Client  # noqa: PLC0415

    base = Client.cache_base_path_ssl if use_cache_server else Client.server_base_path_ssl
    status, answer = Client._HttpClient().post(f"{base}/{path}", parameters, json_out=True)
    return status, answer


def source_url(use_cache_server: bool) -> str:
    """Returns scheme://host:port of the host with this process's uploads: the cache may have several hosts."""
    from pandaclient import Client  # noqa: PLC0415

    url = Client.baseURLCSRVSSL if use_cache_server else Client.baseURLSSL
    found = re.match(r"https?://[^/]+", url)
    return found[0] if found else url


def nickname() -> str:
    """Returns the user's name for task names, as panda-client finds it: from token, PANDA_NICKNAME or proxy."""
    from pandaclient import PsubUtils  # noqa: PLC0415

    name = None
    # panda-client may not understand the token; the variable may still have the name.
    with contextlib.suppress(IndexError, KeyError, ValueError, TypeError):
        name = PsubUtils.getNickname()
    return str(name or os.environ.get("PANDA_NICKNAME") or "")


def queues() -> dict[str, str]:
    """Returns the states of the queues that run users' jobs, by name. panda-client has no such function."""
    found = _read("metaconfig/get_site_specs", {"type": "all"})
    return {name: str(spec.get("status")) for name, spec in found.items() if spec.get("type") in _USERS_QUEUES}


def _read(path: str, parameters: dict[str, str]) -> Any:
    """Returns the data of a reading call.

    Raises:
        ValueError: the server gives no data.
    """
    from pandaclient import Client  # noqa: PLC0415

    status, answer = Client._HttpClient().get(f"{Client.server_base_path_ssl}/{path}", parameters, json_out=True)
    if status != 0 or not isinstance(answer, dict) or not answer.get("success"):
        raise ValueError(f"{path}: {answer.get('message') if isinstance(answer, dict) else answer}")
    return answer["data"]


def _no_login(*_arguments: Any) -> None:
    raise NotLoggedInError("there is no valid token, and no user here to log in")


if __name__ == "__main__":
    main()
