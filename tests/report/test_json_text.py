"""The text of long JSON documents is that of the standard library."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo_pilot.report.json_text import json_list
from hpo_pilot.search import TrialState

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


def plain(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)


@given(st.lists(_VALUES))
def test_a_list_has_the_layout_of_the_standard_library(values):
    assert "".join(json_list(values)) == plain(values)


@pytest.mark.parametrize("value", [(1, (2.5,)), {TrialState.FINISHED: TrialState.FAILED}, -math.inf, {"a": {"b": []}}])
def test_values_of_other_types_have_it_too(value):
    assert "".join(json_list([value])) == plain([value])


def test_a_key_that_is_no_text_is_refused():
    with pytest.raises(TypeError):
        list(json_list([{1: 2}]))
