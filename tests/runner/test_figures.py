"""Figures of merit and intermediate values that a training prints, or writes into files of its own."""

from __future__ import annotations

import json
import os

import pytest

from hpo_pilot.runner import hpo_pilot_figures

LOSS = {"stdout": r"val_loss[=:] *(\S+)"}
KEY = {"file": "m.json", "key": "val.loss"}
COLUMN = {"file": "logs/m.csv", "column": "val_loss"}
CSV = "mkdir logs; printf '%s' > logs/m.csv"
JSON = "printf '%s' > m.json"


@pytest.mark.parametrize(
    ("result", "command", "value"),
    [
        (LOSS, "echo val_loss=0.5; echo 'val_loss: 0.25, acc=1' >&2; echo end", 0.25),
        (LOSS, "printf '1 val_loss=3\\r2 val_loss=2 val_loss=1e-1'", 0.1),
        (LOSS, "echo val_loss=7; seq 1 400000", 7.0),  # the log leaves out its middle
        ({"stdout": r"(?P<name>\w+) is (?P<value>[\d.]+)"}, "echo loss is 0.5", 0.5),
        (KEY, JSON % '{"val": {"loss": 0.5}}', 0.5),
        (KEY, JSON % '{"val.loss": 0}', 0.0),
        (KEY, JSON % '{"val": {"loss": [3, 2, 1]}}', 1.0),
        (KEY, JSON % '[{"val": {"loss": 2}}, {"val": {"loss": 1}}]', 1.0),
        (KEY, JSON % '{"val": {"loss": 2}}\\n{"val": {"loss": 1}}\\n{"lr": 3}\\n{"va', 1.0),
        (COLUMN, CSV % "epoch,val_loss\\n0,0.5\\n1,0.25\\n", 0.25),
        (COLUMN, CSV % "val_loss; x\\n0.5; 1\\n0.25", 0.25),
        (
            COLUMN,
            CSV % "x, val_loss\\n0, 0.5\\n1, \\n2\\n",
            0.5,
        ),  # as loggers that write each figure on a row of its own
    ],
)
def test_the_last_value_counts(bench, result, command, value):
    ended = bench.run(command, result=result, files={"m.json": '{"val": {"loss": 99}}'})
    assert (ended.verdict["value"], ended.verdict["message"]) == (value, "")


@pytest.mark.parametrize(
    ("result", "command", "parts"),
    [
        (LOSS, "echo one; echo the last", ["no line of the output matches val_loss", "the log ends with: the last"]),
        (LOSS, "true", ["no line", "the log is empty"]),
        (LOSS, "echo val_loss=nan", ["is no finite number but NaN"]),
        (LOSS, "echo val_loss=-inf", ["is no finite number but -Infinity"]),
        (LOSS, "echo val_loss=abc", ["is no finite number but", "abc"]),
        (LOSS, "echo val_loss=0.5; exit 3", ["ended with exit code 3"]),
        (KEY, "true", ["m.json: none was written"]),  # that of the user's own run was removed
        (KEY, JSON % "loss", ["m.json is no JSON"]),
        (KEY, JSON % '{"val": {"acc": 1}, "x": 2}', ["no value of", "val.loss", "it has 'val', 'x'"]),
        (KEY, JSON % '{"val": {"loss": null}}', ["is no finite number but null"]),
        (KEY, "ln -s /etc/hostname m.json", ["outside of the job's folder"]),
        (COLUMN, CSV % "epoch,loss\\n0,0.5\\n", ["val_loss", "it has 'epoch', 'loss'"]),
        (COLUMN, CSV % "", ["val_loss", "it has nothing"]),
        (COLUMN, CSV % "epoch,val_loss\\n", ["val_loss"]),
    ],
)
def test_why_there_is_none(bench, result, command, parts):
    ended = bench.run(command, result=result, files={"m.json": '{"val": {"loss": 99}}'})
    assert ended.code == 0 and ended.verdict["value"] is None
    assert [part for part in parts if part not in ended.message] == [], ended.message


STEPS = {"stdout": r"epoch (?P<step>\d+).*val_loss=(?P<value>\S+)"}
TABLE = {"file": "m.csv", "step": "epoch", "column": "val_loss"}


@pytest.mark.parametrize(
    ("progress", "command", "pairs"),
    [
        (STEPS, "echo 'epoch 0: val_loss=0.5'; echo x; printf 'epoch 1: val_loss=nan'", [[0, 0.5], [1, None]]),
        (TABLE, "printf 'epoch,val_loss\\n0,0.5\\n,\\n1.0,0.25\\nx,1\\n2,' > m.csv", [[0, 0.5], [1, 0.25]]),
        (TABLE, "true", []),
    ],
)
def test_intermediate_values(bench, progress, command, pairs):
    verdict = bench.run(f"{command}; echo 1 > output.json", progress=progress).verdict
    assert (verdict["value"], verdict["progress"]) == (1.0, pairs)


@pytest.mark.parametrize("series", [False, True])
@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (STEPS, "print('epoch', i, 'val_loss=0.5')"),
        (TABLE, "open('m.csv', 'a').write('%d,0.5\\n' % i if i else 'epoch,val_loss\\n0,0.5\\n')"),
    ],
)
def test_they_are_there_while_the_training_runs(bench, until, progress, line, series):
    """It goes on only when its second value is in progress.jsonl."""
    training = f"import os, time\nfor i in range(3):\n    {line}\n"
    training += "    while i == 1 and not os.path.exists('go'): time.sleep(0.01)\nopen('output.json', 'w').write('1')"
    files = {"payload/train.py" if series else "train.py": training}
    process, folder = bench.start("python3 train.py", progress=progress, files=files, series=series)
    values = folder / "progress.jsonl"
    until(lambda: values.exists() and values.read_text().count("\n") == 2)
    (values.resolve().parent / "go").write_text("")
    assert bench.finish(process, folder).code == 0
    verdict = json.loads((folder / "userJobMetadata.json").read_text())["hpo_pilot"]
    assert (verdict["members"][0] if series else verdict)["progress"] == [[0, 0.5], [1, 0.5], [2, 0.5]]


def test_large_files_are_read_in_parts(tmp_path, monkeypatch):
    """Of the figure of merit the end, of intermediate values what is new."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hpo_pilot_figures, "LIMIT", 100)
    described = {"result": {"file": "m.csv", "column": "val_loss"}, "progress": TABLE}
    figures = hpo_pilot_figures.Figures(described, "out", lambda name, _: (tmp_path / name).read_bytes())
    read = []
    table = hpo_pilot_figures.table
    monkeypatch.setattr(hpo_pilot_figures, "table", lambda text: read.append(len(text)) or table(text))
    with (tmp_path / "m.csv").open("w") as file:
        file.write("epoch,val_loss\n")
        for first in (0, 40, 80):
            file.write("".join(f"{i},{i / 10}\n" for i in range(first, first + 40)))
            file.flush()
            figures.next = 0.0
            figures.look()
    figures.end()
    told = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert told == [{"step": i, "value": i / 10} for i in range(120)]
    size = (tmp_path / "m.csv").stat().st_size
    assert sum(read) < 1.3 * size and max(read) < 120
    assert figures.figure("") == 11.9
    (tmp_path / "m.csv").write_text("epoch,lr,val_loss\n" + "".join(f"{i},0,{i / 10}\n" for i in range(130)))
    figures.end()
    assert len((tmp_path / "out").read_text().splitlines()) == 130


def test_a_table_that_is_written_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    figures = hpo_pilot_figures.Figures({"progress": TABLE}, "out", lambda name, _: (tmp_path / name).read_bytes())
    os.mkfifo("pipe")
    figures.progress["file"] = "pipe"
    figures.look()  # nobody writes to it
    figures.progress["file"] = "m.csv"
    again = "lr,epoch,val_loss\n3,0,1\n"  # seen while it is written
    for text in ("epoch,val_loss\n0,1\n1,", "epoch,val_loss\n00,1.00\n", again, again + "3,1,2\n"):
        (tmp_path / "m.csv").write_text(text)
        figures.next = 0.0
        figures.look()
    figures.end()
    assert [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()] == [
        *({"step": 0, "value": 1.0}, {"step": 1, "value": 2.0})
    ]


def test_quoted_fields_with_line_ends(tmp_path, monkeypatch):
    """Seen when each part of the table is written; a quote within a field quotes nothing."""
    monkeypatch.chdir(tmp_path)
    figures = hpo_pilot_figures.Figures({"progress": TABLE}, "out", lambda name, _: (tmp_path / name).read_bytes())
    rows = 'note;epoch;val_loss\n"one\n9;9;9\n";0;1\n5" disk;1;2\n"a ""b""\n";2;3\n\u2028;3;4\n"'
    for end in range(1, len(rows) + 1):
        (tmp_path / "m.csv").write_text(rows[:end])
        figures.next = 0.0
        figures.look()
    figures.end()
    told = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert told == [{"step": i, "value": i + 1.0} for i in range(4)]


@pytest.mark.parametrize("each", [100, 2000, 100_000])
def test_a_quote_that_is_never_closed_hides_few_rows(tmp_path, monkeypatch, each):
    monkeypatch.chdir(tmp_path)
    figures = hpo_pilot_figures.Figures({"progress": TABLE}, "out", lambda name, _: (tmp_path / name).read_bytes())
    with (tmp_path / "m.csv").open("w") as file:
        file.write("epoch,val_loss,note\n")
        for number in range(100):
            quote = '"' if number == 10 else ""
            file.write(f"{number},0,{quote}{'x' * each}\n")
            file.flush()
            figures.next = 0.0
            figures.look()
    figures.end()
    seen = [json.loads(line)["step"] for line in (tmp_path / "out").read_text().splitlines()]
    assert seen[:10] == list(range(10)) and (each < 2000 or (len(seen) > 60 and seen[-1] == 99))
