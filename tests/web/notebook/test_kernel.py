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


def test_a_small_notebook(workdir: Path, tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(cell.format(workdir=str(workdir))) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(
        notebook, timeout=60, startup_timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    opened, frame, figure, watched = (cell.outputs for cell in notebook.cells)
    assert "<caption>search digits</caption>" in opened[0].data["text/html"]
    assert "finished" in frame[0].data["text/html"]
    drawn = next(one for one in figure if "application/vnd.plotly.v1+json" in one.get("data", {}))
    names = [trace["name"] for trace in drawn.data["application/vnd.plotly.v1+json"]["data"]]
    assert "best so far" in names
    assert '<progress value="20" max="20"' in watched[0].data["text/html"]
    assert watched[0].data["text/plain"].startswith("digits: done, 20 of 20 trials")
