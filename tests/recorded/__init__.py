"""A recording of what must not change for users, and the test that compares it with the code of today.

`python -m tests.recorded --record [PART ...]` writes `data/<part>.json`, a line for each thing recorded; with `--work`
it first makes `data/work.tar.xz` anew: the store, the server's database and the files that a story left behind
(`scenario.py`). `pytest tests/recorded` compares. A part sees commands, HTTP and files; what it must take from within
the package is in `inside.py`. To drop something that goes on purpose, change its part and record that part again.
"""
