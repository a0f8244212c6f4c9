"""The description of the API, generated from the table of calls: OpenAPI 3.1."""

from __future__ import annotations

import inspect
import types
from functools import lru_cache
from typing import Any

from hpo_pilot.server.web.endpoints import PILOTS, TABLE, Endpoint, Parameter

VERSION = "1.0"
PATHS = ("/openapi.json", "/api/v1/openapi.json")

_TYPES: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}
_LARGEST = 2**63 - 1

_ENVELOPE = {
    "type": "object",
    "required": ["success", "message", "data"],
    "additionalProperties": False,
    "properties": {
        "success": {"type": "boolean", "description": "Whether the call was done."},
        "message": {"type": ["string", "null"], "description": "Why not, or what it came to."},
        "data": {"description": "What the call gives, or the code of its refusal."},
    },
}
_REFUSALS = {
    "400": "The body is no JSON object, or not packed as it says.",
    "401": "No token, or one that is not valid.",
    "403": "The token's role may not make this call, or there is no such call.",
    "413": "The body is too large.",
    "503": "The database is busy or its disk is full: try again.",
}


@lru_cache(maxsize=1)
def description() -> dict[str, Any]:
    """The whole description; complete once all modules of the API are imported."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hpo-pilot's embedded PanDA server",
            "version": VERSION,
            "description": (
                "The API of PanDA, as panda-client and pilots call it. Every answer is an envelope; refusals that "
                "PanDA gives come with status 200 and `success` false."
            ),
        },
        "paths": {f"/api/v1/{path}": _path_item(endpoint) for path, endpoint in sorted(TABLE.items())},
        "components": {
            "schemas": {"Envelope": _ENVELOPE},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _path_item(endpoint: Endpoint) -> dict[str, Any]:
    methods = [endpoint.method] if endpoint.method else ["GET", "POST"]
    return {method.lower(): _operation(endpoint, method) for method in methods}


def _operation(endpoint: Endpoint, method: str) -> dict[str, Any]:
    group, _, function = endpoint.path.partition("/")
    summary, _, more = (inspect.getdoc(endpoint.handler) or "").partition("\n")
    operation: dict[str, Any] = {
        "operationId": f"{group}_{function}_{method.lower()}",
        "tags": [group],
        "summary": summary,
        "description": "\n\n".join(part for part in (more.strip(), _who(endpoint)) if part),
        "security": [{"token": []}] if endpoint.roles else [],
        "responses": _responses(endpoint),
    }
    if endpoint.raw_body:
        operation["requestBody"] = _form()
    elif method == "GET":
        operation["parameters"] = [_query(parameter) for parameter in endpoint.parameters.values()]
        if endpoint.any_argument:
            operation["parameters"] = [_any_query()]
    else:
        operation["requestBody"] = _body(endpoint)
    return operation


def _who(endpoint: Endpoint) -> str:
    if not endpoint.roles:
        return "Anybody may call it."
    roles = sorted(endpoint.roles & PILOTS if endpoint.production else endpoint.roles)
    owner = " Only for one's own tasks, unless one is an operator." if endpoint.owner_of else ""
    return f"For tokens with role {' or '.join(roles)}.{owner}"


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    envelope = {"application/json": {"schema": {"$ref": "#/components/schemas/Envelope"}}}
    answer: dict[str, Any] = envelope
    if _gives_text(endpoint):
        text = {"schema": {"type": "string"}}
        either = {"oneOf": [{"$ref": "#/components/schemas/Envelope"}, {"type": "string"}]}
        answer = {"text/plain": text, "application/json": {"schema": either}}
    responses: dict[str, Any] = {"200": {"description": "Done, or refused as PanDA does.", "content": answer}}
    for status, meaning in _REFUSALS.items():
        if endpoint.roles or status not in ("401", "403"):
            responses[status] = {"description": meaning, "content": envelope}
    return responses


def _gives_text(endpoint: Endpoint) -> bool:
    return str(inspect.signature(endpoint.handler).return_annotation) == "str"


def _form() -> dict[str, Any]:
    file = {"type": "string", "format": "binary"}
    schema = {"type": "object", "required": ["file"], "properties": {"file": file}}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


def _body(endpoint: Endpoint) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _schema(parameter) for name, parameter in endpoint.parameters.items()},
        "additionalProperties": endpoint.any_argument,
    }
    if endpoint.required:
        schema["required"] = endpoint.required
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _query(parameter: Parameter) -> dict[str, Any]:
    query = {"name": parameter.name, "in": "query", "required": parameter.required}
    if dict in parameter.kinds:
        return query | {"content": {"application/json": {"schema": {"type": "object"}}}}
    return query | {"schema": _schema(parameter, nullable=False)}


def _any_query() -> dict[str, Any]:
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    return {"name": "arguments", "in": "query", "style": "form", "explode": True, "schema": schema}


def _schema(parameter: Parameter, *, nullable: bool = True) -> dict[str, Any]:
    alternatives = [_of(kind, parameter.element) for kind in parameter.kinds]
    if nullable and not parameter.required and parameter.default is None:
        alternatives.append({"type": "null"})
    schema = alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
    if not parameter.required and parameter.default is not None:
        schema = schema | {"default": parameter.default}
    return schema


def _of(kind: type, element: type | None) -> dict[str, Any]:
    if kind is list:
        items = {} if element is None or element is Any else _of(element, None)
        return {"type": "array", "items": items}
    if kind is types.NoneType:
        return {"type": "null"}
    schema: dict[str, Any] = {"type": _TYPES[kind]}
    if kind is int:
        schema |= {"minimum": -_LARGEST, "maximum": _LARGEST}
    return schema
