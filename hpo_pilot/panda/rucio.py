"""Files that are in Rucio: fetched by its own command-line client, with the user's own account."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError

#: How long one download may take, in seconds.
_DEADLINE = 6 * 3600.0

#: How much of what Rucio said is shown, in characters.
_SHOWN = 500


def is_did(name: str) -> bool:
    """Whether a name is one of Rucio's: ``scope:file`` or ``scope:dataset``."""
    scope, colon, rest = name.partition(":")
    return bool(colon and scope and rest) and not rest.startswith("//") and "/" not in scope


def download_command(did: str, folder: str) -> list[str]:
    """The command that puts a file of Rucio's into `folder`."""
    return ["rucio", "download", "--no-subdir", "--dir", folder, did]


def missing_client(dids: Mapping[int, str], folder: Path) -> InputError | None:
    """The error for a machine without Rucio, with the commands to give elsewhere; None where it has one.

    Args:
        dids: what is wanted, by fold.
        folder: where it would go.
    """
    if shutil.which("rucio"):
        return None
    commands = "\n".join(f"  {shlex.join(download_command(did, str(folder)))}" for _, did in sorted(dids.items()))
    return InputError(
        "the outputs are in Rucio, and this machine has no `rucio` on its PATH. Where there is one "
        f"(`pip install rucio-clients`), this fetches them:\n{commands}"
    )


def download(did: str, destination: Path) -> None:
    """Fetches a file of Rucio's to `destination`, completely or not at all.

    Args:
        did: scope:name. Where RUCIO_ACCOUNT says nothing, the account is that of a scope ``user.<account>``.
        destination: the file.

    Raises:
        InputError: there is no Rucio client here.
        TryAgainError: it did not end in time, or it failed.
        GiveUpError: it ended well and brought nothing.
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
