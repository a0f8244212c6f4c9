"""Whose a search is, for any name that a token may have."""

from __future__ import annotations

import pytest

from hpo_pilot.web.operations import NotYoursError, User


def test_a_user_changes_own_searches_alone():
    User.named("alice").check("x", "alice")
    User.named("op", changes_all=True).check("x", "alice")
    with pytest.raises(NotYoursError, match="only alice or an operator"):
        User.named("bob").check("x", "alice")


def test_long_names_that_begin_alike_stay_apart():
    prefix = "/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN=somebody/CN=123456/CN="
    one, two = User.named(prefix + "One"), User.named(prefix + "Two")
    assert len(one.name) == len(two.name) == 60
    with pytest.raises(NotYoursError):
        one.check("x", two.name)
    one.check("x", User.named(prefix + "One").name)
