from __future__ import annotations

from pathlib import Path

import pytest

from tests.recorded.conversations import CLIENTS, differences


@pytest.mark.parametrize("client", CLIENTS)
def test_answers_to_a_client_are_those_that_were_recorded(client: str, tmp_path: Path) -> None:
    assert differences(client, tmp_path) == {}
