#!/bin/bash
#SBATCH --job-name=hpo-0123456789
#SBATCH --nodes=184
#SBATCH --time=1:30:00
#SBATCH -p batch
#SBATCH -A ABC123
#SBATCH --constraint=nvme
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --gpus-per-node=8
#SBATCH --signal=B:USR1@300
#SBATCH --no-requeue
#SBATCH --no-kill
#SBATCH --output=/shared/hpo/allocations/hpo-0123456789/output.log
#SBATCH --open-mode=append
#SBATCH --network=disable_rdzv_get

cd /shared/hpo/allocations/hpo-0123456789 || exit 1
command -v module >/dev/null || . /etc/profile
module load rocm || exit 1
module load rccl-net-plugin || exit 1
module load olcf-container-tools || exit 1
module load apptainer-enable-mpi || exit 1
module load apptainer-enable-gpu || exit 1
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export MIOPEN_USER_DB_PATH=/tmp/my-miopen-cache
export MIOPEN_CUSTOM_CACHE_DIR=/tmp/my-miopen-cache
export http_proxy=http://proxy.ccs.ornl.gov:3128
export https_proxy=http://proxy.ccs.ornl.gov:3128
export HTTP_PROXY=http://proxy.ccs.ornl.gov:3128
export HTTPS_PROXY=http://proxy.ccs.ornl.gov:3128
export no_proxy=localhost,127.0.0.1,127.0.0.0/8,.ccs.ornl.gov
export NO_PROXY=localhost,127.0.0.1,127.0.0.0/8,.ccs.ornl.gov
exec /venv/python -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue GPU_QUEUE --token-file /tokens/pilot.token --site /shared/hpo/allocations/hpo-0123456789/site.json --allocation --workdir /shared/hpo/allocations/hpo-0123456789/work --checkpoints /shared/hpo/checkpoints --storage /shared/hpo/storage --harvester-id hpo-0123456789
