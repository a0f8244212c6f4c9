"""Tables that fit, and bars of numbers."""

from __future__ import annotations

import io
import math

import pytest
from rich.cells import cell_len
from rich.console import Console

from hpo_pilot.cli.output import Column, add_row, console, print_columns, print_fitting
from hpo_pilot.cli.progress import sparkline


def printed(width):
    out = io.StringIO()
    table = [
        Column("ID", cells=["1", "12"]),
        Column("name", least=6, cells=["a-very-long-name-of-a-search", "日本語の名前です"]),
        Column("owner", rank=2, cells=["alice", "bob"]),
        Column("best", rank=1, cells=["0.1 ± 0.02", "-"]),
        Column("file", rank=3, least=8, tail=True, cells=["/home/alice/scans/one.yaml", "/x.yaml"]),
    ]
    print_columns(Console(file=out, width=width), table)
    return out.getvalue().splitlines()


def test_where_there_is_room_all_is_shown():
    head, first, second = printed(100)
    assert head.split() == ["ID", "name", "owner", "best", "file"]
    assert " ".join(first.split()) == "1 a-very-long-name-of-a-search alice 0.1 ± 0.02 /home/alice/scans/one.yaml"
    assert second.endswith("/x.yaml")


def test_it_always_fits():
    for width in range(14, 90):
        assert max(map(cell_len, printed(width))) <= width


def test_texts_are_shortened_then_columns_go_by_rank():
    assert printed(70)[1].endswith("ns/one.yaml")
    assert [len(printed(width)[0].split()) for width in (39, 38)] == [5, 4]  # a column goes only where it must
    heads = [printed(width)[0].split() for width in range(90, 13, -1)]
    shown = [list(each) for each in dict.fromkeys(map(tuple, heads))]
    assert shown == [
        ["ID", "name", "owner", "best", "file"],
        ["ID", "name", "owner", "best"],
        ["ID", "name", "best"],
        ["ID", "name"],
    ]


def test_no_cell_commands_the_terminal():
    table = [Column("error")]
    add_row(table, ["\x1b[2Jno memory\x07"])
    assert table[0].cells[0].isprintable()
    assert "no memory" in table[0].cells[0]


def test_bars():
    assert sparkline([3, 2, 1], 10) == "█▅▁"
    assert sparkline([1, 1], 10) == "▁▁"
    assert sparkline([], 10) == ""
    assert sparkline([math.inf, math.nan, 1], 10) == "▁"
    assert len(sparkline(range(1000), 7)) == 7
    assert sparkline([-1.7e308, 1.7e308], 4) == "▁█"


# --- tables of numbers, which are shortened by digits ---

VALUE = 0.123456789


def table_of(digits: int) -> list[Column]:
    number = f"{VALUE:.{digits}g}"
    row = {"trial": "17", "state": "finished", "loss": f"{number} ± 0.017", "learning_rate": number, "momentum": number}
    return [Column(head, cells=[cell]) for head, cell in {**row, "layers": "2"}.items()]


def fitted(width: int) -> list[str]:
    out = io.StringIO()
    print_fitting(Console(file=out, width=width), table_of)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_where_there_is_room_all_digits_are_shown():
    head, row = fitted(80)
    assert head.split() == ["trial", "state", "loss", "learning_rate", "momentum", "layers"]
    assert row.split() == ["17", "finished", "0.123457", "±", "0.017", "0.123457", "0.123457", "2"]


@pytest.mark.parametrize("width", [60, 52, 50])
def test_a_narrow_terminal_cuts_digits_and_heads_but_no_number(width):
    head, row = fitted(width)
    assert max(len(head), len(row)) <= width
    assert row.split() in (
        ["17", "finished", f"{VALUE:.{digits}g}", "±", "0.017", f"{VALUE:.{digits}g}", f"{VALUE:.{digits}g}", "2"]
        for digits in (4, 3)
    )
    assert head.split()[:3] in (["trial", "state", "loss"], ["tria…", "state", "loss"], ["tri…", "state", "loss"])


def test_what_cannot_fit_is_left_whole():
    head, row = fitted(20)
    assert "…" not in row
    assert len(row) > 20
    assert head.split()[0] == "tri…" or head.split()[0] == "trial"


def test_a_pipe_gets_every_digit(capsys):
    print_columns(console(), [Column(f"parameter_{n}", cells=["0.123456789"]) for n in range(30)])
    head, row = capsys.readouterr().out.splitlines()
    assert "…" not in head + row
    assert row.count("0.123456789") == 30
