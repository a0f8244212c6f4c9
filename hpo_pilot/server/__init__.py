"""The embedded PanDA server: tasks in, jobs out to pilots, spoken to by the real panda-client.

From the outside in: `__main__` (command line) and `process` (starting it from Python); `app` (HTTP) with one `api_*`
module per group of calls, declared through `endpoints`; the queue core (`tasks`, `attempts`, `dispatch`, `updates`,
`lost_jobs`, `descriptions`), which knows nothing of HTTP; `database` and `tables` underneath.
"""
