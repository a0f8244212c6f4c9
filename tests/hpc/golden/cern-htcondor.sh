#!/bin/bash
#HTCONDOR batch_name = hpo-0123456789
#HTCONDOR executable = /bin/bash
#HTCONDOR transfer_executable = false
#HTCONDOR arguments = /shared/hpo/allocations/hpo-0123456789/job.sh
#HTCONDOR initialdir = /shared/hpo/allocations/hpo-0123456789
#HTCONDOR output = /shared/hpo/allocations/hpo-0123456789/output.log
#HTCONDOR error = /shared/hpo/allocations/hpo-0123456789/output.log
#HTCONDOR transfer_output_files = ""
#HTCONDOR request_cpus = 8
#HTCONDOR request_gpus = 1
#HTCONDOR request_memory = 16000
#HTCONDOR accounting_group = group_u_BE.ABP.NORMAL
#HTCONDOR +MaxRuntime = 28800
#HTCONDOR requirements = (NumJobStarts > 0) =!= true
#HTCONDOR periodic_remove = (JobStatus == 2 && time() - JobCurrentStartDate > MaxRuntime) || (JobStatus == 1 && NumJobStarts > 0)
#HTCONDOR want_graceful_removal = true
#HTCONDOR job_max_vacate_time = 300

cd /shared/hpo/allocations/hpo-0123456789 || exit 1
exec /venv/python -m hpo_pilot.pilot --server https://panda.example.org:25443 --queue GPU_QUEUE --token-file /tokens/pilot.token --site /shared/hpo/allocations/hpo-0123456789/site.json --allocation --workdir /shared/hpo/allocations/hpo-0123456789/work --checkpoints /shared/hpo/checkpoints --storage /shared/hpo/storage --harvester-id hpo-0123456789
