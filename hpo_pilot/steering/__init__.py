"""The steering service: the loop that joins optimizers, PanDA and the store.

Begin with `loop.py`: one search, from ask to tell. It uses `ledger.py` (results of folds, states of trials),
`submissions.py` (tasks at the PanDA server), `budget.py` and `early_stopping.py`. `service.py` steers many searches
at once and has `run` and `serve`.

Before the loop, `search_file.py` and `checks.py` read and check a search file, and `registration.py` packs and
registers its searches. `operations.py` holds what users change afterwards. `status.py` and `results.py` hold what they
see. `embedded.py`, `server_processes.py` and `workdir.py` run the servers and pilots of a work folder.
"""
