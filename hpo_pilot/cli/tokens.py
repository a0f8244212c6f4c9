"""Tokens of the work folder's server: made, listed, revoked."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hpo_pilot.cli.options import JsonOption, WorkDirOption
from hpo_pilot.cli.show import dump

_STDOUT = Path("-")


class RoleChoice(StrEnum):
    """What `--role` takes; as `server.auth.Role`, which would bring the server's libraries to every command."""

    USER = "user"
    PILOT = "pilot"
    OPERATOR = "operator"


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(name="token", help="Tokens of the work folder's server.", no_args_is_help=True)
    group.command("create")(create)
    group.command("list")(list_tokens)
    group.command("revoke")(revoke)
    app.add_typer(group)


def create(
    name: Annotated[str, typer.Option(help="Whose it is: tasks and files belong to this name.", show_default=False)],
    role: Annotated[
        RoleChoice,
        typer.Option(help="user: own searches; pilot: takes jobs; operator: everything, for everybody."),
    ] = RoleChoice.USER,
    days: Annotated[float, typer.Option(max=36_500, help="How long it is valid.")] = 30.0,
    vo: Annotated[
        str, typer.Option(help="The only virtual organisation that it is for. Default: any.", show_default=False)
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where it goes, for you alone to read; - is standard output. Default: a file beside the others.",
            show_default=False,
        ),
    ] = None,
    workdir: WorkDirOption = None,
) -> None:
    """Make a token and write it to a file; nothing else keeps it."""
    from hpo_pilot.errors import InputError
    from hpo_pilot.server.access.auth import Role
    from hpo_pilot.server.access.authority import Authority, write_private
    from hpo_pilot.service.workdir import WorkDir

    folder = WorkDir.make(workdir).tokens
    token, made = Authority(folder).issue(name, Role(role.value), days, vo)
    if output == _STDOUT:
        typer.echo(token)
        return
    path = output or folder / f"{''.join(c if c.isalnum() or c in '-_' else '_' for c in name)}-{made.id}.token"
    try:
        # Without a line's end: panda-client and Pilot 3 send what the file holds, as it is.
        write_private(path, token)
    except OSError as error:
        raise InputError(f"cannot write the token to {path}: {error.strerror}") from error
    typer.echo(f"token {made.id} of {name}, role {role.value}, valid until {_day(made.expires)}, is in {path}")


def list_tokens(as_json: JsonOption = False, workdir: WorkDirOption = None) -> None:
    """Show the tokens that have not expired; the tokens themselves are kept nowhere."""
    from hpo_pilot.server.access.authority import Authority

    found = Authority(_token_folder(workdir)).issued()
    if as_json:
        dump(
            [
                {
                    "id": token.id,
                    "name": token.name,
                    "role": token.role.value,
                    "vo": token.vo,
                    "issued": token.issued,
                    "expires": token.expires,
                    "revoked": token.revoked,
                }
                for token in found
            ]
        )
        return
    for token in found:
        state = "revoked" if token.revoked else f"until {_day(token.expires)}"
        typer.echo(f"{token.id}  {token.role.value:<8}  {state:<22}  {token.name}{f'  ({token.vo})' * bool(token.vo)}")


def revoke(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, as token list shows it.")],
    workdir: WorkDirOption = None,
) -> None:
    """Make a token worthless at once; a running server notices by itself."""
    from hpo_pilot.server.access.authority import Authority

    token = Authority(_token_folder(workdir)).revoke(token_id)
    typer.echo(f"token {token.id} of {token.name}, role {token.role.value}, is revoked")


def _token_folder(workdir: Path | None) -> Path:
    """The work folder's, which must be there: looking makes none.

    Raises:
        InputError: it is not there.
    """
    from hpo_pilot.errors import InputError
    from hpo_pilot.service.workdir import WorkDir

    folder = WorkDir.at(workdir).tokens
    if not folder.is_dir():
        raise InputError(f"there are no tokens in {folder}: make one first (token create), or name another --workdir")
    return folder


def _day(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(when))
