"""Judges how well a training used its ranks, from what hpo_pilot_ranks.py measured in each.

Loaded by hpo_pilot_runner.py where there is any of it. The figures are the POP Centre of Excellence's "Standard Metrics
for Parallel Performance Analysis" (pop-coe.eu; co-design.pop-coe.eu/metrics, "Parallel efficiency", "Load balance
efficiency", "Communication efficiency"; C. Rosas, J. Gimenez, J. Labarta, "Scalability prediction for fundamental
performance factors", Supercomputing Frontiers and Innovations 1(2) (2014) 4). With c the computation of each rank, in
seconds, and T the run time of the slowest, all without input:

    load balance               LB = mean(c) / max(c)
    communication efficiency   CE = max(c) / T
    parallel efficiency        PE = LB x CE = mean(c) / T

Input is no part of POP's model. It is given apart, as the fraction of all ranks' time, and images/s count it: all
images over the time of the slowest rank, input included. Standard library alone, Python 3.6 syntax.
"""

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

TIMES = ("seconds", "compute", "communication", "input")
FILE_LIMIT = 64 * 1024  # bytes of a rank's file
RANKS_KEPT = 256  # ranks told one by one: those that compute longest, for the others wait for them
MOST_RANKS = 1 << 17  # files looked at


def read_ranks(folder: str, number: "Callable[[Any], Optional[float]]") -> "List[Dict[str, Any]]":
    """What the ranks wrote, by rank; broken files are passed over. `number` is the runner's."""
    ranks = []
    for name in sorted(os.listdir(folder))[:MOST_RANKS]:
        path = os.path.join(folder, name)
        try:
            if not name.endswith(".json") or os.path.getsize(path) > FILE_LIMIT:
                continue
            with open(path, "rb") as file:
                told = json.loads(file.read().decode())
            times = {key: number(told[key]) for key in (*TIMES, "images")}
            whole = {key: told[key] for key in ("rank", "size")}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
        sound = all(value is not None and value >= 0 for value in times.values())
        if sound and all(type(value) is int for value in whole.values()) and 0 <= whole["rank"] < whole["size"]:
            ranks.append(dict(times, host=str(told.get("host", ""))[:100], **whole))
    return sorted(ranks, key=lambda rank: rank["rank"])


def assess(folder: str, number: "Callable[[Any], Optional[float]]") -> "Tuple[Dict[str, float], Dict[str, Any], str]":
    """The figures of a training: (by name, what is kept of the ranks one by one, why there are no figures)."""
    ranks = read_ranks(folder, number)
    size = max((rank["size"] for rank in ranks), default=0)
    if [rank["rank"] for rank in ranks] != list(range(size)) or not size:
        return {}, told(ranks), "%d of %d ranks told what they spent their time on" % (len(ranks), size)
    computed = [rank["compute"] for rank in ranks]
    run_time = max(rank["seconds"] - rank["input"] for rank in ranks)
    longest, slowest = max(computed), max(rank["seconds"] for rank in ranks)
    if not 0 < longest <= run_time * (1 + 1e-6):
        return {}, told(ranks), "no time was spent on computation, or more than there was"
    mean = sum(computed) / size
    figures = {
        "pop_parallel_efficiency": min(1.0, mean / run_time),
        "pop_load_balance": mean / longest,
        "pop_communication_efficiency": min(1.0, longest / run_time),
        "pop_input_fraction": sum(rank["input"] for rank in ranks) / sum(rank["seconds"] for rank in ranks),
        "ranks": float(size),
        "compute_seconds": mean,
        "communication_seconds": sum(rank["communication"] for rank in ranks) / size,
        "input_seconds": sum(rank["input"] for rank in ranks) / size,
    }
    images = sum(rank["images"] for rank in ranks)
    if images:
        figures["images_per_second"] = images / slowest
    return figures, told(ranks), ""


def told(ranks: "List[Dict[str, Any]]") -> "Dict[str, Any]":
    """What goes into the job's metadata of the ranks one by one, in order; seconds to the microsecond."""
    kept = sorted(ranks, key=lambda rank: -rank["compute"])[:RANKS_KEPT]
    rounded = [dict(rank, **{key: round(rank[key], 6) for key in TIMES}) for rank in kept]
    return {"hpo_pilot_ranks": sorted(rounded, key=lambda rank: rank["rank"])} if ranks else {}
