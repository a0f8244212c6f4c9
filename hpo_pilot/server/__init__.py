"""The embedded PanDA server: users submit tasks through panda-client, pilots take their jobs.

It serves a laptop, a group or an allocation; a collaboration has a real PanDA server. Begin with `app` (its parts,
joined) and `tasks` (a task from its submission to its end). The calls are in `task_calls`, `pilot_calls`, `file_calls`,
`monitoring` (ours, for pages), `legacy_calls` (Pilot 3), `points` (iDDS) and `bigpanda`; `calls` declares and
checks them. `attempts` changes jobs, `dispatch` and `brokerage` choose jobs for a pilot, `descriptions`
shows tasks and jobs as PanDA does. `database` and `file_store` keep everything; `tokens` and `issuers` say who calls.
"""
