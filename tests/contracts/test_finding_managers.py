from __future__ import annotations

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.panda.manager import PandaManager
from hpo_pilot.panda.workflow_manager import workflow_manager


def test_panda_is_found_by_its_name():
    assert workflow_manager("panda") is PandaManager


def test_an_unknown_one_names_those_that_are():
    with pytest.raises(InputError, match="itself has panda"):
        workflow_manager("condor")
