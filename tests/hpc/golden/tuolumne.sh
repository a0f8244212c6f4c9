#!/bin/bash
# flux: --job-name=hpo-0123456789
# flux: --nodes=1
# flux: --exclusive
# flux: --time-limit=60m
# flux: --queue=pbatch
# flux: --bank=lc
# flux: --output=/shared/hpo/allocations/hpo-0123456789/output.log

cd /shared/hpo/allocations/hpo-0123456789 || exit 1
exec /venv/python -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue GPU_QUEUE --token-file /tokens/pilot.token --site /shared/hpo/allocations/hpo-0123456789/site.json --allocation --workdir /shared/hpo/allocations/hpo-0123456789/work --checkpoints /shared/hpo/checkpoints --storage /shared/hpo/storage --harvester-id hpo-0123456789
