"""The runner: files that travel with every job in its sandbox. Standard library only, Python 3.6 syntax.

They import nothing of ours; begin with hpo_pilot_runner.py, which runs one hyper-parameter point. hpo_pilot_series.py
runs several points one after another. The runner loads the other files only when it needs them, because it starts once
for each point: hpo_pilot_results.py (outputs, metadata, iDDS), hpo_pilot_checkpoints.py, hpo_pilot_energy.py,
hpo_pilot_hpogrid.py, hpo_pilot_command.py (parameters in the command), hpo_pilot_figures.py (values in the training's
own output), hpo_pilot_orphans.py (leftover processes) and hpo_pilot_python.py. A payload may import hpo_pilot_ranks.py.
The pilot copies hpo_pilot_launch.py (launchers) and hpo_pilot_stage.py (copies to the nodes' disks) into place itself.
"""
