"""The embedded PanDA server: users submit tasks through panda-client, pilots take their jobs.

It serves a laptop, a group or an allocation; a collaboration has a real PanDA server. Begin with `app` (the routes) and
`tasks` (a task from its submission to its end). `state` holds what all calls share, and `calls` declares and checks
calls. The calls are in `task_calls`, `pilot_calls` (also those of Pilot 3), `file_calls`, `monitoring` (ours, for
pages), `points` (iDDS) and `bigpanda`. `reports` collects the reports of pilots; `attempts` records them, ends attempts
and decides whether a job gets another one. `dispatch` and `brokerage` choose jobs for a pilot, `queues` has the queues
that they choose from. `job_records` joins a job's row with its task; `descriptions` describes jobs and tasks as PanDA
does, from it; `task_parameters` reads what prun sends. `database` and `file_store` keep everything; `tokens` and
`issuers` identify callers; `replies` has JSON and PanDA's envelope; `listening` has socket and TLS, `helpers` further
processes, `metrics` is for Prometheus. Modules import only modules below them; `setup.cfg` checks this.
"""

#: The variable with the URL of a PostgreSQL database. `hpo-pilot serve` has no option for it: a URL may have a
#: password, and other accounts of the machine see options.
DATABASE_VARIABLE = "HPO_PILOT_SERVER_DATABASE"
