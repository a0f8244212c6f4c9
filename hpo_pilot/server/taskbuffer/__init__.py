"""The task buffer, as PanDA calls it: tasks, jobs and their attempts, brokerage, queues, pilots; nothing of HTTP.

Tasks (`tasks`, `task_commands`, `task_changes`, `retries`, `final_state`), jobs (`attempts`, `dispatch`, `updates`,
`lost_jobs`, `job_commands`), how both look (`descriptions`, `task_views`, `job_statistics`), and `retention`, which
removes what is old.
"""
