#!/bin/bash
# Harvester's template of a worker that takes jobs itself (mapType NoJob): a pilot of ours that owns the allocation.
# Harvester puts values for the names in braces; a brace of the shell's would be taken for one, so there are none.
#SBATCH --job-name=hpo-pilot-{workerID}
#SBATCH --nodes={nNode}
#SBATCH --time=2:00:00
#SBATCH --partition={localQueueName}
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --signal=B:USR1@300
#SBATCH --no-requeue
#SBATCH --no-kill
#SBATCH --output={accessPoint}/output.log

cd {accessPoint} || exit 1
exec /opt/hpo-pilot/bin/python3 -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue {pandaQueueName} \
    --token-file /shared/hpo-pilot/site.token --site /shared/hpo-pilot/site.json --allocation \
    --workdir {accessPoint}/work --checkpoints /shared/hpo-pilot/checkpoints --storage /shared/hpo-pilot/storage \
    --harvester-id {harvesterID} --worker-id {workerID} --vo hpo_pilot
