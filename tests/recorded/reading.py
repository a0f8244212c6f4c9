"""What users read: documents of commands, columns, figures, the REST API and the other addresses of a service."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import yaml

from tests.command_here import command_here
from tests.recorded.inside import open_search
from tests.recorded.neutral import REPOSITORY, shape
from tests.recorded.scenario import NAMES
from tests.recorded.stage import Kept, Stage, definition, part
from tests.report.figures.made_up import KEYS

#: Options and commands that go on purpose: nothing of them is recorded.
_GOING = {"hpo-pilot relay", "--dn-header", "--dn-roles", "--trusted-proxy", "--tls"}
_FOREIGN = {
    "phpo.json": {"maxPoints": 4, "searchSpaceFile": "space.json", "evaluationExec": "python x.py"},
    "space.json": {"x": {"method": "uniform", "dimension": {"low": 0, "high": 1}}},
}
_WIDE = {"nodes": 2, "gpus_per_node": 4, "cores": 8, "memory_mb": 500, "minutes": 30}
_SITES = ("frontier", "generic-lsf", "generic-pbs", "generic-slurm", "grid", "local", "perlmutter", "summit")


@part
def documents(stage: Stage) -> dict[str, Any]:
    """Every command's --json and exit status, on the kept folder."""
    kept = stage.reading
    found = {"list": kept.json("list")}
    for name in [*NAMES, "family"]:
        found[f"status {name}"] = kept.json("status", name)
    for name in NAMES:
        for command in ("trials", "best", "log"):
            found[f"{command} {name}"] = kept.json(command, name)
    found["trials --log"] = kept.json("trials", "plain", "--log")
    found["report"] = kept.run("report", "plain")[0]
    found["fetch"] = kept.json("fetch", "best", "plain", "-o", "fetched")
    found["fetched"] = sorted(
        [str(path.relative_to(kept.root)), path.read_text()] for path in kept.root.glob("fetched/**/*.txt")
    )
    for path in sorted(kept.root.glob("*.yaml")):
        found[f"validate {path.stem}"] = kept.json("validate", path.name)
    found |= _definitions(kept)
    return found | _changes(stage.kept("changed"))


def _definitions(kept: Kept) -> dict[str, Any]:
    """What is said of search files, sites, other tools' files, tokens."""
    root = kept.root
    (root / "wrong.yaml").write_text(
        "search: wrong\nspase: {}\nspace:\n  x: {type: real, low: 2, high: 1}\n  y: {type: int, low: 1}\n"
        "budget: {trials: 0}\npayload: {files: nowhere, command: ''}\n"
    )
    (root / "wide.yaml").write_text(definition("wide", site={"profile": "summit"}, resources=_WIDE))
    (root / "slim.yaml").write_text(definition("slim"))
    (root / "site.yaml").write_text("name: odd\nnodes: none\n")
    for name, document in _FOREIGN.items():
        (root / name).write_text(json.dumps(document))
    found = {f"validate {name}": kept.json("validate", f"{name}.yaml") for name in ("wrong", "wide")}
    found["sites"] = kept.json("sites")
    for site in _SITES:
        found[f"sites show {site}"] = kept.json("sites", "show", site)
    found["sites check"] = kept.json("sites", "check", "site.yaml")
    for site, name in (("local", "slim"), ("summit", "wide"), ("perlmutter", "wide")):
        planned = kept.json("plan", f"{name}.yaml", "--site", site)
        found[f"plan {site}"] = planned
    found["import phpo"] = kept.json("import", "phpo", "phpo.json")
    found["pilots list"] = kept.json("pilots", "list")
    found["token create"] = kept.run("token", "create", "--name", "ada", "-o", "ada.token")[0]
    tokens = kept.json("token", "list")
    found["token list"] = tokens | {"json": shape(tokens["json"])}
    doctor = kept.json("doctor")
    found["doctor"] = {"what": sorted({one["what"] for one in doctor["json"]}), "shape": shape(doctor["json"])}
    return found


def _changes(kept: Kept) -> dict[str, Any]:
    """Commands that change a search, and calls that are refused."""
    calls = [
        ("pause", "midway"),
        ("try", "midway", "x=0.5", "y=0.5"),
        ("extend", "midway", "--trials", "+3", "--parallel", "4"),
        ("resume", "midway"),
        ("resume", "midway", "--new-payload"),
        ("retry", "folded"),
        ("retry", "lossy", "--trial", "2"),
        ("stop", "midway"),
        ("submit", "slim.yaml"),
        ("submit", "plain.yaml"),
        ("run", "warm.yaml"),
        ("extend", "midway", "--hours", "+2"),
        # Refused:
        ("status", "nobody"),
        ("best", "99"),
        ("retry", "plain", "--trial", "4"),
        ("try", "plain", "x=0.5"),
        ("extend", "plain"),
        ("fetch", "7", "folded"),
        ("submit", "nowhere.yaml"),
        ("trials",),
        ("nonsense",),
    ]
    (kept.root / "slim.yaml").write_text(definition("slim"))
    return {" ".join(words): kept.json(*words) for words in calls}


@part
def options(stage: Stage) -> dict[str, Any]:
    """Every command of the manual with its options, as --help has them; the texts are in the manual itself."""
    manual = (REPOSITORY / "hpo_pilot" / "manual" / "commands.md").read_text()
    found = {}
    for words in [[], *(line.split() for line in re.findall(r"^## hpo-pilot (.+)$", manual, re.MULTILINE))]:
        done = command_here(*words, "--help")
        named = sorted(set(re.findall(r"--[a-z][\w-]*", done.stdout)) - _GOING) if words else []
        found[" ".join(["hpo-pilot", *words])] = [done.returncode, *named]
    return {command: named for command, named in found.items() if command not in _GOING}


@part
def columns(stage: Stage) -> dict[str, Any]:
    """Columns and rows of tables: printed ones, CSV, JSON, Parquet, hpogrid's report, the notebook."""
    kept, found = stage.reading, {}
    for words in (("list",), *(("trials", name) for name in NAMES), ("sites",), ("log", "plain")):
        lines = kept.run(*words)[1].splitlines()
        found[f"printed {' '.join(words)}"] = lines[0].split() if words[0] != "log" else len(lines)
    found["printed logs"] = [kept.neutral(kept.run("logs", "plain", "2")[1]), kept.run("logs", "plain", "4")[0]]
    for name in NAMES:
        text = kept.run("export", name, "--format", "csv")[1]
        found[f"csv {name}"] = kept.neutral(list(csv.reader(io.StringIO(text))))
    for form in ("json", "hpogrid-report"):
        for name in ("plain", "folded", "front"):
            status, text, _ = kept.run("export", name, "--format", form)
            found[f"{form} {name}"] = [status, kept.neutral(json.loads(text))] if status == 0 else status
    import pyarrow.parquet

    for name in NAMES:
        path = kept.root / f"{name}.parquet"
        assert kept.run("export", name, "--format", "parquet", "-o", str(path))[0] == 0
        table = pyarrow.parquet.read_table(path)
        fields = [[field.name, str(field.type), field.nullable] for field in table.schema]
        meta = sorted(key.decode() for key in table.schema.metadata or {})
        found[f"parquet {name}"] = {"fields": fields, "metadata": meta, "rows": table.num_rows}
        if name in ("plain", "folded"):
            found[f"parquet {name}"]["values"] = kept.neutral(json.loads(json.dumps(table.to_pylist(), default=str)))
    for name in NAMES:
        with open_search(name, kept.workdir) as search:
            for frame in ("trials", "folds", "intermediate", "front"):
                if frame != "front" or name == "front":
                    made = getattr(search, frame)
                    kinds = [[str(column), str(kind)] for column, kind in made.dtypes.items()]
                    index = [str(one) for one in made.index.names]
                    found[f"frame {frame} {name}"] = {"index": index, "columns": kinds, "rows": len(made)}
    return found


@part
def figures(stage: Stage) -> dict[str, Any]:
    """Figures of the notebook: kinds, names and axes of what is drawn; headings of the report."""
    kept, found = stage.reading, {}
    plots = [KEYS[0], "front", *KEYS[1:]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("plain", "folded", "front", "stopped", "lossy", "family-one", "midway"):
            with open_search(name, kept.workdir) as search:
                for plot in plots:
                    drawn = getattr(search, f"plot_{plot}")()
                    every = drawn if isinstance(drawn, list) else [drawn]
                    found[f"{name} {plot}"] = [_outline(figure.to_plotly_json()) for figure in every]
    for name in ("plain", "folded", "front", "stopped"):
        path = kept.root / f"{name}.html"
        assert kept.run("report", name, "-o", str(path))[0] == 0
        text = path.read_text()
        headings = re.findall(r"<(h[1-4]|th|figcaption|summary)\b[^>]*>(.*?)</\1>", text, re.DOTALL)
        said = [[tag, " ".join(re.sub(r"<[^>]+>", " ", inner).split())] for tag, inner in headings]
        found[f"report {name}"] = kept.neutral([list(pair) for pair in dict.fromkeys(map(tuple, said))])
    return found


def _outline(figure: dict[str, Any]) -> dict[str, Any]:
    """A figure without its floats."""
    layout = figure["layout"]
    traces = []
    for trace in figure["data"]:
        sizes = {key: len(trace[key]) for key in ("x", "y", "z", "text", "customdata") if _sized(trace.get(key))}
        named = {key: trace[key] for key in ("type", "name", "mode", "orientation", "hovertemplate") if trace.get(key)}
        dimensions = [one.get("label") for one in trace.get("dimensions") or ()]
        traces.append({**named, "sizes": sizes, **({"dimensions": dimensions} if dimensions else {})})
    axes = {
        key: {"title": (axis.get("title") or {}).get("text"), "type": axis.get("type")}
        for key, axis in sorted(layout.items())
        if re.match(r"[xyz]axis\d*$", key)
    }
    notes = [note.get("text") for note in layout.get("annotations") or ()]
    return {"title": (layout.get("title") or {}).get("text"), "traces": traces, "axes": axes, "notes": notes}


def _sized(values: Any) -> bool:
    return hasattr(values, "__len__") and not isinstance(values, str | dict)


@part
def rest(stage: Stage) -> dict[str, Any]:
    """The REST API's description and answers, the pages, BigPANDA's JSON, of a running service."""
    service, neutral = stage.served, stage.reading.neutral
    api = f"{service.api}/api/v1"
    found: dict[str, Any] = {"openapi": _calls(service.get(f"{api}/openapi.json").json())}

    def look(path: str, role: str | None = "user", **arguments: Any) -> Any:
        answer = service.get(f"{api}/{path}", role, **arguments)
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        body = neutral(answer.json()) if kind.endswith("json") else len(answer.content) > 0
        return [answer.status_code, kind, body]

    found["searches"] = shape(look("searches"))
    for name in NAMES:
        for path in ("", "/trials", "/best", "/events", "/intermediate", "/progress"):
            document = look(f"searches/{name}{path}")
            # The kept documents are compared whole as commands print them; here those that REST alone has.
            found[f"{path} {name}"] = document if path in ("/intermediate", "/progress") else shape(document)
    found["page of trials"] = look("searches/folded/trials", after=2, limit=2)
    for path in ("health", "service", "searches/plain/report", "searches/plain/outputs/best", "searches/nobody", "no"):
        found[path] = look(path)
    found["export"] = {form: look("searches/plain/export", format=form)[:2] for form in ("csv", "parquet", "nonsense")}
    found["refused"] = [look("searches", role)[0] for role in (None, "pilot")]
    found["pages"] = {path: _page(service.get(f"{service.api}{path}", None)) for path in ("/", "/login", "/searches/1")}
    for path in ("tasks/", "jobs/", "task/1/", "job/1/"):
        days = {"days": "400"} if path.endswith("s/") else {}
        answer = service.get(f"{service.panda}/{path}", json="true", **days)
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        found[f"bigpanda {path}"] = [answer.status_code, shape(answer.json()) if kind.endswith("json") else kind]
    return found


def _calls(description: dict[str, Any]) -> dict[str, Any]:
    """Of each call its arguments, its answers and their schemas, without prose and examples."""
    return {
        "calls": {
            f"{method} {path}": _bare(call)
            for path, item in description["paths"].items()
            for method, call in item.items()
        },
        "schemas": _bare(description["components"]["schemas"]),
    }


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        prose = ("description", "summary", "example", "examples", "operationId", "tags", "title")
        return {key: _bare(item) for key, item in value.items() if key not in prose or not _is_prose(item)}
    return [_bare(item) for item in value] if isinstance(value, list) else value


def _is_prose(value: Any) -> bool:
    """A property may be called so too: it has a schema then."""
    return not (isinstance(value, dict) and ("type" in value or "$ref" in value or "anyOf" in value))


def _page(answer: Any) -> list[Any]:
    return [
        answer.status_code,
        answer.headers.get("Location"),
        sorted(set(re.findall(r"<form[^>]*action=\"[^\"]*", answer.text))),
    ]


@part
def sites(stage: Stage) -> dict[str, Any]:
    """The job script of each site profile, and the task parameters of a first generation."""
    kept, found = stage.kept("scripts"), {}
    for site in _SITES:
        words = ["--nodes", "2", "--walltime", "1:00", "--account", "abc", "--server", "https://panda.example.org"]
        with tempfile.TemporaryDirectory(prefix="folder-") as folder:
            (Path(folder) / "pilot.token").write_text("token")
            (Path(folder) / "pilot.token").chmod(0o600)
            words += ["--token-file", f"{folder}/pilot.token", "--folder", f"{folder}/shared", "--dry-run"]
            status, script, _ = kept.run("pilots", "submit", "--site", site, *words)
            text = kept.neutral(script.replace(folder, "<folder>"))
        text = re.sub(r"\b[0-9a-f]{8}\b", "<uid>", text)
        found[f"pilots submit {site}"] = [status, *text.splitlines()]
    for path in sorted(kept.root.glob("*.yaml")):
        search = yaml.safe_load(path.read_text())
        status, text, _ = kept.run("submit", path.name, "--dry-run")
        found[f"submit {search['search']}"] = [status, _parameters(kept, text)]
    return found


def _parameters(kept: Kept, text: str) -> Any:
    start = text.find("{")
    try:
        return kept.neutral(json.loads(text[start:]))
    except ValueError:
        return [kept.neutral(line) for line in text.splitlines()]
