"""Tables on narrow terminals, and in pipes."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from hpo_pilot.cli.output import Column, print_fitting

VALUE = 0.123456789


def table_of(digits: int) -> list[Column]:
    number = f"{VALUE:.{digits}g}"
    row = {"trial": "17", "state": "finished", "loss": f"{number} ± 0.017", "learning_rate": number, "momentum": number}
    return [Column(head, cells=[cell]) for head, cell in {**row, "layers": "2"}.items()]


def printed(width: int) -> list[str]:
    out = io.StringIO()
    print_fitting(Console(file=out, width=width), table_of)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_where_there_is_room_all_digits_are_shown():
    head, row = printed(80)
    assert head.split() == ["trial", "state", "loss", "learning_rate", "momentum", "layers"]
    assert row.split() == ["17", "finished", "0.123457", "±", "0.017", "0.123457", "0.123457", "2"]


@pytest.mark.parametrize("width", [60, 52, 50])
def test_a_narrow_terminal_cuts_digits_and_heads_but_no_number(width):
    head, row = printed(width)
    assert max(len(head), len(row)) <= width
    assert row.split() in (
        ["17", "finished", f"{VALUE:.{digits}g}", "±", "0.017", f"{VALUE:.{digits}g}", f"{VALUE:.{digits}g}", "2"]
        for digits in (4, 3)
    )
    assert head.split()[:3] in (["trial", "state", "loss"], ["tria…", "state", "loss"], ["tri…", "state", "loss"])


def test_what_cannot_fit_is_left_whole():
    head, row = printed(20)
    assert "…" not in row
    assert len(row) > 20
    assert head.split()[0] == "tri…" or head.split()[0] == "trial"


def test_a_pipe_gets_every_digit():
    code = (
        "from hpo_pilot.cli.output import Column, console, print_columns\n"
        "print_columns(console(), [Column(f'parameter_{n}', cells=['0.123456789']) for n in range(30)])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    head, row = out.splitlines()
    assert "…" not in head + row
    assert row.count("0.123456789") == 30
