"""Stubs of apptainer, shifter and podman-hpc: they check their arguments as the real ones would, and run the command.

Called with the program's name first. What binds and devices do is not imitated, but they are checked for form.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def mount(text: str) -> str:
    source, target, *mode = text.split(":")
    if not Path(source).exists() or not target.startswith("/") or mode not in ([], ["ro"], ["rw"]):
        raise argparse.ArgumentTypeError(f"cannot mount {text}")
    return text


def apptainer(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="apptainer", allow_abbrev=False)
    parser.add_argument("action", choices=["exec"])
    parser.add_argument("--nv", action="store_true")
    parser.add_argument("--rocm", action="store_true")
    parser.add_argument("--bind", type=mount, action="append")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--pwd", dest="workdir", required=True)
    parser.add_argument("image")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    said = parser.parse_args(words)
    return said, said.argv


def shifter(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="shifter", allow_abbrev=False)
    parser.add_argument("--image", required=True)
    parser.add_argument("--module")
    parser.add_argument("--volume", type=mount, action="append")
    parser.add_argument("--workdir", required=True)
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    said = parser.parse_args(words)
    kind, _, name = said.image.partition(":")
    if kind not in ("docker", "id", "local") or not name or name.startswith("/"):
        parser.error(f"invalid image specification {said.image}")
    if said.module and not set(said.module.split(",")) <= {"gpu", "mpich", "none"}:
        parser.error(f"invalid module {said.module}")
    said.env = []
    return said, said.argv


def podman_hpc(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="podman-hpc", allow_abbrev=False)
    parser.add_argument("action", choices=["run"])
    for flag in ("--rm", "--gpu", "--mpi"):
        parser.add_argument(flag, action="store_true")
    for option in ("--network", "--ipc", "--pid"):
        parser.add_argument(option, choices=["host"])
    for option in ("--user", "--security-opt", "--entrypoint", "--preserve-fds"):
        parser.add_argument(option)
    parser.add_argument("--device", action="append")
    parser.add_argument("--volume", type=mount, action="append")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--workdir", required=True)
    parser.add_argument("image")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    said = parser.parse_args(words)
    return said, [said.entrypoint, *said.argv]


def main() -> None:
    program, *words = sys.argv[1:]
    said, argv = {"apptainer": apptainer, "shifter": shifter, "podman-hpc": podman_hpc}[program](words)
    env = dict(os.environ)
    if program == "podman-hpc":  # nothing passes by itself
        env = {"PATH": os.environ["PATH"]} | {name: os.environ[name] for name in said.env if name in os.environ}
    env |= dict(pair.split("=", 1) for pair in said.env if "=" in pair)
    os.chdir(said.workdir)
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606  what it stands for
    except OSError as error:
        sys.exit(f"{program}: {argv[0]}: {error}")


if __name__ == "__main__":
    main()
