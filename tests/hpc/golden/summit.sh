#!/bin/bash
#BSUB -J hpo-0123456789
#BSUB -nnodes 92
#BSUB -W 12:00
#BSUB -q batch
#BSUB -P ABC123
#BSUB -wa USR1
#BSUB -wt 5
#BSUB -rn
#BSUB -o /shared/hpo/allocations/hpo-0123456789/output.log
#BSUB -alloc_flags "NVME smt1"

cd /shared/hpo/allocations/hpo-0123456789 || exit 1
command -v module >/dev/null || . /etc/profile
module load open-ce/1.10.0-py39-ibm || exit 1
export http_proxy=http://proxy.ccs.ornl.gov:3128
export https_proxy=http://proxy.ccs.ornl.gov:3128
export HTTP_PROXY=http://proxy.ccs.ornl.gov:3128
export HTTPS_PROXY=http://proxy.ccs.ornl.gov:3128
export no_proxy=localhost,127.0.0.1,127.0.0.0/8,.ccs.ornl.gov
export NO_PROXY=localhost,127.0.0.1,127.0.0.0/8,.ccs.ornl.gov
exec /venv/python -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue GPU_QUEUE --token-file /tokens/pilot.token --site /shared/hpo/allocations/hpo-0123456789/site.json --allocation --workdir /shared/hpo/allocations/hpo-0123456789/work --checkpoints /shared/hpo/checkpoints --storage /shared/hpo/storage --harvester-id hpo-0123456789
