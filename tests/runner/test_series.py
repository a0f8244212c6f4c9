"""Several points one after another in one job."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from hpo_pilot.hpc.launchers import Srun
from hpo_pilot.runner import hpo_pilot_series
from tests.programs import program
from tests.runner.conftest import Bench, encoded

MEMBERS = [[3, 0, 13], [4, 0, 14], [5, 0, 15], [6, 0, 16]]

TRAIN = "python3 -I -S train.py"

#: Reports its point; sleeps for the seconds in its argument, or for those of `slow`.
PAYLOAD = """
import json, os, sys, time
x = json.load(open("input.json"))["x"]
with open("progress.jsonl", "w") as file:
    file.write(json.dumps({"step": 1, "value": x}) + "\\n")
print("point", x, flush=True)
SLOW = {}
time.sleep(SLOW.get(x) or (float(sys.argv[1]) if len(sys.argv) > 1 else 0))
if os.path.exists("trace"): raise SystemExit("another point's file is here")
open("trace", "w").write(str(x))
open("model.txt", "w").write("model %d" % x)
json.dump({"status": 0, "loss": x / 10}, open("output.json", "w"))
"""


def slow(seconds: dict[int, float]) -> str:
    """The payload, sleeping for so long at some points."""
    return PAYLOAD.replace("SLOW = {}", f"SLOW = {seconds}")


def task_of(members: list[Any]) -> str:
    listed = members if isinstance(members[0], list) else [members]
    return encoded([[[1, 0, 11], [2, 0, 12]], members], {str(trial): {"x": trial} for trial, _, _ in listed}, folds=1)


class Job:
    """The attempts of a job of several points, each in a folder of its own."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.members, self.attempt = bench, MEMBERS, 0
        self.root = bench.checkpoints
        bench.quick = {"GRACE": 1.0}

    def start(
        self,
        command: str = TRAIN,
        *,
        files: Mapping[str, str] | None = None,
        beside: Mapping[str, str] | None = None,
        **more: Any,
    ) -> subprocess.Popen[str]:
        """Starts an attempt with these files of the payload, and others beside it."""
        self.attempt += 1
        env = {"PanDA_TaskID": "77", "PANDA_ATTEMPTNR": str(self.attempt)}
        written = {f"payload/{name}": text for name, text in {"train.py": PAYLOAD, **(files or {})}.items()}
        more = {"task": task_of(self.members), "files": written | dict(beside or {}), "series": True, **more}
        process, self.folder = self.bench.start(command, env=env, **more)
        return process

    def begin(self, until: Any, point: int, slow_at: dict[int, float], **document: Any) -> subprocess.Popen[str]:
        """Starts a job that is slow at some points, and waits for one of them to run."""
        process = self.start(files={"train.py": slow(slow_at)}, **document)
        until((self.folder / f"t{point}f0" / "progress.jsonl").exists)
        return process

    def run(self, command: str = TRAIN, *, code: int = 0, **document: Any) -> list[dict[str, Any]]:
        return self.end(self.start(command, **document), code)

    def end(self, process: subprocess.Popen[str], code: int = 0) -> list[dict[str, Any]]:
        self.said, _ = process.communicate(timeout=600)
        assert process.returncode == code, self.said
        path = self.folder / "userJobMetadata.json"
        assert path.exists() == (code == 0)
        return self.metadata()["members"] if code == 0 else []

    def metadata(self) -> dict[str, Any]:
        path = self.folder / "userJobMetadata.json"
        assert path.stat().st_size < 1_000_000
        return dict(json.loads(path.read_text())["hpo_pilot"])


@pytest.fixture
def job(bench):
    return Job(bench)


def test_each_point_has_its_verdict_and_a_folder_of_its_own(job):
    members = job.run(outputs=["model.txt"])
    found = [(m["trial"], m["fold"], m["number"], m["value"]) for m in members]
    assert found == [(trial, 0, 2, trial / 10) for trial in (3, 4, 5, 6)]
    assert all(m["uid"] == "1a2b3c4d" and m["generation"] == 2 and m["progress"] == [[1, m["trial"]]] for m in members)
    identity = {"version": 2, "number": 2, "attempt": 1, "uid": "1a2b3c4d"}
    assert identity.items() <= job.metadata().items()
    with tarfile.open(job.folder / "outputs.tar.gz") as packed:
        texts = {m.name: packed.extractfile(m).read().decode() for m in packed}
    assert texts == {f"t{n}f0/model.txt": f"model {n}" for n in (3, 4, 5, 6)}
    assert (job.folder / "payload.log").read_text().startswith("--- t3f0 ---\npoint 3\n--- t4f0 ---\npoint 4\n")
    assert not list(job.folder.glob("t*f0"))
    assert not list(job.root.glob("1a2b3c4d/*"))


def test_a_job_of_one_point_is_one_all_the_same(job):
    job.members = [3, 0, 13]
    (member,) = job.run()
    assert (member["trial"], member["value"]) == (3, 0.3)


def test_a_failed_point_leaves_the_others_alone(job):
    files = {"train.py": PAYLOAD.replace('print("point"', 'x == 4 and sys.exit("no such layer")\nprint("point"')}
    members = job.run(files=files, outputs=["model.txt"])
    assert [m["value"] for m in members] == [0.3, None, 0.5, 0.6]
    assert "no such layer" in members[1]["message"] and "no such layer" in members[1]["log_tail"]
    assert [m["folder"] for m in members] == [True, False, True, True]


def test_a_point_that_does_not_end_within_the_job_s_time_is_not_run(job):
    members = job.run(files={"train.py": slow({4: 60})}, minutes=0.1)
    assert [m["status"] for m in members] == [0, 2, 2, 2]
    assert members[1]["message"] == "the job's 0.1 minutes were over" and 0 < members[1]["seconds"] < 6
    assert members[1]["log_tail"] == "point 4\n"
    assert members[2]["message"] == "the job's 0.1 minutes were over" and "seconds" not in members[2]


@pytest.mark.parametrize(
    ("seconds", "statuses", "why"),
    [
        ([10, 10, 10, 10], [0, 0, 0, 0], ""),
        ([35, 1, 1, 1], [0, 2, 2, 2], "the job's 1 minutes were nearly over"),
        ([1, 25, 20, 1], [0, 0, 0, 2], "the job's 1 minutes were nearly over"),
        ([5, 90, 1, 1], [0, 2, 2, 2], "the job's 1 minutes were over"),
        ([90, 1, 1, 1], [1, 2, 2, 2], "the job's 1 minutes were nearly over"),  # the first has the whole time
    ],
)
def test_a_point_begins_only_if_it_should_fit(tmp_path, monkeypatch, seconds, statuses, why):
    now, planned = [100.0], iter(seconds)

    def run_point(self, name, trial, fold, seed, left):
        spent, most = next(planned), 60.0 if left is None else left
        now[0] += min(spent, most)
        cause = "limit" if spent > most else ""
        return {"status": int(bool(cause)), "cause": cause, "message": cause, "seconds": min(spent, most), "seed": seed}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hpo_pilot_series, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(hpo_pilot_series.signal, "signal", lambda *_: None)
    monkeypatch.setattr(hpo_pilot_series.Series, "run_point", run_point)
    (tmp_path / "hpo_pilot_payload.json").write_text('{"minutes": 1}')
    hpo_pilot_series.Series(task_of(MEMBERS), "2").run()
    members = json.loads((tmp_path / "userJobMetadata.json").read_text())["hpo_pilot"]["members"]
    assert [m["status"] for m in members] == statuses
    assert not why or members[-1]["message"] == why


def test_told_to_stop_it_leaves_nothing_running_and_the_next_attempt_goes_on(job, until, alive):
    process = job.begin(until, 5, {5: 60}, outputs=["model.txt"])
    process.terminate()
    job.end(process, code=1)
    assert job.said.endswith("hpo_pilot_runner: told to stop\n")
    assert not alive(job.folder)
    (half,) = job.root.glob("1a2b3c4d/series-*/t4f0")
    (half / "userJobMetadata.json").write_text('{"value": 0.9')
    members = job.run(outputs=["model.txt"])
    ran = [(m["value"], m["ran_in"]) for m in members]
    assert ran == [(0.3, 1), (0.4, None), (0.5, None), (0.6, None)], "half a verdict of the second point is none"
    with tarfile.open(job.folder / "outputs.tar.gz") as packed:
        assert sorted(packed.getnames()) == [f"t{n}f0/model.txt" for n in (3, 4, 5, 6)]
    assert "point 3" not in (job.folder / "payload.log").read_text()
    assert not list(job.root.glob("1a2b3c4d/*"))


def test_damaged_outputs_of_a_point_are_made_again(job, until):
    process = job.begin(until, 5, {5: 60}, outputs=["model.txt"])
    process.terminate()
    job.end(process, code=1)
    (packed,) = job.root.glob("1a2b3c4d/series-*/t4f0/outputs.tar.gz")
    os.truncate(packed, packed.stat().st_size // 2)
    assert [m["ran_in"] for m in job.run(outputs=["model.txt"])] == [1, None, None, None]


def test_killed_it_is_repeated_from_the_point_that_ran(job, until, alive):
    process = job.begin(until, 4, {4: 60})
    os.killpg(process.pid, 9)
    process.communicate()
    for pid in alive(job.folder):
        os.kill(pid, 9)
    members = job.run()
    assert [(m["value"], m["ran_in"]) for m in members] == [(0.3, 1), (0.4, None), (0.5, None), (0.6, None)]


def test_the_pilots_death_ends_it(job, until, alive):
    reading, writing = os.pipe()
    process = job.start(f"{TRAIN} 60", lifeline=reading)
    os.close(reading)
    until((job.folder / "t3f0" / "progress.jsonl").exists)
    os.close(writing)
    job.end(process, code=1)
    assert job.said.endswith("hpo_pilot_runner: the pilot died\n")
    until(lambda: not alive(job.folder))


def test_a_fault_that_the_pilot_names_is_the_running_points_own(job, until):
    process = job.begin(until, 4, {4: 60})
    assert str((job.folder / "progress.jsonl").readlink()) == "t4f0/progress.jsonl"  # shows which point runs
    assert json.loads((job.folder / "progress.jsonl").read_text()) == {"step": 1, "value": 4}
    (job.folder / "hpo_pilot_stop.txt").write_text("used 900 MB of memory, more than the 500 MB that it asked for")
    os.killpg(process.pid, 15)
    members = job.end(process)
    assert [m["status"] for m in members] == [0, 1, 2, 2]
    assert members[1]["message"].startswith("the payload used 900 MB of memory")
    assert "900 MB" in members[2]["message"]


def test_a_broken_machine_keeps_the_verdicts_that_are_there(job):
    breaks = {"train.py": PAYLOAD + "if x == 5: os.mkdir('userJobMetadata.json.new')\n"}
    members = job.run(files=breaks)
    assert [m["status"] for m in members] == [0, 0, 2, 2]
    assert "cannot work in" in members[2]["message"]
    job.run("mkdir userJobMetadata.json.new", code=1)
    assert "cannot work in" in job.said, "without any verdict it is for the infrastructure"


def test_a_cancelled_step_ends_the_job_and_the_next_attempt_goes_on(job, tmp_path):
    cancelled = "slurmstepd: error: *** STEP 1.2 ON n1 CANCELLED AT 2026-11-23T14:41:50 ***"
    again = f"[ -e {tmp_path}/again ]"
    first = f'if grep -q 5 input.json && ! {again}; then touch {tmp_path}/again; echo "{cancelled}"; exit 143; fi'
    program(tmp_path / "srun", f'{first}\nexec "$@"\n')
    launch = {"before": [str(tmp_path / "srun")], "cancelled": Srun.log_patterns.cancelled}
    job.run(beside={"hpo_pilot_launch.json": json.dumps(launch)}, code=1)
    assert job.said.endswith("hpo_pilot_runner: the job step was cancelled\n") and "point 6" not in job.said
    members = job.run(beside={"hpo_pilot_launch.json": json.dumps(launch)})
    assert [(m["value"], m["ran_in"]) for m in members] == [(0.3, 1), (0.4, 1), (0.5, None), (0.6, None)]


def test_all_metadata_together_stays_small(job):
    job.members = [[n, 0, n] for n in range(3, 9)]
    noise = (
        "import json, sys\nsys.stdout.buffer.write('é'.encode() * 70000)\n"
        "json.dump({'m': 'x' * 200000}, open('meta.json', 'w'))\n"
        "json.dump({'status': 1, 'message': 'm' * 3000, 'metrics': {'é' * 90 + str(i): i for i in range(300)}},"
        " open('output.json', 'w'))\n"
        "open('progress.jsonl', 'w').writelines('{\"step\": %d, \"value\": %d}\\n' % (i, i) for i in range(999))\n"
    )
    members = job.run("python3 -I -S noise.py", files={"noise.py": noise}, file_names={"metadata": "meta.json"})
    assert len(members) == 6
    assert all(m["message"].startswith("the payload reported status 1") and m["status"] == 1 for m in members)
    assert all(m["progress"][-1] == [998, 998.0] for m in members)


@pytest.mark.parametrize("size", [100_000, 9_000, 3_000, 800])
def test_a_verdict_is_shortened_by_its_least_important_parts(size):
    verdict = {"uid": "u", "message": "m" * 2000, "log_tail": "l" * 60000 + "end", "metadata": {"m": "x" * 90000}}
    verdict["metrics"] = {f"metric{number}": number for number in range(200)}
    verdict["progress"] = [[step, step] for step in range(200)]
    hpo_pilot_series.shrink(verdict, size)
    assert len(json.dumps(verdict)) <= size and verdict["uid"] == "u"
    assert verdict["message"].startswith("m") and verdict["progress"][-1] == [199, 199]
    assert verdict["log_tail"].endswith("end" if size > 1000 else "")


def test_inputs_that_were_staged_are_there_for_every_point(job):
    files = {"train.py": PAYLOAD + "assert open('data.csv').read() == '1,2'\n"}
    members = job.run(files=files, beside={"data.csv": "1,2", "hpo_pilot_inputs.json": '["data.csv"]'})
    assert [m["value"] for m in members] == [0.3, 0.4, 0.5, 0.6]


def test_a_broken_task_is_for_the_infrastructure(job):
    job.run("true", number=9, code=1)
    assert "KeyError(9)" in job.said and job.said.count("\n") == 1


def test_each_point_can_measure_its_ranks(job):
    program = "import hpo_pilot_ranks as r, json\nr.start()\nr.images(8)\nx = json.load(open('input.json'))['x']\n"
    program += "r.stop()\njson.dump({'loss': x}, open('output.json', 'w'))\n"
    members = job.run("python3 measured.py", files={"measured.py": program})
    assert [(member["value"], member["metrics"]["ranks"]) for member in members] == [(n, 1.0) for n in (3, 4, 5, 6)]
    assert all(member["metrics"]["images_per_second"] > 0 for member in members)
    assert [member["metadata"]["hpo_pilot_ranks"][0]["images"] for member in members] == [8.0] * 4
