"""A web server for inputs, with ways to misbehave."""

from __future__ import annotations

import http.server
import threading
from typing import Any


class Web:
    """Files by path, and ways to misbehave."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.trouble: dict[str, list[str]] = {}
        self.etag = '"1"'
        self.gate = threading.Event()
        self.gate.set()
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                web.answer(self)

            def log_message(self, *_: Any) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.asked.append(path)
        self.headers.append(dict(request.headers.items()))
        trouble = self.trouble.get(path) or [""]
        now = trouble.pop(0) if len(trouble) > 1 else trouble[0]
        if now.isdigit():
            request.send_error(int(now))
        elif now.startswith("to "):
            request.send_response(302)
            request.send_header("Location", now[3:])
            request.send_header("Content-Length", "0")
            request.end_headers()
        elif path not in self.files:
            request.send_error(404)
        elif request.headers.get("If-None-Match") == self.etag:
            request.send_response(304)
            request.end_headers()
        else:
            content = self.files[path]
            request.send_response(200)
            request.send_header("ETag", self.etag)
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            half = len(content) // 2
            request.wfile.write(content[:half])
            request.wfile.flush()
            self.gate.wait(600)
            if now == "break":
                request.close_connection = True
                return
            request.wfile.write(content[half:])
