"""The JSON Schemas say what the reader does."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from hpo_pilot.search import Search
from hpo_pilot.search.yaml_document import parse_document
from schemas.write import schema_of

from .conftest import GOOD
from .test_search_file import PRODUCT

FILES = ["search.json", "payload_input.json", "payload_output.json", "site.json"]


def valid(file: str, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema_of(file)).is_valid(value))


@pytest.mark.parametrize("file", FILES)
def test_schemas_are_schemas(file: str) -> None:
    schema = schema_of(file)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:hpo-pilot:schema:{file.removesuffix('.json')}"
    assert schema["title"]
    assert schema["description"]
    assert "http" not in json.dumps(schema).replace(schema["$schema"], "")


def test_right_files_are_right() -> None:
    for text in (GOOD, PRODUCT):
        data = parse_document(text, "f").value
        assert valid("search.json", data)
        assert valid("search.json", {**data, "folds": 5, "optimizer": {"name": "evolutionary", "population": 24}})
        assert valid("search.json", Search.model_validate(data).to_dict())


@pytest.mark.parametrize(
    "change",
    [
        {"folds": 0},
        {"folds": {"n": 3}},
        {"optimizer": {"population": 3}},
        {"trials": 3},
        {"payload": {}},
        {"space": {"x": {"low": 1, "high": 4}}},
        {"space": {"x": {"type": "integer", "low": 1, "high": 4, "lowr": 3}}},
        {"budget": {"queued": "many"}},
        {"segments": {"arm": {"space": {"x": {"type": "float"}}}}},
    ],
)
def test_wrong_files_are_wrong(change: dict[str, Any]) -> None:
    assert not valid("search.json", {**parse_document(GOOD, "f").value, **change})


def test_payload_formats() -> None:
    assert valid("payload_input.json", {"lr": 0.1, "n": 3, "c": None, "f": True, "s": "x"})
    assert not valid("payload_input.json", {"lr": [0.1]})
    assert not valid("payload_input.json", [0.1])
    assert valid("payload_output.json", {"loss": 0.3})
    assert valid("payload_output.json", {"status": 1, "message": "no data", "metrics": {"auc": 0.9}, "accuracy": 0.3})
    assert not valid("payload_output.json", {"status": "0", "loss": 0.3})
    assert not valid("payload_output.json", {"loss": "0.3"})
