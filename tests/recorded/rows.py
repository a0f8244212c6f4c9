"""What the code of today makes of the story: rows, jobs, sandboxes, metrics, and what a payload sees."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from typing import Any

from tests.command_here import command_here
from tests.recorded.neutral import REPOSITORY, Neutral
from tests.recorded.scenario import NAMES
from tests.recorded.service import COMMAND, ScriptedPilot, Service, environment, until
from tests.recorded.stage import Stage, definition, part

_PAYLOAD = """
import json, os
here = sorted(os.path.relpath(os.path.join(at, name)) for at, _, names in os.walk(".") for name in names)
json.dump({"variables": sorted(os.environ), "files": here, "job": json.load(open("job.json"))}, open("seen.txt", "w"))
json.dump({"status": 0, "loss": json.load(open("input.json"))["x"], "accuracy": 0.5}, open("output.json", "w"))
open("progress.jsonl", "w").write('{"step": 1, "loss": 0.5}\\n')
"""
#: Variables of the shell that the tests run in, which payloads inherit.
_OF_THE_MACHINE = re.compile(r"(?!HPO_PILOT_|PANDA|PYTHON)")


@part
def rows(stage: Stage) -> dict[str, Any]:
    """Trials, events and states of the story, told anew."""
    story = stage.story
    neutral = Neutral({str(story.root): "<folder>"})
    found = {}
    for name in NAMES:
        trials = neutral(story.service.trials(name))
        for trial in trials:
            for fold in trial["folds"]:
                if name.startswith("family"):
                    fold["panda_id"] = "<any>"  # the segments are submitted side by side, in any order
        found[f"trials {name}"] = trials
        found[f"events {name}"] = [
            [one["who"], neutral(one["what"])] for one in story.service.searches(f"/{name}/events")
        ]
        status = story.service.searches(f"/{name}")
        found[f"status {name}"] = {key: neutral(status[key]) for key in ("state", "trials", "over", "planned")}
    return found


@part
def jobs(stage: Stage) -> dict[str, Any]:
    """Jobs as pilots get them, and the sandboxes that they name."""
    story = stage.story
    neutral = Neutral({str(story.root): "<folder>"})
    found: dict[str, Any] = {}
    whole = {"plain trial 1", "front trial 1"}
    for job in story.jobs:
        first = job.parts[0]
        name = f"{first.search} trial {first.trial}"
        if first.search.startswith("family"):
            continue  # its segments are submitted side by side, in any order
        parameters = neutral(job.document["jobPars"])
        found[f"{name} fold {first.fold} attempt {job.attempt}"] = parameters
        if name in whole:
            found[name] = {key: item for key, item in neutral(job.document).items() if key != "hpoPilotPoints"}
            found[f"{name} table"] = neutral(job.table)
    sandboxes = []
    for archive in story.workdir.glob("sandboxes/*.tar.gz"):
        with tarfile.open(archive) as packed:
            sandboxes.append(sorted([member.name, member.isfile(), oct(member.mode)] for member in packed))
    # Their names are digests, which follow every change of the runner.
    found["sandboxes"] = sorted(sandboxes)
    return found


@part
def names(stage: Stage) -> dict[str, Any]:
    """Names of metrics with their labels, of log fields, and of the environment variables that the package reads."""
    story = stage.story
    service = story.service

    def told() -> str:
        text = service.get(f"{service.api}/metrics").text
        return text if re.search(r"^hpo_pilot_results_told_total [1-9]", text, re.MULTILINE) else ""

    found: dict[str, Any] = {
        "metrics of the service": _metrics(until(told, "the steering's figures")),
        "metrics of the server": _metrics(service.get(f"{service.panda}/metrics", "pilot").text),
    }
    lines = (service.log.read_text() + (story.workdir / "logs" / "api.log").read_text()).splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    found["log fields"] = sorted({key for record in records for key in record})
    sources = [path.read_text() for path in (REPOSITORY / "hpo_pilot").rglob("*.py")]
    pattern = r"[\"'](HPO_PILOT_[A-Z_]+|PANDA[A-Z]*_[A-Z_]+|OIDC_[A-Z_]+|X509_[A-Z_]+|RUCIO_[A-Z_]+)[\"']"
    found["variables"] = sorted({name for text in sources for name in re.findall(pattern, text)})
    return found


@part
def payload(stage: Stage) -> dict[str, Any]:
    """What a payload sees: variables, files, job.json; metrics of a pilot; the runner's document of a fold."""
    root = stage.folder("payload")
    (root / "training").mkdir()
    (root / "training" / "train.py").write_text(_PAYLOAD)
    section = {"files": "training", "command": "python3 -I -S train.py %FOLD %FOLDS", "outputs": ["seen.txt"]}
    budget = {"trials": 1, "parallel": 1}
    (root / "seen.yaml").write_text(definition("seen", budget=budget, payload=section, folds=2))
    argv = [COMMAND, "run", "seen.yaml", "--workdir", "work", "--slots", "1"]
    done = subprocess.run(argv, cwd=root, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    where = ("--workdir", str(root / "work"))
    assert command_here("fetch", "best", "seen", "-o", str(root / "out"), *where).returncode == 0
    neutral = Neutral({str(root): "<folder>"})
    found: dict[str, Any] = {}
    for fold, path in enumerate(sorted((root / "out").rglob("seen.txt"))):
        seen = json.loads(path.read_text())
        seen["variables"] = [name for name in seen["variables"] if not _OF_THE_MACHINE.match(name)]
        found[f"fold {fold}"] = neutral(seen)
    (trial,) = json.loads(command_here("trials", "seen", "--json", *where).stdout)
    for fold in trial["folds"]:
        fold["seconds"] = "<clock>"
    trial["cost"] = sorted(trial["cost"])
    found["trial"] = neutral(trial)
    return found


@part
def going_on(stage: Stage) -> dict[str, Any]:
    """The search that the kept folder has midway goes on, to its end, with the code of today."""
    kept = stage.kept("going-on")
    with Service(kept.workdir) as service:
        pilot = ScriptedPilot(service.panda, service.token("pilot"))
        # Two jobs are at the pilot of the recording, trial 2's; it would be lost after a minute of silence.
        first = service.trials("midway")[0]["folds"][0]["panda_id"]
        for job_id in (first + 2, first + 3):
            lost = {"job_id": job_id, "attempt_nr": 1, "job_status": "failed", "site_name": "LOCAL"}
            pilot.call("update_job", **lost, pilot_error_code=1305)

        def over() -> bool:
            for job in sorted(pilot.acquire(), key=lambda job: job.id):
                pilot.finish(job, lambda part: {"values": [part.trial / 4 + part.fold / 8]})
            return service.searches("/midway")["ended"] is not None

        until(over, "the end of midway")
        found = {"state": service.searches("/midway")["state"]}
        for trial in service.trials("midway"):
            shown = [trial[key] for key in ("state", "point", "value", "std")]
            found[f"trial {trial['number']}"] = [*shown, [fold["attempt"] for fold in trial["folds"]]]
        return found


def _metrics(text: str) -> list[str]:
    """Names with their kind and their labels; the Python runtime's own figures left out."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = {name: set() for name in kinds}
    for name, inner in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        base = name if name in kinds else re.sub(r"_(bucket|sum|count|total|created)$", "", name)
        labels.setdefault(base, set()).update(re.findall(r"(\w+)=\"", inner))
    return sorted(
        f"{name} {kind} {' '.join(sorted(labels[name]))}".strip()
        for name, kind in kinds.items()
        if not name.startswith(("python_", "process_")) and not name.endswith("_created")
    )
