"""Schemathesis drives a call of an API as the API's own description has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def drive(
    operation: Any,
    url: str,
    headers: Mapping[str, str],
    examples: int,
    *,
    waits: str,
    check: Callable[[Any], None] = lambda _response: None,
) -> None:
    """Makes calls and checks each answer: no 5xx, and nothing that is not described.

    Args:
        operation: schemathesis's.
        url: of the server.
        headers: of each call.
        examples: how many calls.
        waits: how the path of the one call ends that would wait for a change, were it given a timeout.
        check: of each answer, beyond that.
    """

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        if case.path.endswith(waits) and case.query:
            case.query.pop("timeout", None)
        response = case.call(base_url=url, headers=headers)
        case.validate_response(response, checks=CHECKS)
        check(response)

    run()
