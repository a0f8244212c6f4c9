"""The pages alone, over a store that somebody removes."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.steering.server_processes import NetworkOptions, serve_pages
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SteeringStore


@pytest.mark.parametrize("anew", [False, True])
def test_they_end_when_their_store_is_removed_or_made_anew(tmp_path, anew):
    workdir = WorkDir.make(tmp_path)
    SteeringStore.open(workdir.store_url()).close()
    file = tmp_path / "hpo-pilot.db"
    assert file.exists()
    asked = []

    def remove(pages):
        asked.append(pages.url)
        kept = file.rename(tmp_path / "kept.db")
        if anew:
            file.write_bytes(kept.read_bytes())

    with pytest.raises(InputError, match="was removed or replaced"):
        serve_pages(tmp_path, store=None, reach=NetworkOptions(), on_ready=remove)
    assert len(asked) == 1
    assert not workdir.pages_address.exists()
