#!/bin/bash
# Harvester's template of a worker for one job that Harvester has taken (mapType OneToOne): a Pilot 3, which reads the job from
# pandaJobData.out in the worker's folder. Our pilot takes its jobs itself and has no such mode.
#SBATCH --job-name=pilot3-{workerID}
#SBATCH --nodes={nNode}
#SBATCH --time={requestWalltimeMinute}
#SBATCH --partition={localQueueName}
#SBATCH --no-requeue
#SBATCH --output={accessPoint}/output.log

export HARVESTER_WORKDIR={accessPoint} HARVESTER_ID={harvesterID} HARVESTER_WORKER_ID={workerID} PILOT_HOME={accessPoint}
export OIDC_AUTH_TOKEN=/shared/hpo-pilot/site.token OIDC_AUTH_ORIGIN=hpo_pilot
export HARVESTER_PILOT_CONFIG=/shared/hpo-pilot/local.cfg HPO_PILOT_CONTAINER_RUNTIME=auto
cp /shared/hpo-pilot/runGen-00-00-02 {accessPoint}/ || exit 1
mkdir -p {accessPoint}/work && cd /shared/panda-pilot-3.7.0.36 || exit 1
exec python3 pilot.py -a {accessPoint}/work -q {pandaQueueName} -j user -i PR -t -u -d --pilot-user=generic -w generic \
    --url=https://panda.example.org -p 25443 --use-rucio-traces=False --allow-same-user=False \
    --harvester-submit-mode=PUSH --harvester-datadir={accessPoint} --harvester-workdir={accessPoint}
