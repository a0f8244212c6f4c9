"""The server's command line: ``python -m hpo_pilot.server``."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.logs import FORMATS, configure_logging
from hpo_pilot.server import DATABASE_VARIABLE
from hpo_pilot.server.app import Server
from hpo_pilot.server.database import Database
from hpo_pilot.server.helpers import Helpers
from hpo_pilot.server.listening import add_security, certificate_of, listen, serve, tokens_of
from hpo_pilot.server.state import ServerState


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server until SIGTERM, SIGINT or the end of its lifeline.

    Returns:
        0; 2: wrong options or files; 3: port or database taken, or the database does not work now: try again.
    """
    options = _parser().parse_args(arguments)
    try:
        configure_logging("server", form=options.log_format, level=logging.WARNING)
        _run(options, sys.argv[1:] if arguments is None else arguments)
    except HpoPilotError as error:
        print(f"hpo-pilot server: {error}", file=sys.stderr)  # noqa: T201  # a command's one line of error
        return error.exit_code
    except DBAPIError as error:  # while it starts, as on a full disk; later each call answers for itself
        print(f"hpo-pilot server: its database does not work now: {error.orig}; try again", file=sys.stderr)  # noqa: T201
        return TryAgainError.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hpo_pilot.server", description="The embedded PanDA server.")
    add = parser.add_argument
    add("--database", help=f"SQLite file, made if it is missing, or a URL of PostgreSQL (default: {DATABASE_VARIABLE})")
    add("--files", required=True, type=Path, help="folder of sandboxes and outputs")
    add("--tokens", required=True, type=Path, help="token folder: public keys, list of revoked tokens")
    add("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    add("--processes", type=int, default=1, help="server processes at this port; more than one needs PostgreSQL")
    add("--listener-fd", type=int, help=argparse.SUPPRESS)  # a further process: the inherited socket that listens
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


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    if not options.heartbeat_timeout > 0:
        raise InputError(f"--heartbeat-timeout must be above 0 seconds, not {options.heartbeat_timeout}")
    if not 0 <= options.port <= 65535:
        raise InputError(f"--port must be between 0 and 65535, not {options.port}")
    if not 0 <= options.retention_days < float("inf"):
        raise InputError(f"--retention-days must be 0 or more days, not {options.retention_days}")
    place = options.database or os.environ.get(DATABASE_VARIABLE)
    if not place:
        raise InputError(f"--database is missing: a SQLite file, or a URL of PostgreSQL; or set {DATABASE_VARIABLE}")
    if options.processes < 1:
        raise InputError(f"--processes must be 1 or more, not {options.processes}")
    if options.processes > 1 and "://" not in place:
        raise InputError(
            f"--processes {options.processes} needs PostgreSQL: a SQLite file has one writer; see --database"
        )
    os.umask(0o077)
    certificate = certificate_of(options)
    with ExitStack() as stack:
        tokens = tokens_of(options, stack)
        # Open the database first: this waits for a server that is just ending, so the port of that server is free.
        further, count = options.listener_fd is not None, options.processes
        database = stack.enter_context(closing(Database(place, alone=not further)))
        secure = certificate is not None or options.insecure_behind_proxy
        if further:
            listeners = [socket.socket(fileno=options.listener_fd)]
        else:
            listeners = listen(options.host, options.port, secure=secure, count=count)
        for listener in listeners:
            stack.enter_context(closing(listener))
        days, timeout = options.retention_days, options.heartbeat_timeout
        state = ServerState(database, options.files, tokens, timeout, days, options.queues, further=further)
        helpers = Helpers([sys.executable, "-m", "hpo_pilot.server", *arguments, "--processes", "1"], listeners[1:])
        serve(Server(state, helpers), listeners[0], options.lifeline_fd, certificate)


if __name__ == "__main__":
    sys.exit(main())
