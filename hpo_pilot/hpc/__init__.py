"""Machines with a batch system: what a site offers, allocations, launchers, and the scheduler inside of an allocation.

Begin with `site_profile.py`, the description of a site (`site_files.py` and `site_folders.py` find and read it), and
with `batch_system.py`, the interface to batch systems. `slurm.py`, `lsf.py`, `pbs.py` and `flux.py` implement it;
`batch_systems.py` is their registry. `allocations.py` submits allocations whose pilot runs many jobs, and `keeper.py`
keeps as many as the waiting jobs need. `launchers.py` has srun, jsrun, mpirun, horovodrun and torchrun.

Inside of an allocation `scheduler.py` decides which job starts where and when, on the resources in `capacity.py`;
`usage.py` measures how well they were used. `plan.py` and `scaling.py` compute what a search would take at a site.
"""
