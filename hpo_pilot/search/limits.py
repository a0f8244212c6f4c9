"""Upper limits of the counts in a search file.

A larger count is a typing error, or takes too much from other users of the service. The limits leave room for the
widest searches that make sense: a million trials, or one trial on every GPU of the largest machines. The fields of the
models use them, so `schemas/search.json` has them too.
"""

from __future__ import annotations

# A whole search.
MOST_TRIALS = 1_000_000
MOST_PARALLEL = 100_000
MOST_FOLDS = 1_000
#: Jobs submitted and not yet over, at one time: each takes memory of the service.
MOST_JOBS_OUT = 150_000
MOST_REPEATS = 1_000
MOST_HOURS = 1_000_000
#: GPU-hours and core-hours: more than a year of the largest machines.
MOST_MACHINE_HOURS = 10**12

#: The sum of the levels of all trials.
MOST_FIDELITY = 10**15

# One task.
MOST_JOBS_PER_TASK = 1_000
#: Folds in all jobs of one task.
MOST_RUNS_PER_TASK = 10_000
MOST_ATTEMPTS = 100
MOST_PRIORITY = 1_000_000

# One job.
MOST_TRIALS_PER_JOB = 200
MOST_NODES = 200_000
#: Cores, GPUs or ranks on one node.
MOST_PER_NODE = 10_000
MOST_MEMORY_MB = 100_000_000
MOST_MINUTES = 366 * 24 * 60

# Lists in a search file.
MOST_PARAMETERS = 1_000
MOST_CHOICES = 10_000
MOST_CONSTRAINTS = 1_000
MOST_POINTS = 100_000
MOST_INPUTS = 10_000
MOST_NAMES = 1_000
MOST_MEASURED_LIMITS = 50  # PostgreSQL and SQLite build an object of at most 50 and 63 values
MOST_SEGMENTS = 1_000
MOST_OBJECTIVES = 10

# Optimizers and early stopping.
MOST_POPULATION = 100_000
MOST_REPORT_SECONDS = 1_000_000
