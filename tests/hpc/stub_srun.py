"""A stub of Slurm's srun (22.05): it takes the options that ours gives, checks them as srun would, runs the ranks here.

The allocation is that of SLURM_JOB_NODELIST (names with commas), SLURM_STUB_CPUS and SLURM_STUB_GPUS a node.
"""

from __future__ import annotations

import argparse
import os
import sys

from ranks import refuse, run_ranks


def main() -> int:
    parser = argparse.ArgumentParser(prog="srun", allow_abbrev=False)
    parser.add_argument("-N", dest="nodes", type=int, required=True)
    parser.add_argument("-n", dest="ntasks", type=int, required=True)
    parser.add_argument("-c", dest="cpus", type=int, default=1)
    parser.add_argument("--ntasks-per-node", type=int, required=True)
    parser.add_argument("--gpus-per-task", type=int)
    parser.add_argument("--gpus-per-node", type=int)
    parser.add_argument("--gpu-bind", choices=["closest", "none"])
    parser.add_argument("--gres", choices=["none"])
    parser.add_argument("--cpu-bind", choices=["cores"])
    parser.add_argument("--nodelist")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--mem")
    parser.add_argument("--kill-on-bad-exit", type=int, choices=[0, 1])
    parser.add_argument("--export", default="ALL")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    said = parser.parse_args()
    have = os.environ["SLURM_JOB_NODELIST"].split(",")
    wanted = said.nodelist.split(",") if said.nodelist else have
    if not set(wanted) <= set(have):
        refuse("srun", f"Requested node configuration is not available: {said.nodelist}")
    if len(wanted) != said.nodes and said.nodelist:
        refuse("srun", f"Required nodelist has {len(wanted)} nodes, -N {said.nodes}")
    if said.nodes > len(have):
        refuse("srun", "More processors requested than permitted")
    if said.ntasks != said.nodes * said.ntasks_per_node:
        refuse("srun", f"-n {said.ntasks} is not -N {said.nodes} times --ntasks-per-node {said.ntasks_per_node}")
    if said.cpus * said.ntasks_per_node > int(os.environ["SLURM_STUB_CPUS"]):
        refuse("srun", "More processors requested than permitted")
    gpus = said.gpus_per_node or (said.gpus_per_task or 0) * said.ntasks_per_node
    if gpus > int(os.environ["SLURM_STUB_GPUS"]):
        refuse("srun", "Invalid generic resource (gres) specification")
    names = said.export.split(",")
    base = {name: os.environ[name] for name in names if name in os.environ}
    slurm = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
    environments = []
    for rank in range(said.ntasks):
        local = rank % said.ntasks_per_node
        own = {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(said.ntasks), "SLURM_LOCALID": str(local)}
        if gpus:
            each = said.gpus_per_task or 0
            mine = range(gpus) if said.gpu_bind == "none" else range(local * each, (local + 1) * each)
            own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, mine))
        environments.append({**base, **slurm, **own})
    return run_ranks(said.argv, environments, all_end=said.kill_on_bad_exit == 1)


if __name__ == "__main__":
    sys.exit(main())
