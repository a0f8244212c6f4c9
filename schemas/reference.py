"""The manual's reference pages, generated from the search file's schema and from the commands.

python -m schemas.reference            writes them
python -m schemas.reference --check    exits 1 and names the stale ones, if there are any
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from typer.main import get_command

from hpo_pilot.cli.main import app
from hpo_pilot.manual import Page, page_named
from hpo_pilot.pilot.__main__ import parser
from schemas.write import schema_of

#: The sections of a search file, in the order in which people usually write them.
_ORDER = (
    *("search", "objective", "limits", "space", "constraints", "prior", "start", "known", "warm_start", "segments"),
    *("optimizer", "budget", "folds", "confirm", "early_stopping", "fidelity", "payload", "resources", "site"),
    *("panda", "notify", "seed"),
)

#: A command that has only the options common to all commands on searches.
_LISTER = "list"

_SEARCH_FILE_HEAD = """# The search file

Generated from the models that check it, as is `schemas/search.json`, which gives completion and checks in editors.
Unknown keys, inverted bounds, wrong types, impossible constraints and jobs that the site cannot hold are refused before
anything is submitted, with line, column and what was probably meant: `hpo-pilot validate FILE`. It
also asks about probable slips: a metric such as `accuracy` without `goal`, a linear scale over three decades, a program
that is not in PATH, years of trials. `1e-4` is a number here.
"""

_COMMANDS_HEAD = """# Commands

Generated from the commands themselves; `hpo-pilot COMMAND --help` says the same. An ID is a search's name or number.
Exit status: 0 done; 1 the search ended without a usable result; 2 your input; 3 try again. `--json` prints documents
whose fields `schemas/cli/` describes.

Commands that read searches also take:

| option | meaning |
|---|---|
{common}
"""


def search_file_page() -> str:
    """Returns the page on search files."""
    schema = schema_of("search.json")
    definitions = schema["$defs"]
    unknown = set(schema["properties"]) ^ set(_ORDER)
    if unknown:
        raise ValueError(f"the order of the page's sections differs from the schema by {', '.join(sorted(unknown))}")
    parts = [_SEARCH_FILE_HEAD]
    for name in _ORDER:
        described = schema["properties"][name]
        parts.append(f"## {name}\n")
        targets = list(_objects(described, definitions))
        words = described.get("description") or (targets[0][1].get("description", "") if len(targets) == 1 else "")
        needed = " Required." if name in schema["required"] else ""
        parts.append(f"{words}{needed}\n")
        if not targets:
            given = _default(described)
            parts.append(_kind(described, definitions).capitalize() + (f"; default: {given}.\n" if given else ".\n"))
        for title, target in targets:
            if len(targets) > 1:
                parts.append(f"### {title}\n\n{target.get('description', '')}\n")
            parts.append(_table(target, definitions))
    return "\n".join(parts)


def commands_page() -> str:
    """Returns the page on commands."""
    root: Any = get_command(app)
    context = typer.Context(root, info_name="hpo-pilot")
    lister = root.get_command(context, _LISTER)
    common = {row: None for one in lister.params if (row := _parameter(one, typer.Context(lister)))}
    parts = [_COMMANDS_HEAD.format(common="\n".join(common))]
    for path, command in _commands(root, context, ("hpo-pilot",)):
        parts.append(f"## {' '.join(path)}\n")
        own = typer.Context(command, info_name=path[-1])
        if command.name == "pilot":  # its own parser: it starts on worker nodes, without ours
            parts.append("Run a pilot: take jobs of a queue from a PanDA server and run them here.\n")
            parts.append(_pilot_options())
            continue
        parts.append((command.help or "").replace("\b", "").strip() + "\n")
        usage = " ".join(piece.strip("{}") for piece in command.collect_usage_pieces(own))
        parts.append(f"```\n{' '.join(path)} {usage}\n```\n")
        rows = [row for one in command.params if (row := _parameter(one, own)) and row not in common]
        if rows:
            parts.append("| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _commands(command: Any, context: typer.Context, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child.hidden:
            continue
        if hasattr(child, "list_commands"):
            yield from _commands(child, typer.Context(child, parent=context, info_name=name), (*path, name))
        else:
            yield (*path, name), child


def _parameter(parameter: Any, context: typer.Context) -> str | None:
    record = parameter.get_help_record(context)
    if record is None or "--help" in parameter.opts:
        return None
    names, text = record
    if not names.startswith("-"):
        names = names.split()[0]  # an argument's type says nothing more
    return f"| {_cell(f'`{names}`')} | {_cell(text)} |"


def _pilot_options() -> str:
    rows = []
    for action in parser()._actions:  # argparse has no other way to list what it takes
        if not action.option_strings or action.help == "==SUPPRESS==" or "--help" in action.option_strings:
            continue
        metavar = "" if action.nargs == 0 else f" `{action.metavar or (action.dest or '').upper()}`"
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        text = (action.help or "") % {"default": action.default, "prog": "hpo-pilot pilot"}
        rows.append(f"| {_cell(names + metavar)} | {_cell(text)} |")
    return "| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def _objects(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields title and schema of each section that `schema` allows and that has its own keys, each once."""
    seen: set[str] = set()

    def walk(part: Mapping[str, Any], title: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if "$ref" in part:
            name = part["$ref"].rsplit("/", 1)[-1]
            if name not in seen:
                seen.add(name)
                yield from walk(definitions[name], name)
            return
        if isinstance(part.get("properties"), dict):
            yield part.get("properties", {}).get("type", {}).get("const") or title, part
            return
        for key in ("anyOf", "oneOf", "allOf"):
            for one in part.get(key, ()):
                yield from walk(one, title)
        for key in ("items", "additionalProperties"):
            if isinstance(part.get(key), dict):
                yield from walk(part[key], title)

    yield from walk(schema, "")


def _table(section: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    rows = ["| key | meaning | type | default |", "|---|---|---|---|"]
    required = set(section.get("required", ()))
    for name, described in section["properties"].items():
        if "const" in described:
            rows.append(f"| `{name}` | Says which kind this is. | `{described['const']}` | required |")
            continue
        default = "required" if name in required else _default(described)
        kind = _kind(described, definitions)
        rows.append(f"| `{name}` | {_cell(_words(described, definitions))} | {_cell(kind)} | {_cell(default)} |")
    return "\n".join(rows) + "\n"


def _words(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if schema.get("description"):
        return str(schema["description"])
    if "$ref" in schema:
        return str(definitions[schema["$ref"].rsplit("/", 1)[-1]].get("description", ""))
    return ""


def _kind(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        target = definitions[schema["$ref"].rsplit("/", 1)[-1]]
        return "section" if "properties" in target else _kind(target, definitions)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            kinds = [_kind(one, definitions) for one in schema[key]]
            return " or ".join(dict.fromkeys(kinds))
    if schema.get("type") == "array":
        items = schema.get("items")
        return f"list of {_kind(items, definitions)}" if items else "list"
    if schema.get("type") == "object":
        return "section" if "properties" in schema else "map"
    limits = [
        f"{sign} {schema[key]:,}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in schema
    ]
    return f"{schema.get('type', 'anything')} {', '.join(limits)}".rstrip()


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return ""
    default = schema["default"]
    if isinstance(default, dict) and default:
        return "as its keys say"
    return "–" if default is None else f"`{json.dumps(default)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _pages() -> dict[Page, str]:
    return {page_named("search-file"): search_file_page(), page_named("commands"): commands_page()}


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    stale = []
    for page, text in _pages().items():
        if page.path.is_file() and page.path.read_text(encoding="utf-8") == text:
            continue
        stale.append(page.path.name)
        if "--check" not in arguments:
            page.path.write_text(text, encoding="utf-8")
    if "--check" in arguments:
        for name in stale:
            sys.stderr.write(f"hpo_pilot/manual/{name} is not what schema and commands say: run `make schemas`\n")
        return 1 if stale else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
