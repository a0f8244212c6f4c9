#!/usr/bin/env python3
"""Runs several hyper-parameter points one after another in one job.

    python3 -I -S hpo_pilot_runner.py --task <table of points> --number <n>

In the sandbox of a search with trials_per_job above 1 this file has the runner's name, the runner of one point is
hpo_pilot_point.py, and the payload's files are in payload/. Each point runs in its own folder t<trial>f<fold> with its
own copy of the files. All points share the job's time limit. A point starts only if it should fit, judging by the
points before. A point that did not run is reported as "not run", and the service submits it again. The first point has
the whole time, so for it the limit is a verdict. Verdicts are kept beside the checkpoints until the job has ended: the
next attempt of a lost job continues after them. Standard library only, Python 3.6 syntax.
"""

import base64
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Dict, List, Optional

POINT_RUNNER, PAYLOAD_FOLDER = "hpo_pilot_point.py", "payload"
PAYLOAD_FILE, STAGED_FILE, STOP_FILE = "hpo_pilot_payload.json", "hpo_pilot_inputs.json", "hpo_pilot_stop.txt"
RANKS_MODULE = "hpo_pilot_ranks.py"
VERDICT_FILE, OUTPUTS, PROGRESS, LOG = "userJobMetadata.json", "outputs.tar.gz", "progress.jsonl", "payload.log"
LIMIT = 900 * 1000  # bytes of all verdicts; PanDA accepts 1 MB of metadata
LOG_SHARED = 1000 * 1000  # bytes of the job's log for all points together
START = globals().get("START", subprocess.Popen)  # another one if hpo_pilot_function.py runs this file
FUNCTION_FILE = "hpo_pilot_function.py"  # there if the payload is a function
NOT_RUN = 2  # the status of a point that did not start or did not finish
#: Keys of a verdict that the metadata does not need: readers know them or find them elsewhere.
NOT_TOLD = ("checkpoint_dir", "nodes", "gpus", "folds", "search", "last_progress", "report")
#: How verdicts are shortened, step by step, if they are too large together: (key, characters or entries to keep).
SMALLER = (("log_tail", 8000), ("progress", 50), ("metadata", 0), ("log_tail", 500), ("metrics", 20), ("message", 200))
SMALLEST = (("progress", 2), ("log_tail", 0), ("metrics", 2), ("message", 60))


def load(path: str) -> "Any":
    """Read a JSON file."""
    with open(path, "rb") as file:
        return json.loads(file.read().decode("utf-8"))


def save(path: str, value: "Any") -> None:
    """Write a JSON file atomically."""
    with open(path + ".new", "w") as file:
        json.dump(value, file)
    os.rename(path + ".new", path)


def link(target: str, path: str) -> None:
    """Make a link, replacing an earlier one."""
    os.symlink(target, path + ".new")
    os.rename(path + ".new", path)


class Interrupted(Exception):
    """The point's runner ended without a verdict, for a reason of the machine and not of the payload."""


class Series:
    """The points of one job."""

    def __init__(self, task: str, index: str) -> None:
        self.process, self.told = None, False  # type: Optional[Any], bool
        self.verdicts = {}  # type: Dict[str, Dict[str, Any]]
        self.ran, self.longest, self.why = False, 0.0, ""  # why: the reason not to start another point
        try:
            self.table = json.loads(zlib.decompress(base64.urlsafe_b64decode(task + "===")).decode())
            self.payload = load(PAYLOAD_FILE)
            self.number, self.attempt = int(index), int(os.environ.get("PANDA_ATTEMPTNR") or 1)
            job = dict(enumerate(self.table["jobs"], 1))[self.number]
            self.members = job if isinstance(job[0], list) else [job]
            self.points = {trial: self.table["points"][str(trial)] for trial, _, _ in self.members}
            self.deadline = time.monotonic() + 60 * float(self.payload.get("minutes") or 1e7)
        except Exception as error:
            raise SystemExit("hpo_pilot_runner: --task or %s is broken: %r" % (PAYLOAD_FILE, error)) from error
        self.root = os.environ.get("HPO_PILOT_CHECKPOINT_ROOT") or os.path.abspath("hpo_pilot_checkpoints")
        # Identifies this job: PanDA's retries have the same key, a job of another task with the same points has not.
        job_key = "\0".join((task, index, os.environ.get("PanDA_TaskID", "")))  # noqa: SIM112  PanDA's spelling
        digest = hashlib.sha256(job_key.encode()).hexdigest()
        self.kept = os.path.join(self.root, self.table["uid"], "series-" + digest[:16])
        for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(which, self.pass_on)

    def pass_on(self, which: int, _: "Optional[FrameType]") -> None:
        """Pass a signal on to the running point and start no other."""
        self.told = True
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(which)

    def run(self) -> None:
        """Run the job; SystemExit or OSError if there is no verdict."""
        for trial, fold, seed in self.members:
            name = "t%df%d" % (trial, fold)
            verdict = self.from_before(name, seed) or self.turn(name, trial, fold, seed)
            self.verdicts[name] = verdict
            self.longest = max(self.longest, verdict.get("seconds") or 0.0)
        self.pack_outputs([name for name, verdict in self.verdicts.items() if verdict.get("outputs")])
        self.report()
        shutil.rmtree(self.kept, ignore_errors=True)

    def turn(self, name: str, trial: int, fold: int, seed: int) -> "Dict[str, Any]":
        """Run a point; returns its verdict, or the reason for none. After such a reason no other point starts."""
        began = time.monotonic()
        left = self.deadline - began if self.ran else None  # the first point has the whole time
        if not self.why and self.told:
            self.why = self.why_told()
        if not self.why and left is not None and left <= self.longest:
            self.why = "the job's %g minutes were nearly over" % self.payload["minutes"]
        if self.why:
            return {"status": NOT_RUN, "value": None, "message": self.why}
        self.ran = True
        try:
            verdict = self.run_point(name, trial, fold, seed, left)
            if verdict["cause"] == "limit" and left is not None:
                self.why = "the job's %g minutes were over" % self.payload["minutes"]
                return dict(verdict, status=NOT_RUN, message=self.why)
            self.keep(name, verdict)
        except (Interrupted, OSError) as error:
            self.why = self.why_interrupted(str(error))
            return {"status": NOT_RUN, "value": None, "message": self.why, "seconds": time.monotonic() - began}
        if verdict["cause"] == "term":
            self.why = "it was stopped, because its point before %s" % verdict["message"]
        shutil.rmtree(name, ignore_errors=True)
        return verdict

    def why_told(self) -> str:
        """Return why the next point does not start after a signal."""
        if not os.path.exists(STOP_FILE):
            sys.exit("hpo_pilot_runner: told to stop")
        with open(STOP_FILE) as file:
            return "it was stopped: " + file.read(1000)

    def why_interrupted(self, said: str) -> str:
        """Return why a point has no verdict. SystemExit: PanDA should retry the job."""
        if self.told:
            sys.exit("hpo_pilot_runner: told to stop")
        if said.endswith("the job step was cancelled"):  # the steps of the next points would be too
            sys.exit(said)
        lifeline = os.environ.get("HPO_PILOT_LIFELINE_FD", "-")
        if os.path.exists("/dev/fd/" + lifeline):
            poll = select.poll()
            poll.register(int(lifeline), select.POLLIN)
            if poll.poll(0):
                sys.exit("hpo_pilot_runner: the pilot died")
        if all(verdict["status"] == NOT_RUN for verdict in self.verdicts.values()):
            sys.exit(said)
        return "the next one came to no verdict: " + said

    def run_point(self, name: str, trial: int, fold: int, seed: int, left: "Optional[float]") -> "Dict[str, Any]":
        """Run one point in its own folder; returns its verdict. `left`: its seconds; None: the job's whole time."""
        self.prepare(name, left)
        table = dict(self.table, first=self.number, jobs=[[trial, fold, seed]], points={str(trial): self.points[trial]})
        task = base64.urlsafe_b64encode(zlib.compress(json.dumps(table).encode())).decode()
        runner = [sys.executable, "-I", "-S", os.path.abspath(POINT_RUNNER), "--task", task]
        env = dict(os.environ, HPO_PILOT_CHECKPOINT_ROOT=self.root)
        with open(os.path.join(name, "runner.log"), "wb+") as log:
            self.process = START(
                [*runner, "--number", str(self.number)], cwd=name, env=env, stdout=log, stderr=log, close_fds=False
            )
            if self.told:  # the signal came before the handler knew the process
                self.process.send_signal(signal.SIGTERM)
            code = self.process.wait()
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip()
        self.add_log(name)
        if said:
            print(said, flush=True)
        path = os.path.join(name, VERDICT_FILE)
        if code or not os.path.isfile(path):
            raise Interrupted(said.rpartition("\n")[2] or "hpo_pilot_runner: the point's runner ended with %d" % code)
        merged = load(path)
        if "hyperparameters" in self.payload:
            merged["hpo_pilot"]["report"] = hpogrid()["taken_out"](merged)
        verdict = merged.pop("hpo_pilot")  # type: Dict[str, Any]
        return dict(verdict, metadata=merged or None)

    def prepare(self, name: str, left: "Optional[float]") -> None:
        """Fill a point's folder."""
        shutil.rmtree(name, ignore_errors=True)
        if os.path.isdir(PAYLOAD_FOLDER):
            shutil.copytree(PAYLOAD_FOLDER, name, symlinks=True)
        else:
            os.mkdir(name)
        if os.path.exists(STAGED_FILE):
            for staged in load(STAGED_FILE):
                link(os.path.join("..", staged), os.path.join(name, staged))
            shutil.copy(STAGED_FILE, name)
        minutes = self.payload.get("minutes") if left is None else left / 60
        save(os.path.join(name, PAYLOAD_FILE), dict(self.payload, minutes=minutes))
        link(os.path.join("..", STOP_FILE), os.path.join(name, STOP_FILE))
        for module in filter(os.path.exists, (RANKS_MODULE, FUNCTION_FILE)):  # the payload may use them
            link(os.path.join("..", module), os.path.join(name, module))
        progress = (self.payload.get("file_names") or {}).get("progress") or PROGRESS
        link(os.path.join(name, progress), progress)  # shows the pilot which point runs

    def add_log(self, name: str) -> None:
        """Append the end of a point's log to the job's log."""
        path = os.path.join(name, LOG)
        if os.path.isfile(path):
            with open(path, "rb") as part, open(LOG, "ab") as whole:
                part.seek(max(0, part.seek(0, os.SEEK_END) - LOG_SHARED // len(self.members)))
                whole.write(("--- %s ---\n" % name).encode())
                shutil.copyfileobj(part, whole)

    def keep(self, name: str, verdict: "Dict[str, Any]") -> None:
        """Keep a verdict together with its outputs, atomically."""
        new = os.path.join(self.kept, ".%s.%d" % (name, os.getpid()))
        shutil.rmtree(new, ignore_errors=True)
        os.makedirs(new)
        save(os.path.join(new, VERDICT_FILE), verdict)
        if verdict.get("outputs"):
            shutil.move(os.path.join(name, OUTPUTS), os.path.join(new, OUTPUTS))
        os.rename(new, os.path.join(self.kept, name))

    def from_before(self, name: str, seed: int) -> "Optional[Dict[str, Any]]":
        """Return the verdict of an earlier attempt of this job, if there is one."""
        try:
            verdict = load(os.path.join(self.kept, name, VERDICT_FILE))  # type: Dict[str, Any]
            if verdict.get("outputs"):
                with tarfile.open(os.path.join(self.kept, name, OUTPUTS)) as part:
                    part.getmembers()
            return verdict if verdict["seed"] == seed else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, tarfile.TarError, zlib.error):
            shutil.rmtree(os.path.join(self.kept, name), ignore_errors=True)  # it may be incomplete
            return None

    def pack_outputs(self, names: "List[str]") -> None:
        """Pack the outputs of all points into one archive, each in a folder of its own."""
        if not names:
            return
        with tarfile.open(OUTPUTS + ".new", "w:gz", compresslevel=1) as packed:
            for name in names:
                with tarfile.open(os.path.join(self.kept, name, OUTPUTS)) as part:
                    for info in part:
                        info.name, info.pax_headers = name + "/" + info.name, {}
                        packed.addfile(info, part.extractfile(info))
        os.rename(OUTPUTS + ".new", OUTPUTS)

    def report(self) -> None:
        """Write the job's metadata: its identity and the verdict on each point."""
        who = {key: self.table[key] for key in ("search", "uid", "generation")}
        who.update(number=self.number, attempt=self.attempt, node=os.uname().nodename)
        members = []
        for trial, fold, _ in self.members:
            verdict = self.verdicts["t%df%d" % (trial, fold)]
            ran_in = verdict.get("attempt", self.attempt)
            verdict.update(
                {key: who[key] for key in ("uid", "generation", "number", "attempt")}, trial=trial, fold=fold
            )
            verdict.update(folder=bool(verdict.get("outputs")), ran_in=None if ran_in == self.attempt else ran_in)
            members.append({key: value for key, value in verdict.items() if key not in NOT_TOLD})
        if len(json.dumps(members)) > LIMIT:
            for member in members:
                shrink(member, LIMIT // len(members))
        reports = [verdict["report"] for verdict in self.verdicts.values() if verdict.get("report")]
        report = hpogrid()["joined"](reports) if reports else {}
        save(VERDICT_FILE, dict(report, hpo_pilot=dict(who, version=2, members=members)))


def hpogrid() -> "Any":
    """Load hpo_pilot_hpogrid.py from beside this file; it writes the report with hpogrid's keys."""
    space = {"__name__": "hpo_pilot_hpogrid"}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "hpo_pilot_hpogrid.py"), "rb") as file:
        exec(compile(file.read(), file.name, "exec"), space)  # noqa: S102  in sys.path the payload's files come first
    return space


def shrink(verdict: "Dict[str, Any]", size: int) -> None:
    """Shorten a verdict to at most `size` bytes, least important parts first; the newest entries stay."""
    for key, most in SMALLER + SMALLEST:
        if len(json.dumps(verdict)) <= size:
            return
        value = verdict.get(key)
        if key == "metadata":
            verdict[key] = None
        elif isinstance(value, dict):
            verdict[key] = dict(list(value.items())[:most])
        elif value:
            verdict[key] = (
                value[:most] if key == "message" else value[len(value) - most :] if most < len(value) else value
            )


def start_with_function() -> None:
    """Start this program again by the payload's Python, which imports the payload's function once for all points.

    Returns if that is not possible; then each point imports it.
    """
    try:
        payload = load(PAYLOAD_FILE)
        if payload.get("function") and START is subprocess.Popen and "HPO_PILOT_SERIES" not in os.environ:
            os.environ["HPO_PILOT_SERIES"] = "1"
            python = payload.get("python") or "python3"
            words = [python, FUNCTION_FILE, "--series", payload["function"], *sys.argv]
            os.execvp(python, words)  # noqa: S606
    except (OSError, ValueError, AttributeError) as error:
        del error  # the points will say what is wrong


if __name__ == "__main__":
    start_with_function()
    options = dict(zip(sys.argv[1::2], sys.argv[2::2]))  # noqa: B905  zip's strict= is newer than Python 3.6
    try:
        Series(options.get("--task", ""), options.get("--number", "")).run()
    except OSError as error:
        sys.exit("hpo_pilot_runner: cannot work in %s: %s" % (os.getcwd(), error))
