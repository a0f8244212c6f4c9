"""Waiting until a server that was started as a child answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import requests

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.pilot.session import open_session
from hpo_pilot.service.children import Child

_START_SECONDS = 60.0
_PAUSE = 0.05


def wait_until_answering(
    child: Child,
    url: str,
    call: str,
    authorities: Path | None,
    headers: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Waits until `child` answers a call well.

    Args:
        child: the server, started.
        url: where it listens: scheme://host:port.
        call: of its API, below ``/api/v1/``.
        authorities: those behind its certificate; None: the usual ones.
        headers: of the call, made anew for each try.

    Raises:
        TryAgainError: it does not start; the message has its reason.
        InputError: its options are wrong, or its certificate does not fit.
    """
    end = time.monotonic() + _START_SECONDS
    trouble = ""
    with open_session(url, authorities) as session:
        while time.monotonic() < end:
            if (code := child.exit_code) is not None:
                # What is wrong with the options stays wrong: whoever starts services again and again must see that.
                wrong = InputError if code == InputError.exit_code else TryAgainError
                raise wrong(f"the {child.name} did not start: {child.last_line()}")
            try:
                if session.get(f"{url}/api/v1/{call}", headers=dict(headers()), timeout=5).ok:
                    return
            except requests.exceptions.SSLError as error:
                raise InputError(
                    f"the certificate of the {child.name} is not good for {url}: {error}; name its authorities with "
                    "--ca, or the host that it is made for with --public-url"
                ) from error
            except requests.RequestException as error:
                trouble = f": {error}"
            time.sleep(_PAUSE)  # not listening yet
    raise TryAgainError(
        f"the {child.name} did not answer at {url} within {_START_SECONDS:.0f} s{trouble}; see {child.log_file}"
    )
