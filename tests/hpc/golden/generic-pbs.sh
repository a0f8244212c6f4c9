#!/bin/bash
#PBS -N hpo-0123456789
#PBS -l select=3:ncpus=32:ngpus=4
#PBS -l place=scatter:exclhost
#PBS -l walltime=25:00:00
#PBS -q workq
#PBS -A proj
#PBS -S /bin/bash
#PBS -r n
#PBS -j oe
#PBS -o /shared/hpo/allocations/hpo-0123456789/output.log

cd /shared/hpo/allocations/hpo-0123456789 || exit 1
export http_proxy=http://login1:3128
export https_proxy=http://login1:3128
export HTTP_PROXY=http://login1:3128
export HTTPS_PROXY=http://login1:3128
export no_proxy=localhost,127.0.0.1
export NO_PROXY=localhost,127.0.0.1
exec /venv/python -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue GPU_QUEUE --token-file /tokens/pilot.token --site /shared/hpo/allocations/hpo-0123456789/site.json --allocation --workdir /shared/hpo/allocations/hpo-0123456789/work --checkpoints /shared/hpo/checkpoints --storage /shared/hpo/storage --harvester-id hpo-0123456789
