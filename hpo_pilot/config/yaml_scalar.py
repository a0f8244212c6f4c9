"""What a plain (unquoted) YAML scalar means: the core schema of YAML 1.2.

PyYAML follows YAML 1.1, where `1e-4` is text, `010` is eight, `1:30` is ninety, `no` is false and `2024-01-01` a date.
In a search file they are a number, ten, text, text and text.
"""

from __future__ import annotations

import math
import re

NULL = "tag:yaml.org,2002:null"
BOOL = "tag:yaml.org,2002:bool"
INT = "tag:yaml.org,2002:int"
FLOAT = "tag:yaml.org,2002:float"
STR = "tag:yaml.org,2002:str"
MERGE = "tag:yaml.org,2002:merge"

#: Longer numbers are mistakes; Python itself refuses to read more than 4300 digits.
MAX_DIGITS = 300

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")

_UNUSABLE = re.compile("[\\0\\ud800-\\udfff]")


def plain_tag(text: str) -> str:
    """The tag of a plain scalar."""
    if _NULL.match(text):
        return NULL
    if _BOOL.match(text):
        return BOOL
    if _INT.match(text):
        return INT
    if _FLOAT.match(text) or _NOT_FINITE.match(text):
        return FLOAT
    return MERGE if text == "<<" else STR


def scalar_value(tag: str, text: str) -> bool | int | float | str | None:
    """The native value of a scalar with a core tag.

    Raises:
        ValueError: the text is not of the tag's type, or a number that no search can use; the message says why.
    """
    if tag in (STR, MERGE):
        if _UNUSABLE.search(text):
            raise ValueError("has a null character or half a surrogate pair, which no file name or store takes")
        return text
    found = plain_tag(text)
    if tag == FLOAT and found in (INT, FLOAT):
        return _float(text)
    if found != tag:
        raise ValueError(f"{text!r} is not of the type that its tag names")
    if tag == NULL:
        return None
    if tag == BOOL:
        return text.lower() == "true"
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits is too long")
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def _float(text: str) -> float:
    if _NOT_FINITE.match(text):
        raise ValueError(f"must be a finite number, not {text}")
    value = float(int(text, 0)) if text.startswith(("0o", "0x")) else float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is larger than the largest number, 1.8e308")
    return value
