"""Values as the YAML of a search file: on one line, readable by YAML 1.1 and 1.2 alike."""

from __future__ import annotations

import re
from typing import Any

import yaml

from hpo_pilot.config.yaml_scalar import STR, plain_tag

_PLAIN = re.compile(r"[A-Za-z0-9_./](?:[A-Za-z0-9_./ -]*[A-Za-z0-9_./-])?\Z")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def flow(value: Any) -> str:
    """Any value of plain Python types, in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _number(value)
    return _text(value) if isinstance(value, str) else str(value)


def _number(value: float) -> str:
    text = repr(value)
    mantissa, exponent, power = text.partition("e")
    # YAML 1.1 takes a number with an exponent for text, unless there is a point in it and a sign behind the e.
    if exponent and "." not in mantissa:
        mantissa += ".0"
    if exponent and power[0] not in "+-":
        power = "+" + power
    return mantissa + exponent + power


def _text(text: str) -> str:
    if _PLAIN.match(text) and plain_tag(text) == STR and yaml.safe_load(text) == text:
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
