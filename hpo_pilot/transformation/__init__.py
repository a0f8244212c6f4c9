"""The transformation: runs one job, from its parameters to its outputs and its job report.

Our pilot imports these modules. A Pilot 3 runs them as one file, which `executable.py` builds. So the package uses only
the standard library, Python 3.6 syntax, and nothing else of ours.

Begin with `transformation.py`, which runs a job step by step. `job.py` reads the job's arguments and writes its report,
`sandbox.py` fetches and unpacks the sandbox, `stage_in.py` fetches inputs, `container.py` has the container runtimes,
and `process.py` runs the payload and ends every process that it leaves behind.
"""
