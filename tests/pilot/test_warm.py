"""Jobs that a pilot forks from a kept interpreter."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

import psutil
import pytest

from hpo_pilot.pilot.job import JobFailure, PilotErrorCode
from hpo_pilot.pilot.warm import WarmInterpreter, WarmInterpreters, WarmKind
from tests import outliving

BODY = """
import os, random
with open({imports!r}, "a") as file:
    file.write("x")
calls = []
THREADS = int(os.environ["OMP_NUM_THREADS"])


def objective(point):
    calls.append(1)
    {body}
    found = {{"threads": THREADS, "calls": len(calls), "pid": os.getpid(), "dice": random.random()}}
    return {{"loss": 1, "metrics": found}}
"""


def lives(pid: int) -> bool:
    """Whether the process runs; a killed one may not be reaped yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Bench:
    def __init__(self, panda, pilot, until, folder: Path) -> None:
        self.panda, self.pilot, self.until, self.imports = panda, pilot, until, folder / "imports"

    def add(self, body: str = "pass", number: int = 0, end: str = "") -> int:
        """Queues a job; `number`: of the payload, jobs with the same one have the same sandbox; `end`: of its file."""
        text = BODY.format(imports=str(self.imports), body=body) + f"# {number}\n{end}"
        command = f"{sys.executable} hpo_pilot_function.py train:objective"
        options = {"function": "train:objective", "objectives": ["loss"], "python": sys.executable}
        return self.panda.add_job(command, {"train.py": text}, **options)

    def verdict(self, panda_id: int) -> dict:
        report = self.panda.final(panda_id)
        return json.loads(report["meta_data"])["user_job_metadata"]["hpo_pilot"]

    def kept(self) -> list[psutil.Process]:
        """Interpreters without the processes forked from them."""
        children = psutil.Process(self.pilot.processes[-1].pid).children()
        ours = [child for child in children if "hpo_pilot_function.py" in " ".join(child.cmdline())]
        return [child for child in ours if os.getpgid(child.pid) != child.pid]


@pytest.fixture
def bench(panda, pilot, until, tmp_path):
    return Bench(panda, pilot, until, tmp_path)


def test_jobs_of_a_search_import_the_function_once_for_each_slot(bench):
    jobs = [bench.add() for _ in range(4)]
    bench.pilot.start(slots=1)
    found = [bench.verdict(job)["metrics"] for job in jobs]
    assert [each["calls"] for each in found] == [1, 1, 1, 1]
    assert {each["threads"] for each in found} == {1}, "as numerical libraries read it while they are imported"
    for name in ("pid", "dice"):
        assert len({each[name] for each in found}) == 4
    assert bench.imports.read_text() == "x"
    other = bench.add(number=1)
    bench.verdict(other)
    assert bench.imports.read_text() == "xx"
    assert bench.pilot.end() == 0
    assert not list((bench.pilot.workdir / "interpreters").glob("*/*"))


def test_libraries_that_a_function_imports_are_loaded_for_later_jobs(bench):
    body = "import sys, time; calls.extend([2] * ('colorsys' in sys.modules)); import colorsys; time.sleep(0.5)"
    jobs = [bench.add(body) for _ in range(4)]
    bench.pilot.start(slots=1)
    found = [bench.verdict(job)["metrics"]["calls"] for job in jobs]
    assert (found[0], found[-1]) == (1, 2), found


def test_a_job_does_not_need_the_kept_interpreter(bench):
    """It may have been killed."""
    bench.pilot.start(slots=1)
    assert bench.verdict(bench.add())["value"] == 1
    (kept,) = bench.kept()
    kept.kill()
    assert bench.verdict(bench.add())["value"] == 1
    assert bench.verdict(bench.add())["value"] == 1


def test_a_function_that_fails(bench):
    bench.pilot.start(slots=1)
    found = bench.verdict(bench.add("raise ValueError('no data')"))
    assert (found["value"], found["status"]) == (None, 1)
    assert found["message"].endswith("exit code 1: ValueError: no data")
    assert "Traceback" in found["log_tail"]


def test_what_a_function_leaves_is_ended_with_its_job(bench, tmp_path):
    """A forked process that left the group and the session shows the environment of the interpreter, not the job's."""
    note = str(tmp_path / "left")
    body = f"""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open({note!r}, "w").write(str(os.getpid()))
            import time
            time.sleep(300)
        os._exit(0)
    while not (os.path.exists({note!r}) and open({note!r}).read()):
        pass
    """.strip()
    bench.pilot.start(slots=1)
    assert bench.verdict(bench.add(body))["value"] == 1
    assert not lives(int((tmp_path / "left").read_text()))
    assert bench.verdict(bench.add(number=1))["value"] == 1


LIE = """
import stat, struct
for descriptor in os.listdir("/proc/self/fd"):
    try:
        if stat.S_ISSOCK(os.fstat(int(descriptor)).st_mode):
            os.write(int(descriptor), struct.pack("!QQ", 0, {pid}))
    except OSError:
        pass
"""


@pytest.mark.parametrize("whose", ["another job's", "the pilot's", "nobody's"])
def test_a_function_cannot_name_the_process_of_its_job(bench, whose, tmp_path):
    """The interpreter that imports it answers for it: the pilot would wait for, kill and reap that process."""
    note, go = tmp_path / "runner", tmp_path / "go"
    waits = f"open({str(note)!r}, 'w').write(str(os.getppid()))\n    while not os.path.exists({str(go)!r}): pass"
    other = bench.add(waits)
    process = bench.pilot.start(slots=2)
    bench.until(lambda: note.exists() and note.read_text())
    pid = {"another job's": note.read_text(), "the pilot's": process.pid, "nobody's": 2**63}[whose]
    liar = bench.add(number=1, end=LIE.format(pid=pid))
    assert bench.verdict(liar)["value"] == 1
    go.touch()
    assert bench.verdict(other)["value"] == 1
    assert bench.pilot.end() == 0


NAMES_IT = """
import socket, struct, sys
connection = socket.socket(fileno=int(sys.argv[4]))
connection.sendall(struct.pack("!Q", 0))
(left,) = struct.unpack("!Q", connection.recv(8))
while left:
    left -= len(connection.recv(left))
connection.sendall(struct.pack("!Q", int(sys.argv[1])))
"""


def test_a_folder_that_cannot_be_filled_is_no_jobs_failure(tmp_path, make_settings):
    def fill(folder: Path) -> None:
        (folder / "half").write_text("")
        raise JobFailure("no space", PilotErrorCode.NO_LOCAL_SPACE)

    kind = WarmKind("sandbox", "", (sys.executable,), ())
    interpreters = WarmInterpreters(make_settings(), tmp_path / "kept", 1)
    assert interpreters.take(kind, fill, 1.0, lambda: False) is None
    assert not list(tmp_path.rglob("half"))


@pytest.fixture
def many_open_files():
    """As in a pilot of a thousand slots."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for each in opened:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_job_that_ends_before_the_pilot_knows_its_process_is_not_started_again(tmp_path, many_open_files):
    pid = os.posix_spawn("/bin/true", ["true"], {}, setpgroup=0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    kind = WarmKind("sandbox", "", (sys.executable, "-c", NAMES_IT, str(pid)), ())
    interpreter = WarmInterpreter(kind, tmp_path, os.environ, "1-1")
    try:
        assert interpreter.is_ready(30, lambda: False)
        assert interpreter.fork([], tmp_path, {}, 1, 0) == pid
    finally:
        interpreter.end()
        os.waitpid(pid, 0)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_pilot(bench, how, tmp_path):
    note = str(tmp_path / "runs")
    bench.add(f"open({note!r}, 'w').close(); __import__('time').sleep(300)")
    process = bench.pilot.start("--drain-seconds", "0", slots=1)
    bench.until(Path(note).exists)
    (runner,) = outliving.runners(psutil.Process(process.pid).children())
    every = [*bench.kept(), runner, *runner.children()]
    assert len(every) == 3
    process.send_signal(how)
    process.wait(600)
    psutil.wait_procs(every, 30)
    assert not [each for each in every if lives(each.pid)]
