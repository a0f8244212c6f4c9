"""Quotas of the users of a service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.quotas import check_quotas, quotas_of, usage
from hpo_pilot.server.chains import files_of
from hpo_pilot.steering.workdir import WorkDir, nickname
from tests.rest_api import write_search


def test_files_of_a_users_searches_count(tmp_path: Path) -> None:
    workdir = WorkDir.make(tmp_path / "work")
    cache, file = workdir.panda_files / "cache", workdir.root / "quotas.json"
    cache.mkdir(parents=True)
    with SearchClient.local(workdir.root) as client:
        client.submit(write_search(tmp_path, "mine"))
        store, record = client.here.store, client.here.search("mine")
        (cache / f"{files_of(nickname(), record.uid)}t1f0.1").write_bytes(bytes(3_000_000))
        (cache / f"{files_of(nickname(), 'other')}t1f0.1").write_bytes(bytes(5_000_000))
        file.write_text(json.dumps({"stored_mb": 4, "users": {"eve": {"stored_mb": 0}}}))
        assert usage(store, workdir, record.owner) == {"stored_mb": {"used": 3, "most": 4}}
        check_quotas(store, workdir, record.owner, 1)
        file.write_text(json.dumps({"stored_mb": 3}))
        with pytest.raises(InputError, match="hpo-pilot fetch"):
            check_quotas(store, workdir, record.owner, 1)


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"serches": 1}', '{"searches": -1}', '{"users": {"ada": 1}}', '{"searches": true}']
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Users are not told where the service's files are; its log says it."""
    (tmp_path / "quotas.json").write_text(text)
    with pytest.raises(InputError, match=r"quotas\.json") as raised:
        quotas_of(WorkDir.at(tmp_path), "ada")
    assert str(tmp_path) not in str(raised.value) and str(tmp_path / "quotas.json") in caplog.text
