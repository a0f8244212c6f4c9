from __future__ import annotations

from hpo_pilot.pilot.allocation import NodeHealth


def test_a_node_that_is_named_twice_in_a_row_is_bad():
    health = NodeHealth()
    assert health.failed(["n1", "n2"], ["n2"]) == []
    health.worked(["n2"])
    assert health.failed(["n1", "n2"], ["n2"]) == []
    assert health.failed(["n2", "n3"], ["n2"]) == ["n2"]


def test_without_names_launches_must_work_elsewhere():
    health = NodeHealth()
    for _ in range(5):  # a site whose launcher is set up wrongly loses no nodes by it
        assert health.failed(["n1"], []) == [] and health.failed(["n2"], []) == []
    health.worked(["n2"])
    assert health.failed(["n2"], []) == []
    assert health.failed(["n1"], []) == ["n1"]


def test_in_a_row_means_in_a_row():
    health = NodeHealth()
    for _ in range(3):
        assert health.failed(["n1"], []) == [] and health.failed(["n1"], []) == []
        health.worked(["n1"])
        health.worked(["n2"])
