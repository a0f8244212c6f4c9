#!/bin/bash
#SBATCH --job-name=hpo-0123456789
#SBATCH --nodes=2
#SBATCH --time=36:00:00
#SBATCH -p standard-g
#SBATCH -A project_465000000
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --gpus-per-node=8
#SBATCH --signal=B:USR1@300
#SBATCH --no-requeue
#SBATCH --no-kill
#SBATCH --output=/shared/hpo/allocations/hpo-0123456789/output.log
#SBATCH --open-mode=append

cd /shared/hpo/allocations/hpo-0123456789 || exit 1
export NCCL_SOCKET_IFNAME=hsn
export NCCL_NET_GDR_LEVEL=3
export CXI_FORK_SAFE=1
export CXI_FORK_SAFE_HP=1
export FI_CXI_DISABLE_CQ_HUGETLB=1
export MIOPEN_USER_DB_PATH=/tmp/${USER}-miopen-cache-${SLURM_JOB_ID}
export MIOPEN_CUSTOM_CACHE_DIR=${MIOPEN_USER_DB_PATH}
exec /venv/python -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue GPU_QUEUE --token-file /tokens/pilot.token --site /shared/hpo/allocations/hpo-0123456789/site.json --allocation --workdir /shared/hpo/allocations/hpo-0123456789/work --checkpoints /shared/hpo/checkpoints --storage /shared/hpo/storage --harvester-id hpo-0123456789
