#!/bin/bash
#SBATCH --job-name=hpo-0123456789
#SBATCH --nodes=2
#SBATCH --time=1:00:00
#SBATCH -p normal
#SBATCH -A g123
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --gpus-per-node=4
#SBATCH --signal=B:USR1@300
#SBATCH --no-requeue
#SBATCH --no-kill
#SBATCH --output=/shared/hpo/allocations/hpo-0123456789/output.log
#SBATCH --open-mode=append
#SBATCH --mem=450G

cd /shared/hpo/allocations/hpo-0123456789 || exit 1
exec /venv/python -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue GPU_QUEUE --token-file /tokens/pilot.token --site /shared/hpo/allocations/hpo-0123456789/site.json --allocation --workdir /shared/hpo/allocations/hpo-0123456789/work --checkpoints /shared/hpo/checkpoints --storage /shared/hpo/storage --harvester-id hpo-0123456789
