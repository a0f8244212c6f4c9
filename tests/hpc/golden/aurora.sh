#!/bin/bash
#PBS -N hpo-0123456789
#PBS -l select=256:ncpus=204:system=aurora
#PBS -l place=scatter:exclhost
#PBS -l walltime=12:00:00
#PBS -q prod
#PBS -A catalyst
#PBS -S /bin/bash
#PBS -r n
#PBS -j oe
#PBS -o /shared/hpo/allocations/hpo-0123456789/output.log
#PBS -l filesystems=home:flare

cd /shared/hpo/allocations/hpo-0123456789 || exit 1
command -v module >/dev/null || . /etc/profile
module load frameworks || exit 1
module load apptainer || exit 1
export http_proxy=http://proxy.alcf.anl.gov:3128
export https_proxy=http://proxy.alcf.anl.gov:3128
export HTTP_PROXY=http://proxy.alcf.anl.gov:3128
export HTTPS_PROXY=http://proxy.alcf.anl.gov:3128
export no_proxy=localhost,127.0.0.1,admin,.alcf.anl.gov
export NO_PROXY=localhost,127.0.0.1,admin,.alcf.anl.gov
exec /venv/python -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue GPU_QUEUE --token-file /tokens/pilot.token --site /shared/hpo/allocations/hpo-0123456789/site.json --allocation --workdir /shared/hpo/allocations/hpo-0123456789/work --checkpoints /shared/hpo/checkpoints --storage /shared/hpo/storage --harvester-id hpo-0123456789
