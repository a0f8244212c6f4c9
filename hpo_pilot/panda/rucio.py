"""Fetches files from Rucio with its command-line client and the user's own account."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError

#: Time limit of one download, in seconds.
_DEADLINE = 6 * 3600.0

#: Characters of Rucio's output in messages.
_SHOWN = 500


def is_did(name: str) -> bool:
    """Returns True for a name in Rucio: ``scope:file`` or ``scope:dataset``."""
    scope, colon, rest = name.partition(":")
    return bool(colon and scope and rest) and not rest.startswith("//") and "/" not in scope


def download_command(did: str, folder: str) -> list[str]:
    """Returns the command that downloads a file from Rucio into `folder`."""
    return ["rucio", "download", "--no-subdir", "--dir", folder, did]


def missing_client(dids: Mapping[int, str], folder: Path) -> InputError | None:
    """Returns the error for a machine without a Rucio client, with commands for another machine; None: it has one.

    Args:
        dids: the files to fetch, by fold.
        folder: their folder.
    """
    if shutil.which("rucio"):
        return None
    commands = "\n".join(f"  {shlex.join(download_command(did, str(folder)))}" for _, did in sorted(dids.items()))
    return InputError(
        "the outputs are in Rucio, and this machine has no `rucio` on its PATH. Where there is one "
        f"(`pip install rucio-clients`), this fetches them:\n{commands}"
    )


def download(did: str, destination: Path) -> None:
    """Downloads a file from Rucio to `destination`; a failure leaves no file.

    Args:
        did: scope:name. Without RUCIO_ACCOUNT, the account is taken from a scope ``user.<account>``.
        destination: the file.

    Raises:
        InputError: there is no Rucio client here.
        TryAgainError: the client failed or did not end in time.
        GiveUpError: the client succeeded without bringing the file.
    """
    if error := missing_client({0: did}, destination.parent):
        raise error
    destination.parent.mkdir(parents=True, exist_ok=True)
    scope = did.partition(":")[0]
    account = {"RUCIO_ACCOUNT": scope.removeprefix("user.")} if scope.startswith("user.") else {}
    environment = {**account, **os.environ}
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".rucio.") as folder:
        try:
            done = subprocess.run(
                download_command(did, folder),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_DEADLINE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TryAgainError(f"cannot fetch {did}: rucio: {error}") from error
        said = done.stdout.decode(errors="replace").strip()[-_SHOWN:]
        if done.returncode != 0:
            raise TryAgainError(f"cannot fetch {did}: rucio ended with status {done.returncode}: {said}")
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        if len(files) != 1:
            raise GiveUpError(f"rucio fetched {len(files)} files for {did}: {said}")
        files[0].replace(destination)
