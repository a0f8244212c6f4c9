"""Tables that fit, and bars of numbers."""

from __future__ import annotations

import io
import math

import pytest
from rich.cells import cell_len
from rich.console import Console

from hpo_pilot.cli.output import Column, print_columns
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
    assert first.split() == [
        "1",
        "a-very-long-name-of-a-search",
        "alice",
        "0.1",
        "±",
        "0.02",
        "/home/alice/scans/one.yaml",
    ]
    assert second.endswith("/x.yaml")


@pytest.mark.parametrize("width", range(14, 90))
def test_it_always_fits(width):
    assert max(map(cell_len, printed(width))) <= width


def test_texts_are_shortened_then_columns_go_by_rank():
    assert printed(70)[1].endswith("ns/one.yaml")
    heads = [printed(width)[0].split() for width in range(90, 13, -1)]
    shown = [list(each) for each in dict.fromkeys(map(tuple, heads))]
    assert shown == [
        ["ID", "name", "owner", "best", "file"],
        ["ID", "name", "owner", "best"],
        ["ID", "name", "best"],
        ["ID", "name"],
    ]


def test_bars():
    assert sparkline([3, 2, 1], 10) == "█▅▁"
    assert sparkline([1, 1], 10) == "▁▁"
    assert sparkline([], 10) == ""
    assert sparkline([math.inf, math.nan, 1], 10) == "▁"
    assert len(sparkline(range(1000), 7)) == 7
    assert sparkline([-1.7e308, 1.7e308], 4) == "▁█"
