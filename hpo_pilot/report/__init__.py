"""Shows results of a search: figures, the HTML report, JSON documents and exports.

Begin with `catalogue`, the list of figures. All of them are drawn from `figure.FigureData`; `figure` and `axes` have
their common parts; `result_figures`, `parameter_figures`, `importance` and `slot_figures` draw them. `summary` has the
statistics (ranking, Pareto front, failures). `html` renders the report, and `figure_files` writes PDF and PNG.
`documents` and `trial_documents` have the JSON documents for commands, REST API and clients. `exports` lists the export
formats; `mlflow` writes one. `formatting` formats numbers and times for people.
"""
