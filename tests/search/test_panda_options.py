from __future__ import annotations

import pytest
from pydantic import ValidationError

from hpo_pilot.search.search import PandaOptions


def test_the_monitor_is_an_address_of_pages() -> None:
    for address in ("https://panda-doma.cern.ch", "http://mon.example:8080/x/"):
        assert PandaOptions(monitor=address).monitor == address
    for wrong in ("javascript:alert(1)", "panda-doma.cern.ch", "https://me:secret@x", "https://x/?a=b", 'https://x/"'):
        with pytest.raises(ValidationError, match="is not the address of a web page"):
            PandaOptions(monitor=wrong)
