"""What jobs cost and what came of that, as JSON documents; see `hpo_pilot.client.documents`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from hpo_pilot.search.cost import Cost
    from hpo_pilot.search.gain import Gain


class CostDocument(TypedDict):
    """What jobs took, all attempts together that are over, those that were lost or repeated included.

    `energy_source` says whether `energy_kwh` was measured on the nodes, estimated by the power figures of the site's
    profile, or both (`mixed`); both are null where neither is possible.
    """

    job_seconds: float
    gpu_hours: float
    core_hours: float
    energy_kwh: float | None
    energy_source: str | None


class GainDocument(TypedDict):
    """What a search gained for that: by how much its best figure of merit is better than its first one.

    `per_gpu_hour` and `per_core_hour` are null where its jobs have none. Of several objectives `gain` is the
    hypervolume of the front, and `first` and `best` are null.
    """

    first: float | None
    best: float | None
    gain: float
    per_gpu_hour: float | None
    per_core_hour: float | None


def cost_document(cost: Cost) -> CostDocument:
    """What jobs cost."""
    return {
        "job_seconds": cost.job_seconds,
        "gpu_hours": cost.gpu_hours,
        "core_hours": cost.core_hours,
        "energy_kwh": cost.energy_kwh,
        "energy_source": cost.energy_source,
    }


def gain_document(gain: Gain) -> GainDocument:
    """What a search gained."""
    return {
        "first": gain.first,
        "best": gain.best,
        "gain": gain.gain,
        "per_gpu_hour": gain.per_gpu_hour,
        "per_core_hour": gain.per_core_hour,
    }
