"""Machines with a batch system: what a site offers, allocations, launchers, and the scheduler inside of an allocation.

Begin with `site_profile.py`, the description of a site (`site_files.py` and `site_folders.py` find and read it), and
with `batch_system.py`, the interface to batch systems. Each batch system has a file, such as `slurm.py`, and a line in
the registry `batch_systems.py`. `allocations.py` submits allocations whose pilot runs many jobs, and `keeper.py`
keeps as many as the waiting jobs need. `launchers.py` has all launchers and their registry.

Inside of an allocation `scheduler.py` decides which job starts where and when, on the resources in `capacity.py`;
`usage.py` measures how well they were used. `plan.py` and `scaling.py` compute what a search would take at a site.
"""
