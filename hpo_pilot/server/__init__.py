"""The embedded PanDA server: tasks in, jobs out to pilots, spoken to by the real panda-client and by real pilots.

From the outside in: `__main__` (command line) and `process` (starting it from Python); `app` (HTTP, and who may call)
with one `api_*` module per group of calls, declared through `endpoints` and described by `openapi`, and the `legacy_*`
modules for `/server/panda`; the queue core, which knows nothing of HTTP: tasks (`tasks`, `task_commands`,
`task_changes`, `retries`, `final_state`), jobs (`attempts`, `dispatch`, `updates`, `lost_jobs`, `job_commands`) and how
both look (`descriptions`, `task_views`, `job_statistics`); `retention`, which removes what is old; `database` and
`tables` underneath.
"""
