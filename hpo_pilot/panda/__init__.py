"""The workflow manager for PanDA: submits tasks with panda-client and reads the results of their jobs.

Begin with `workflow_manager`, the interface that steering uses; other managers are plugins. `manager` implements it for
PanDA servers: `task_parameters` builds the parameters of a task as prun does, `sandbox` packs its payload,
`client_process` and `client_worker` run panda-client in separate processes, and `tasks` reads tasks and jobs from our
own server or a real one. `server` has addresses and credentials of servers, and `rucio` downloads outputs.
"""
