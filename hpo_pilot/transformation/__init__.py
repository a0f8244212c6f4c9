"""The transformation: from the parameters of a job to its outputs and its job report.

Our pilot imports its modules; a Pilot 3 runs them as one file, which `executable.py` makes. That file stands alone:
standard library, Python 3.6 syntax, nothing of ours beside this package.
"""
