#!/bin/bash
# A pilot that owns a Slurm allocation and runs jobs side by side on its nodes. What `hpo-pilot pilots submit --dry-run` prints,
# with /shared/hpo-pilot for the folder that login and compute nodes share; for sites where another tool submits.
#
#   hpo-pilot sites show generic-slurm --json >/shared/hpo-pilot/site.json && sbatch slurm.sh
#SBATCH --job-name=hpo-pilot
#SBATCH --nodes=4
#SBATCH --time=2:00:00
#SBATCH -p gpu
#SBATCH -A my-project
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --signal=B:USR1@300
#SBATCH --no-requeue
#SBATCH --no-kill
#SBATCH --output=/shared/hpo-pilot/output-%j.log
#SBATCH --open-mode=append

cd /shared/hpo-pilot || exit 1
exec /opt/hpo-pilot/bin/python3 -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue CLUSTER_GPU \
    --token-file /shared/hpo-pilot/site.token --site /shared/hpo-pilot/site.json --allocation \
    --workdir "/shared/hpo-pilot/work-$SLURM_JOB_ID" --checkpoints /shared/hpo-pilot/checkpoints \
    --storage /shared/hpo-pilot/storage --harvester-id "slurm-$SLURM_JOB_ID" --vo hpo_pilot
