"""The embedded PanDA server: users submit tasks through panda-client, pilots take their jobs.

It serves a laptop, a group or an allocation; a collaboration has a real PanDA server. Begin with `app` (its parts,
joined) and `tasks` (a task from its submission to its end). `calls` declares and checks calls; the calls are in
`task_calls`, `pilot_calls` (those of Pilot 3 too), `file_calls`, `monitoring` (ours, for pages), `points` (iDDS) and
`bigpanda`. `attempts` records the reports of pilots, ends attempts and decides whether a job gets another one.
`dispatch` and `brokerage` choose jobs for a pilot, `queues` has the queues that they choose from. `descriptions` shows
tasks and jobs as PanDA does, `task_parameters` reads what prun sends. `database` and `file_store` keep everything;
`tokens` and `issuers` identify callers; `listening` has socket and TLS, `metrics` is for Prometheus.
"""
