"""The command line of API and pages: ``python -m hpo_pilot.web``; `hpo-pilot serve` and `monitor` run it."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.logs import FORMATS, configure_logging
from hpo_pilot.panda.sandbox import SIZE_LIMIT
from hpo_pilot.server.listening import add_security, certificate_of, listen, serve, tokens_of
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import Store
from hpo_pilot.web.api_context import UNPACKED_LIMIT
from hpo_pilot.web.app import Api
from hpo_pilot.web.sessions import Sessions


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the API until SIGTERM, SIGINT or the end of its lifeline.

    Returns:
        0; 2: wrong options or files; 3: port or store taken, try again.
    """
    options = _parser().parse_args(arguments)
    try:
        # INFO logs the user and path of every call.
        levels = {"hpo_pilot.web": logging.INFO}
        configure_logging("api", form=options.log_format, level=logging.WARNING, levels=levels)
        _run(options)
    except HpoPilotError as error:
        print(f"hpo-pilot API: {error}", file=sys.stderr)  # noqa: T201  # a command's one line of error
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hpo_pilot.web",
        description="REST API and web pages of a work folder. HPO_PILOT_STORE names another store than its own.",
    )
    add = parser.add_argument
    add("--workdir", required=True, type=Path, help="the service's work folder")
    add("--tokens", required=True, type=Path, help="token folder: public keys, list of revoked tokens")
    add("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    add("--port", type=int, default=0, help="0 (the default): any free port, which the ready line names")
    add("--upload-mb", type=int, default=SIZE_LIMIT >> 20, help="MB that a payload may have (default: PanDA's limit)")
    add(
        "--unpacked-mb",
        type=int,
        default=os.environ.get("HPO_PILOT_UNPACKED_MB", str(UNPACKED_LIMIT >> 20)),
        help=f"and its files (default: HPO_PILOT_UNPACKED_MB, else {UNPACKED_LIMIT >> 20})",
    )
    add("--lifeline-fd", type=int, help="an inherited descriptor at whose end of file the API ends")
    add(
        "--run",
        default="",
        help="names this run of the pages; without TLS sessions end with it (default: a random one)",
    )
    add("--log-format", choices=FORMATS, help="of the log (default: HPO_PILOT_LOG_FORMAT, else text)")
    add_security(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    if not 0 <= options.port <= 65535:
        raise InputError(f"--port must be between 0 and 65535, not {options.port}")
    if not 0 < options.upload_mb <= SIZE_LIMIT >> 20:
        raise InputError(f"--upload-mb must be between 1 and {SIZE_LIMIT >> 20}, not {options.upload_mb}")
    if not options.unpacked_mb > 0:
        raise InputError(f"--unpacked-mb must be above 0, not {options.unpacked_mb}")
    os.umask(0o077)
    workdir = WorkDir.make(options.workdir)
    certificate = certificate_of(options)
    with ExitStack() as stack:
        gate = tokens_of(options, stack)
        store = stack.enter_context(closing(Store.open(workdir.store_url())))
        secure = certificate is not None or options.insecure_behind_proxy
        listener = stack.enter_context(closing(listen(options.host, options.port, secure=secure)[0]))
        api = Api(
            store,
            workdir,
            gate,
            options.upload_mb << 20,
            options.unpacked_mb << 20,
            # With TLS, another user on the same port has no certificate, so browsers do not send it the cookies.
            sessions=Sessions(options.tokens, run="" if secure else options.run or secrets.token_hex(16)),
            behind_proxy=options.insecure_behind_proxy,
            # With TLS, pages are for other users as well, who have no access to the work folder.
            place=None if secure else workdir.place(),
        )
        serve(api, listener, options.lifeline_fd, certificate)


if __name__ == "__main__":
    sys.exit(main())
