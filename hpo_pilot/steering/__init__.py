"""The steering service: the loop that joins optimizers, PanDA and the store.

Begin with `loop.py`: one search, from ask to tell. It uses `ledger.py` (results of folds, states of trials),
`submissions.py` (tasks at the PanDA server), `budget.py`, `promotions.py` (points that go on to their next levels) and
`early_stopping.py`. `service.py` steers many searches at once and has `run` and `serve`.

Before the loop, `search_file.py` reads a search file with `hpo_pilot.search.search_file` and makes the checks that need
the site, this machine or the optimizer. `registration.py` packs and registers its searches, and refuses a name that is
taken. `changes.py` has the changes that users make afterwards. `status.py` and `results.py` show users the state and
the results. `embedded.py`, `server_processes.py` and `workdir.py` run the servers and pilots of a work folder.
`metrics.py` is for Prometheus, `doctor.py` examines a machine.
"""
