"""`python -m hpo_pilot.pilot`: one pilot, started by hand, by the service, or by a batch job."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.logs import FORMATS, configure_logging
from hpo_pilot.pilot.pilot import Pilot
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.transformation.container import RUNTIMES

log = logging.getLogger("hpo_pilot.pilot")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a pilot; returns its exit status."""
    options = vars(parser().parse_args(arguments))
    level = logging.DEBUG if options.pop("debug") else logging.INFO
    try:
        # ERROR, because our client logs itself that the server does not answer.
        levels = {"urllib3": logging.ERROR}
        configure_logging("pilot", form=options.pop("log_format", None), level=level, levels=levels)
        if options.pop("wait") and not os.read(options["lifeline_fd"], 1):
            return 0  # the parent has ended
        pilot = Pilot(PilotSettings(**options))
        pilot.handle_signals()
        return pilot.run()
    except HpoPilotError as error:
        log.error("%s", error)
        return error.exit_code


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the pilot's command line."""
    parser = argparse.ArgumentParser(
        prog="hpo-pilot pilot",
        description="Pulls jobs of one queue from a PanDA server and runs them.",
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("--server", required=True, help="base URL of the PanDA server")
    add("--queue", required=True, help="PanDA queue to serve")
    add("--slots", type=int, default=1, help="jobs side by side (default: 1)")
    add("--cores", type=int, help="cores for all jobs together (default: the machine's, at least one per slot)")
    add("--gpus", help="GPUs for jobs: all, a number, or a list such as 0,2 (default: all, for jobs that ask for one)")
    add("--token-file", type=Path, help="file with the pilot's bearer token; read again when it changes")
    add(
        "--proxy",
        type=Path,
        help="grid proxy, for a server that takes proxies (default without --token-file: X509_USER_PROXY, else the "
        "file of voms-proxy-init)",
    )
    add(
        "--ca",
        type=Path,
        help="PEM file or hashed folder of the server's certificate authorities (default: the system's; with a proxy "
        "X509_CERT_DIR)",
    )
    add("--workdir", type=Path, default=Path("hpo-pilot-work"), help="job folders and caches; nodes must share it")
    add("--checkpoints", type=Path, help="folder that keeps checkpoints between attempts (default: in the work folder)")
    add(
        "--checkpoint-mb",
        type=int,
        help="largest packed checkpoint that the server gets, in MB (default: 500; 0: none)",
    )
    add("--checkpoint-every", type=float, help="seconds between uploads of a running job's checkpoint (default: 300)")
    add("--storage", type=Path, help="outputs and logs, if the server stores none (default: in the work folder)")
    add("--worker-id", type=int, help="number of this pilot at the server, together with --harvester-id (default: 1)")
    add("--harvester-id", help="see --worker-id (default: made from the host and the work folder)")
    add("--vo", help="virtual organisation (default: hpo_pilot)")
    add("--heartbeat", type=float, help="seconds between reports on a running job (default: 20)")
    add("--drain-seconds", type=float, dest="drain", help="seconds for running jobs to end after SIGTERM (default: 3)")
    add("--grace", type=float, help=argparse.SUPPRESS)  # PilotSettings.grace, for tests
    add("--lifetime", type=float, help="seconds until no more jobs are taken (default: no limit, or the allocation's)")
    add("--site", type=Path, help="the site's profile, as `hpo-pilot sites show NAME --json` prints it")
    add("--allocation", action="store_true", help="use all nodes of the batch job in which this pilot runs")
    add(
        "--no-agents",
        action="store_false",
        dest="agents",
        help="in an allocation, start each job by a job step, also where an agent on its node could start it",
    )
    add("--checkpoint-rate", type=float, help="MB/s of checkpoints of all agents of an allocation (default: 1000)")
    add(
        "--end-idle",
        type=float,
        help="seconds without a job after which the allocation is given back (default: 900; 0: never)",
    )
    add("--memory-mb", type=int, help="memory for the largest job, in MB (default: not given)")
    add("--cache-mb", type=int, help="size of the sandbox cache, in MB (default: 5000)")
    add("--input-cache-mb", type=int, help="size of the cache of fetched inputs, in MB (default: 100000)")
    add("--no-staging", action="store_false", dest="staging", help="copy nothing to the nodes' own disks")
    add("--staging-mb", type=int, help="largest size of these copies on a node, in MB (default: 100000)")
    add("--min-free-mb", type=int, help="free disk below which no jobs are taken (default: 200)")
    add("--container-runtime", help=f"how jobs with an image are run: {', '.join(RUNTIMES)} (default: auto)")
    add(
        "--environments",
        type=Path,
        help="environments of searches submitted on this machine (default: the pilot's own)",
    )
    add("--no-isolation", action="store_false", dest="isolation", help="payloads may read this pilot's files")
    add("--hide", action="append", help="another file or folder that payloads cannot read; may be given several times")
    add("--keep", action="store_true", help="keep job folders")
    add("--metrics-port", type=int, help="port for Prometheus (default: none; 0: any free port)")
    add("--lifeline-fd", type=int, help="end when this inherited pipe closes")
    # The service starts its pilot beside its server: until that listens, another program may hold the port.
    add("--wait", action="store_true", default=False, help=argparse.SUPPRESS)  # for a byte from the lifeline
    add("--log-format", choices=FORMATS, help="format of the log (default: HPO_PILOT_LOG_FORMAT, else text)")
    add("--debug", action="store_true", default=False, help="log more details")
    return parser


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # Otherwise the process would wait for threads that wait for an answer of the server.
    os._exit(status)
