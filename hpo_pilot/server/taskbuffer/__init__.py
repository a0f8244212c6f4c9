"""The task buffer, as PanDA calls it: tasks, jobs and their attempts, brokerage, queues, pilots; nothing of HTTP.

Tasks (`tasks`, `task_commands`, `retries`, `final_state`), jobs (`attempts`, `dispatch`, `updates`,
`lost_jobs`, `job_commands`), how both look (`descriptions`, `task_views`), and `retention`, which
removes what is old.
"""
