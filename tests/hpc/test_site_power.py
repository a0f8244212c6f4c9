from __future__ import annotations

import os

import pytest

from hpo_pilot.hpc.site_files import find_site, job_watts, price_of
from hpo_pilot.search import Resources, Search

POWER = "name: ours\nnode: {cores: 10, power: {idle: %d, per_core: 5, per_gpu: 0, source: meter}}\n"


def test_a_whole_node_of_summit_draws_what_top500_says():
    whole = Resources(nodes=3, gpus_per_node=6, cores=42)
    assert job_watts(find_site("summit"), whole) == pytest.approx(3 * 2190, rel=0.01)


@pytest.mark.parametrize(
    ("cores", "gpus", "memory", "share"), [(7, 1, 1000, 1 / 6), (21, 1, 1000, 0.5), (1, 0, 512_000, 1)]
)
def test_of_what_an_idle_node_draws_a_job_has_its_share(cores, gpus, memory, share):
    watts = job_watts(find_site("summit"), Resources(gpus_per_node=gpus, cores=cores, memory_mb=memory))
    assert watts == pytest.approx(500 * share + 4.5 * cores + 250 * gpus)


def test_a_search_has_its_site_s_figures(tmp_path, monkeypatch):
    monkeypatch.setenv("HPO_PILOT_SITES", str(tmp_path))
    search = Search.model_validate(
        {
            "search": "demo",
            "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
            "payload": {"command": "true"},
            "resources": {"cores": 5, "nodes": 2},
            "site": {"profile": "ours"},
        }
    )
    assert price_of(search).watts is None  # there is no such file
    site = tmp_path / "ours.yaml"
    for number, (idle, watts) in enumerate([(100, 150.0), (300, 350.0)]):
        site.write_text(POWER % idle)
        os.utime(site, ns=(number, number))
        assert price_of(search).watts == watts
    site.write_text("name: theirs\n")
    os.utime(site, ns=(9, 9))
    assert price_of(search).watts is None
