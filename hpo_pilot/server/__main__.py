"""The server's command line: ``python -m hpo_pilot.server``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.logs import FORMATS, configure_logging
from hpo_pilot.server.app import Server
from hpo_pilot.server.database import Database
from hpo_pilot.server.listening import add_security, certificate_of, listen, serve, tokens_of
from hpo_pilot.server.state import ServerState


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server until SIGTERM, SIGINT or the end of its lifeline.

    Returns:
        0; 2: wrong options or files; 3: port or database taken, try again.
    """
    options = _parser().parse_args(arguments)
    try:
        configure_logging("server", form=options.log_format, level=logging.WARNING)
        _run(options)
    except HpoPilotError as error:
        print(f"hpo-pilot server: {error}", file=sys.stderr)  # noqa: T201  # a command's one line of error
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hpo_pilot.server", description="The embedded PanDA server.")
    add = parser.add_argument
    add("--database", required=True, type=Path, help="SQLite file; made if it is missing")
    add("--files", required=True, type=Path, help="folder of sandboxes and outputs")
    add("--tokens", required=True, type=Path, help="token folder: public keys, list of revoked tokens")
    add("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    add("--port", type=int, default=0, help="0 (the default): any free port, which the ready line names")
    add("--heartbeat-timeout", type=float, default=60.0, help="seconds of silence that make a job lost (default: 60)")
    add(
        "--retention-days",
        type=float,
        default=365.0,
        help="days that tasks which are over, their outputs and unused sandboxes are kept (default: %(default)g; "
        "0: for ever)",
    )
    add("--lifeline-fd", type=int, help="an inherited descriptor at whose end of file the server ends")
    add("--log-format", choices=FORMATS, help="of the log (default: HPO_PILOT_LOG_FORMAT, else text)")
    add("--queues", type=Path, help="JSON file of the queues, read again when it changes (default: any name is one)")
    add_security(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    if not options.heartbeat_timeout > 0:
        raise InputError(f"--heartbeat-timeout must be above 0 seconds, not {options.heartbeat_timeout}")
    if not 0 <= options.port <= 65535:
        raise InputError(f"--port must be between 0 and 65535, not {options.port}")
    if not 0 <= options.retention_days < float("inf"):
        raise InputError(f"--retention-days must be 0 or more days, not {options.retention_days}")
    os.umask(0o077)
    certificate = certificate_of(options)
    with ExitStack() as stack:
        tokens = tokens_of(options, stack)
        # Open the database first: this waits for a server that is just ending, so the port of that server is free.
        database = stack.enter_context(closing(Database(options.database)))
        secure = certificate is not None or options.insecure_behind_proxy
        listener = stack.enter_context(closing(listen(options.host, options.port, secure=secure)))
        days, timeout = options.retention_days, options.heartbeat_timeout
        state = ServerState(database, options.files, tokens, timeout, days, options.queues)
        serve(Server(state), listener, options.lifeline_fd, certificate)


if __name__ == "__main__":
    sys.exit(main())
