"""The pilot: takes jobs from a PanDA server, runs them, and reports their results.

Begin with `pilot.py`, the process and its threads. `attempt.py` runs one job from the server's dictionary to its final
report; `execution.py` runs its command; `launch.py` starts ranks through the site's launcher; `report.py` builds
its reports. `client.py` calls the server. `machine.py` and `allocation.py` share out one machine or the nodes of an
allocation. `job_files.py`, `checkpoints.py` and `staging.py` move files. `watchdog.py` sends heartbeats and watches
memory and time. `settings.py` has the options, the site and the work folder.
"""
