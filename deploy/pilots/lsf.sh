#!/bin/bash
# A pilot that owns an LSF allocation and runs jobs side by side on its nodes, by jsrun; see slurm.sh.
#
#   hpo-pilot sites show generic-lsf --json >/shared/hpo-pilot/site.json && bsub <lsf.sh
#BSUB -J hpo-pilot
#BSUB -nnodes 4
#BSUB -W 2:00
#BSUB -q normal
#BSUB -P my-project
#BSUB -wa USR1
#BSUB -wt 5
#BSUB -rn
#BSUB -o /shared/hpo-pilot/output-%J.log

cd /shared/hpo-pilot || exit 1
exec /opt/hpo-pilot/bin/python3 -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue CLUSTER_GPU \
    --token-file /shared/hpo-pilot/site.token --site /shared/hpo-pilot/site.json --allocation \
    --workdir "/shared/hpo-pilot/work-$LSB_JOBID" --checkpoints /shared/hpo-pilot/checkpoints \
    --storage /shared/hpo-pilot/storage --harvester-id "lsf-$LSB_JOBID" --vo hpo_pilot
