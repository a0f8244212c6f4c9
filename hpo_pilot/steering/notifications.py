"""Notifications: tells users by a webhook or e-mail that a search is done, has failed or is stalled.

The log of the search in the store says what was sent, so a message is sent once, also by the next process: after a kill
between a message and its log entry twice, with the same `id`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from ipaddress import ip_address
from os import environ
from statistics import median
from typing import Any
from urllib.parse import quote, urlsplit

from hpo_pilot import __version__
from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.store import SearchRecord, SearchState, SteeringStore
from hpo_pilot.store.lease import Lease
from hpo_pilot.store.progress import progress_of
from hpo_pilot.store.queries import last_spans, to_notify

#: Any host may get a request, whatever its address.
ANY_HOST = ("*",)

#: Seconds between two looks at the store, and seconds that one message may take.
_POLL_SECONDS, _SEND_SECONDS = 5.0, 20.0

#: An end that a service sees later than this number of seconds is not told any more; seconds until an end is stored.
_LATEST, _STORED = 7 * 86400.0, 60.0

#: A search is stalled after three times the median run time of its last 20 trials, at least after ten minutes.
_RUN_TIMES, _LAST_TRIALS, _LEAST_STALL = 3, 20, 600.0

#: Seconds between two tries of a message, of a service and at the end of `run`.
_PAUSES, LAST_PAUSES = (30.0, 120.0, 600.0, 3600.0), (2.0, 5.0)

log = logging.getLogger(__name__)


@dataclass
class Notifier:
    """Sends the notifications of a store. Only the process that steers its searches may use it.

    Attributes:
        store: the store.
        only: numbers of the searches; None: all.
        server: only searches of this PanDA server; None: of all.
        hosts: the only hosts that get requests; empty: every host with a public address.
        pages: address of the web pages for users; None: they have none.
        pauses: seconds between the tries of a message.
        lease: of several services that steer searches of the store, each sends for its own ones, and the oldest for
            those that nothing steers now. None: there is only one.
    """

    store: SteeringStore
    only: Collection[int] | None = None
    server: str | None = None
    hosts: Collection[str] = ()
    pages: str | None = None
    pauses: Sequence[float] = _PAUSES
    lease: Lease | None = None

    def __post_init__(self) -> None:
        self._begun = time.time()
        self._since = self._begun - _LATEST  # all ends before it are told
        self._tries: dict[tuple[str, str], tuple[int, float]] = {}  # count and time of the next, by message and way
        self._said: dict[tuple[str, str], str] = {}  # of messages whose log entry is not written yet

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Sends messages during a block, in a thread of its own: no receiver delays a search."""
        stopping = threading.Event()

        def work() -> None:
            while not stopping.wait(_POLL_SECONDS):
                try:
                    self.look()
                except HpoPilotError as error:
                    log.warning("no notifications now: %s", error)
                except Exception:  # This thread must go on, whatever the store or a receiver does.
                    log.exception("notifications")

        thread = threading.Thread(target=work, name="notify", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join(_SEND_SECONDS)

    def look(self) -> bool:
        """Sends what is due. Returns whether a message waits for its next try."""
        waits, now = False, time.time()
        for record, entries in to_notify(self.store.engine, max(self._since, now - _LATEST)):
            notify = record.definition.get("notify")
            if not notify or (self.only is not None and record.id not in self.only):
                continue
            if self.lease is not None and not self.lease.speaks_for(record.holder):
                continue
            if self.server not in (None, record.server) or (event := self._event(record, entries)) is None:
                continue
            for way, receiver in (("webhook", notify["url"]), ("e-mail", notify["email"])):
                entry = f"notification of {event[0]} by {way}"
                is_told = any(text.startswith(entry) and when >= event[1] for text, when in entries.items())
                if receiver and event[0] in notify["on"] and not is_told:
                    waits |= self._tell(record, event, way, receiver, entry)
        if not waits:
            self._since = now - _STORED
        return waits

    def _event(self, record: SearchRecord, entries: Mapping[str, float]) -> tuple[str, float] | None:
        """Returns the event of a search and its time; of a stalled one the time from which nothing happened."""
        if record.state is not SearchState.RUNNING:
            ended = record.ended.timestamp() if record.ended else 0.0
            return None if record.state is SearchState.STOPPED else (record.state.value, ended)
        spans = last_spans(self.store.engine, record.id, _LAST_TRIALS)
        seconds = [span.ended - span.begun for span in spans] or [record.definition["resources"]["minutes"] * 60.0]
        started = record.started.timestamp() if record.started else self._begun
        since = max([started, entries.get("", 0.0), *(span.ended for span in spans)])
        # While no service ran, nothing could finish.
        quiet = time.time() - max(since, self._begun)
        return ("stalled", since) if quiet > max(_RUN_TIMES * median(seconds), _LEAST_STALL) else None

    def _tell(self, record: SearchRecord, event: tuple[str, float], way: str, receiver: str, entry: str) -> bool:
        """Sends a message if its next try is due. Returns whether a further try is due later."""
        identity = f"{record.uid}-{event[0]}-{event[1]:.0f}"
        if (identity, way) not in self._said:
            said = self._send(record, event[0], way, receiver, identity)
            if said is None:
                return True
            self._said[identity, way] = said
        self.store.record(record.id, events=[f"{entry} {self._said[identity, way]}"])
        del self._said[identity, way]
        return False

    def _send(self, record: SearchRecord, event: str, way: str, receiver: str, identity: str) -> str | None:
        """Returns what the log should say of a message; None: its next try is due later."""
        tries, due = self._tries.get((identity, way), (0, 0.0))
        if time.monotonic() < due:
            return None
        try:
            message = self._message(record, event, identity)
            host = send_mail(receiver, message) if way == "e-mail" else post(receiver, message, self.hosts)
            said = f"sent to {host}"
        except InputError as error:
            said = f"not sent: {error}"
        except (OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as error:
            # An answer of a foreign server stays out of the log.
            reason = (isinstance(error, OSError) and (error.strerror or str(error))) or type(error).__name__
            log.warning("search %s: the %s of %s was not taken: %s", record.name, way, event, reason)
            if tries < len(self.pauses):
                self._tries[identity, way] = (tries + 1, time.monotonic() + self.pauses[tries])
                return None
            said = f"not sent after {tries + 1} tries: {reason}"
        self._tries.pop((identity, way), None)
        return said

    def _message(self, record: SearchRecord, event: str, identity: str) -> dict[str, Any]:
        progress = progress_of(self.store.engine, record.id)
        number = progress.best_for_people
        trial = None if number is None else self.store.trial(record.id, number)
        values: Sequence[float | None] = trial.values or () if trial else ()
        if progress.confirmed is not None:
            values = [progress.confirmed_value]
        metrics = [objective["metric"] for objective in record.objectives]
        named = dict(zip(metrics, values, strict=False))
        return {
            "id": identity,
            "event": event,
            "time": (record.ended or datetime.now(UTC)).isoformat(timespec="seconds"),
            "search": record.name,
            "number": record.id,
            "owner": record.owner,
            "message": record.message,
            "trials": {"planned": record.planned_trials, **{key.value: n for key, n in progress.counts.items()}},
            "best": trial and {"trial": trial.number, "values": named, "point": dict(trial.point)},
            "front": list(progress.front),
            "page": self.pages and f"{self.pages}/searches/{quote(record.name, safe='')}",
        }


def send_mail(receiver: str, message: Mapping[str, Any]) -> str:
    """Sends a message by the system's sendmail. Returns where it went, for the log.

    Raises:
        InputError: this machine has no sendmail program.
        subprocess.SubprocessError: the program did not take it.
    """
    program = shutil.which("sendmail", path=f"{environ.get('PATH', '')}:/usr/sbin:/usr/lib")
    if program is None:
        raise InputError("this machine has no sendmail program: install one, or use notify.url")
    mail = EmailMessage()
    mail["To"], mail["Subject"] = receiver, f"hpo-pilot: search {message['search']}: {message['event']}"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answers by vacation programs
    mail.set_content(json.dumps(message, indent=1))
    argv = [program, "-i", "--", receiver]
    subprocess.run(argv, input=mail.as_bytes(), capture_output=True, timeout=_SEND_SECONDS, check=True)
    return receiver


def post(url: str, message: Mapping[str, Any], hosts: Collection[str]) -> str:
    """Posts a message to a web address, and follows no redirect. Returns scheme and host, for the log.

    Args:
        url: the address.
        message: the message.
        hosts: see `Notifier`; `*`: every host.

    Raises:
        InputError: the host may get no request.
        OSError: it does not answer, or not with success.
    """
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    found = [entry[4][:2] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if "*" not in hosts and host not in hosts:
        remedy = f"the operator of the service can allow it: serve --notify-hosts {host}"
        if hosts:
            raise InputError(f"{host} is not among the hosts for notifications; {remedy}")
        addresses = [ip_address(address) for address, _ in found]
        if not all(address.is_global and not address.is_multicast for address in addresses):
            raise InputError(f"{host} has no public address; {remedy}")
    make = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    connection = make(host, port, timeout=_SEND_SECONDS)
    # Connect to the address that was checked: the name may get another one meanwhile.
    connected = _connected(found)
    if is_tls:
        context = ssl.create_default_context()
        connected = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
    # The time-out of a socket is that of one read; a receiver that sends byte after byte would hold this thread.
    # The method of a TLS socket is not for another thread.
    end = threading.Timer(_SEND_SECONDS, socket.socket.shutdown, [connected, socket.SHUT_RDWR])
    end.start()
    try:
        if isinstance(connected, ssl.SSLSocket):
            connected.do_handshake()
        connection.sock = connected
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Content-Type": "application/json", "User-Agent": f"hpo_pilot/{__version__}"}
        connection.request("POST", target, json.dumps(message), headers)
        status = connection.getresponse().status
    finally:
        end.cancel()
        connected.close()
    if not 200 <= status < 300:
        raise OSError(f"{host} answered with status {status}")
    return f"{parts.scheme}://{parts.netloc}"


def _connected(addresses: Sequence[tuple[Any, ...]]) -> socket.socket:
    """Returns a connection to the first of these addresses that takes one."""
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            return socket.create_connection(address, _SEND_SECONDS / 4)
    return socket.create_connection(addresses[-1], _SEND_SECONDS / 4)
