"""What a search cost, for terminals."""

from __future__ import annotations

from hpo_pilot.client.cost_documents import CostDocument
from hpo_pilot.client.documents import StatusDocument


def cost_rows(search: StatusDocument) -> list[tuple[str, str]]:
    """(heading, text) of what a search cost and gained; nothing from a service that does not tell."""
    cost = search.get("cost")
    if cost is None:
        return []
    rows = [("cost", cost_text(cost))]
    gain = search.get("gain")
    if gain is not None and cost["job_seconds"]:
        has_gpus = cost["gpu_hours"] > 0
        per_hour = gain["per_gpu_hour"] if has_gpus else gain["per_core_hour"]
        what = f"{gain['gain']:.4g} since the first result" if gain["first"] is not None else f"{gain['gain']:.4g}"
        unit = "GPU-hour" if has_gpus else "core-hour"
        rows += [("gain", f"{what}, {per_hour:.4g} per {unit}")] if per_hour is not None else []
    return rows


def cost_text(cost: CostDocument) -> str:
    """On one line."""
    parts = [f"{cost['gpu_hours']:.4g} GPU-hours"] if cost["gpu_hours"] else []
    parts.append(f"{cost['core_hours']:.4g} core-hours")
    if cost["energy_kwh"] is not None and cost["energy_source"] is not None:
        how = "measured in part" if cost["energy_source"] == "mixed" else cost["energy_source"]
        parts.append(f"{cost['energy_kwh']:.4g} kWh ({how})")
    return ", ".join(parts)
