"""Imports searches of other tools (`hpo-pilot import`), and steers those of phpo and iDDS (`hpo-pilot steer`).

Begin with `importing.import_search`: it reads another tool's file and returns the text of a search file.

- `foreign_file`: one file of another tool with its mistakes and warnings, each with line and column.
- `spaces`: the search spaces of all these tools as parameters of a search file.
- `hpogrid`, `phpo`, `importing` (iDDS), `sweeps` (Weights & Biases, Katib): the readers.
- `draft`: writes the search file, with a comment on the origin of each value.
- `steer`: the command of a steering container: points so far in, next points out.
"""
