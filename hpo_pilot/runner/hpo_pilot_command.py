"""Writes the parameters of a point into the payload's command.

hpo_pilot_runner.py loads this file if the command has parameters in braces. Standard library only, Python 3.6 syntax.
"""

import json
import re
import shlex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

#: Text that Hydra reads as the same text without quotes.
PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[a-z_][\w/.-]*$", re.IGNORECASE | re.ASCII)


def fill(command: str, pattern: str, point: "Dict[str, Any]") -> str:
    """Return the command with the values of the point, each quoted for the shell as one word.

    Args:
        command: with `{name}`, `{--flag:name}`, `{hydra}` and `{{text}}`.
        pattern: of these; its groups are the text, the flag and the name.
        point: the values of the active parameters.
    """

    def written(found: "Any") -> str:
        text, flag, name = found.groups()
        if text:
            return "{%s}" % text
        if name not in point:
            return overrides(point) if name == "hydra" else "" if flag else "''"
        value = point[name]
        if not flag:
            return word(value)
        if isinstance(value, bool):
            return str(flag.rstrip("=")) if value else ""
        return str(flag) + " " * (not flag.endswith("=")) + word(value)

    return re.sub(pattern, written, command)


def word(value: "Any") -> str:
    """Return a value as one word of a shell: text as it is, anything else as in input.json."""
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))


def overrides(point: "Dict[str, Any]") -> str:
    """Return the point as overrides of Hydra, such as `learning_rate=0.01 layers=2`."""
    return " ".join(shlex.quote("%s=%s" % (name, hydra(value))) for name, value in point.items())


def hydra(value: "Any") -> str:
    """Return a value in Hydra's grammar of overrides, so that text stays text; `${` is no interpolation.

    Source: https://hydra.cc/docs/advanced/override_grammar/basic/; in quotes only backslashes before a quote count.
    """
    if isinstance(value, list):
        return "[%s]" % ",".join(map(hydra, value))
    if isinstance(value, dict):
        return "{%s}" % ",".join("%s:%s" % (key, hydra(each)) for key, each in value.items())
    if not isinstance(value, str):
        return json.dumps(value)
    if PLAIN.match(value):
        return value
    value = re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return "'%s'" % re.sub(r"(\\*)('|$)", lambda end: 2 * end.group(1) + ("\\'" if end.group(2) else ""), value)
