"""What whoever runs a server may limit, by its command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpo_pilot.server.__main__ import main
from tests.task_parameters import make_params


def test_too_many_active_tasks(own_server: Callable[..., Any]) -> None:
    user = own_server(options=("--most-active-tasks", "1", "--retention-days", "0")).api("me")
    for number in (1, 2):
        user.submit(make_params(f"user.me.t{number}/"))
    reply = user.post("task/submit", task_parameters=make_params("user.me.t3/"))
    assert reply == {"success": False, "message": "Too many active tasks for me 2>1", "data": 10}


@pytest.mark.parametrize(
    ("option", "value"), [("--retention-days", "-1"), ("--retention-days", "nan"), ("--most-active-tasks", "-1")]
)
def test_limits_that_make_no_sense(capsys: pytest.CaptureFixture[str], option: str, value: str, tmp_path: Any) -> None:
    arguments = ["--database", f"sqlite:///{tmp_path}/x.db", "--files", str(tmp_path), "--tokens", str(tmp_path)]
    assert main([*arguments, f"{option}={value}"]) == 2
    assert option in capsys.readouterr().err
