"""In a real kernel, as Jupyter runs it."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

CELLS = (
    "from hpo_pilot import open_search\nsearch = open_search('digits', {workdir!r})\nsearch",
    "search.trials[['state', 'value', 'x']].head(3)",
    "search.plot_convergence()",
    "search.watch()",
)


FRAME = "[len(result.trials.dataframe()), len(hpo_pilot.open_search('objective').trials)]"


def test_a_small_notebook(workdir: Path, tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(cell.format(workdir=str(workdir))) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(
        notebook, timeout=600, startup_timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    opened, frame, figure, watched = (cell.outputs for cell in notebook.cells)
    assert "<caption>search digits</caption>" in opened[0].data["text/html"]
    assert "finished" in frame[0].data["text/html"]
    drawn = next(one for one in figure if "application/vnd.plotly.v1+json" in one.get("data", {}))
    names = [trace["name"] for trace in drawn.data["application/vnd.plotly.v1+json"]["data"]]
    assert "best so far" in names
    failure, bar = watched
    assert failure.text == "digits: trial 1 failed: fold 0: exit status 1\n"
    assert '<progress value="20" max="20"' in bar.data["text/html"]
    assert "best so far</text>" in bar.data["text/html"]
    assert bar.data["text/plain"].startswith("digits: done, 20 of 20 trials")


FUNCTION = """
import hpo_pilot

def objective(point):
    return point["x"]

result = hpo_pilot.run(objective, {"x": {"type": "real", "low": 0, "high": 1}}, budget={"trials": 2}, slots=1)
result.trials
"""


def test_a_function_of_a_notebook(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(FUNCTION), nbformat.v4.new_code_cell(FRAME)])
    NotebookClient(
        notebook, timeout=600, startup_timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    ran, frame = (cell.outputs for cell in notebook.cells)
    assert '<progress value="2" max="2"' in ran[0].data["text/html"]
    assert ran[0].data["text/html"].count("<circle") == 2, "the figure follows the results"
    assert ran[-1].data["text/plain"] == "<2 trials: 2 finished; .dataframe() has a row for each>"
    assert frame[0].data["text/plain"] == "[2, 2]"
