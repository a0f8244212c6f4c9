"""The command `hpo-pilot`: thin modules that read options, call an operation and print its result.

Begin with `main.py`, which lists all commands with their modules. `options.py` has the shared options, the client
that they choose (`hpo_pilot.operations.client.SearchClient`) and shell completion. `output.py` prints tables, texts
and JSON; `progress.py` has the live displays; `hpo_pilot.report.formatting` formats counts, times, costs and figures
of merit. `searches.py` has the commands that start and change searches, `inspection.py` the commands that show them.
`plan.py`, `pilots.py` and `serve.py` have the commands for machines and servers, `migrate.py` the commands for other
tools. `schemas.py` and `reference.py` generate the JSON Schemas and the manual's reference pages.
"""
