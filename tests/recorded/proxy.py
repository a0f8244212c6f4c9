"""A proxy in front of a server that writes down each request and its answer, in the order of the answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests

#: Headers that the server acts on; the others are HTTP's own business, or secrets.
_KEPT = ("Accept", "Content-Type", "Content-Encoding", "Origin", "User-Agent", "X-HPO-Pilot-Key")
_OWN = {"host", "connection", "transfer-encoding", "content-length", "accept-encoding"}


class RecordingProxy:
    """Listens on this machine until it is closed.

    Attributes:
        url: where clients find it.
        exchanges: one per answer; bodies are latin-1 text.
    """

    def __init__(self, server: str, roles: Mapping[str, str]) -> None:
        """Starts it.

        Args:
            server: URL that requests go on to.
            roles: whose token it is, by token.
        """
        self.exchanges: list[dict[str, Any]] = []
        lock, exchanges = threading.Lock(), self.exchanges

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def forward(self) -> None:
                body = self._body()
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
                headers["Accept-Encoding"] = "identity"
                answer = requests.request(
                    self.command, server + self.path, data=body, headers=headers, timeout=600, allow_redirects=False
                )
                if any(word in self.path for word in ("acquire_jobs", "getJob", "/changes")):
                    time.sleep(0.1)  # it was waited for: the call that it follows from comes first
                with lock:
                    exchanges.append(
                        {
                            "client": self.headers.get("User-Agent", ""),
                            "time": time.time(),
                            "method": self.command,
                            "path": self.path,
                            "headers": {name: self.headers[name] for name in _KEPT if name in self.headers},
                            "role": roles.get(self.headers.get("Authorization", "").rpartition(" ")[2]),
                            "body": body.decode("latin-1"),
                            "status": answer.status_code,
                            "type": answer.headers.get("Content-Type", ""),
                            "answer": answer.content.decode("latin-1"),
                        }
                    )
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in _OWN | {"date", "server"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                if self.command != "HEAD":
                    with contextlib.suppress(BrokenPipeError):  # whoever asked has ended
                        self.wfile.write(answer.content)

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = forward  # names of http.server

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
