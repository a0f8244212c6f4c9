"""`python -m tests.real.elsewhere SECONDS FROM TO … -- ARGUMENTS`: the command hpo-pilot as on another host.

Its clock is wrong by SECONDS, and connections to its own address FROM (host:port) go to TO (host:port, or a socket's
path). `forward` does the latter alone.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time


def forward(here: str, there: str) -> None:
    """Passes connections to an address on to another one, in threads, until this process ends."""
    host, _, port = here.rpartition(":")
    listener = socket.create_server((host, int(port)))
    threading.Thread(target=_accept, args=(listener, there), daemon=True).start()


def _accept(listener: socket.socket, there: str) -> None:
    while True:
        one = listener.accept()[0]
        with contextlib.suppress(OSError):
            if there.startswith("/"):
                other = socket.socket(socket.AF_UNIX)
                other.connect(there)
            else:
                host, _, port = there.rpartition(":")
                other = socket.create_connection((host, int(port)), 10)
                other.settimeout(None)
            for pair in ((one, other), (other, one)):
                threading.Thread(target=_pass_on, args=pair, daemon=True).start()
            continue
        one.close()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := one.recv(65536):
            other.sendall(part)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def main() -> None:
    """Runs the command."""
    mark = sys.argv.index("--")
    wrong, right = float(sys.argv[1]), time.time
    time.time = lambda: right() + wrong
    for here, there in zip(sys.argv[2:mark:2], sys.argv[3:mark:2], strict=True):
        forward(here, there)
    sys.argv[1:] = sys.argv[mark + 1 :]
    from hpo_pilot.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
