"""The command `hpo-pilot`: thin modules that read options, call an operation and print its result.

Begin with `main.py`, which lists all commands and the module of each. `options.py` has shared options, the client that
they name (`hpo_pilot.operations.client.SearchClient`) and shell completion. `output.py` prints tables, texts and JSON,
`progress.py` live displays. `searches.py` has the commands that start and change searches, `inspection.py` those that
show them, `plan.py`, `pilots.py` and `serve.py` those for machines and servers, `migrate.py` those for other tools.
`schemas.py` and `reference.py` generate the JSON Schemas and the manual's reference pages.
"""
