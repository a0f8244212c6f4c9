"""The embedded PanDA server: tasks in, jobs out to pilots, spoken to by the real panda-client and by real pilots.

From the outside in: `__main__` (command line); `app` (its parts, joined);
`api` and `legacy` (the calls), `web` (HTTP), `taskbuffer` (tasks and jobs), `access` (who may call), `data` (what
lasts), `brokerage` (what decides where a job may go).
"""
