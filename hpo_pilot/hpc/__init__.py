"""Site profiles, batch systems, allocations, launchers, the scheduler of an allocation, and `plan`."""
