"""Checkpoints outlive attempts, and whatever ends these."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.runner.conftest import encoded

# Counts from where the checkpoint is.
COUNTER = """
import json, os, sys, time
os.makedirs('ckpt/deep', exist_ok=True)
step = json.load(open('ckpt/deep/state.json'))['step'] if os.path.exists('ckpt/deep/state.json') else 0
first = step
print('first', first, flush=True)
while step < int(sys.argv[1]):
    step += 1
    with open('ckpt/deep/state.json', 'w') as file:
        file.write('{"step": %d}' % step)
    open('ckpt/at', 'w').write(str(step))
    time.sleep(float(sys.argv[2]))
json.dump({'status': 0, 'loss': first}, open('output.json', 'w'))
"""


@pytest.fixture
def quick(bench):
    bench.quick = {"SAVE_EVERY": 1.0, "QUIET": 0.2, "GRACE": 3.0}
    return bench


def kept(bench: Any) -> Path:
    return Path(bench.checkpoints) / "1a2b3c4d" / "t8f1" / ".kept"


def saved_step(bench: Any) -> int:
    path = kept(bench) / "ckpt" / "deep" / "state.json"
    return int(json.loads(path.read_text())["step"]) if path.exists() else 0


def count(bench: Any, steps: int, pause: float, **options: Any) -> Any:
    """Starts the counter; `pause`: seconds between two writes."""
    return bench.start(
        f"{sys.executable} count.py {steps} {pause}",
        files={"count.py": COUNTER},
        checkpoint=["ckpt", "best.bin"],
        **options,
    )


@pytest.mark.parametrize("victims", ["runner", "all", "lifeline", "term"])
def test_an_attempt_continues_from_the_kept_checkpoint(quick, until, victims):
    reading, writing = os.pipe()
    process, folder = count(quick, 1000, 0.5, lifeline=reading)
    until(lambda: saved_step(quick) >= 2)
    payload = psutil.Process(process.pid).children()[0]
    if victims == "lifeline":
        os.close(writing)
    elif victims == "term":
        process.terminate()
    else:
        os.kill(process.pid, signal.SIGKILL)
        if victims == "all":
            os.killpg(payload.pid, signal.SIGKILL)
    process.wait(600)
    until(lambda: victims == "runner" or not payload.is_running() or payload.status() == psutil.STATUS_ZOMBIE)
    if victims == "runner":  # nobody is left to end its payload but the pilot
        os.killpg(payload.pid, signal.SIGKILL)
    at = saved_step(quick)
    assert at >= 2
    process, folder = count(quick, at + 1, 0.05, env={"PANDA_ATTEMPTNR": "2"})
    ended = quick.finish(process, folder)
    assert ended.verdict["value"] == at and ended.verdict["attempt"] == 2
    assert not kept(quick).parent.exists()  # it succeeded
    for fd in [reading] + ([writing] if victims != "lifeline" else []):
        os.close(fd)


def test_the_checkpoint_of_a_level_stays(quick):
    """The pilot stores it, and deletes it when no trial needs it; the next level has a folder beside it."""
    jobs, points = [[8, 1, 12], [9, 1, 13], [7, 1, 14]], {"7": {}, "8": {}, "9": {}}
    levels = {"8": {"level": 2, "keep_checkpoint": True}, "9": {"level": 4, "chain": 8}, "7": {"level": 4, "chain": 6}}
    task = encoded(jobs, points, levels=levels)
    files, command = {"count.py": COUNTER}, f"{sys.executable} count.py $HPO_PILOT_LEVEL 0"

    def run(number: int) -> Any:
        return quick.run(command, files=files, checkpoint=["ckpt"], number=number, task=task).verdict

    first = run(1)
    assert (first["value"], first["message"], saved_step(quick)) == (0, "", 2)
    later = kept(quick).parent.with_name("t8f1.9")
    shutil.copytree(kept(quick).parent, later)  # as the pilot does
    assert (run(2)["value"], saved_step(quick)) == (2, 2)
    assert json.loads((later / ".kept" / "ckpt" / "deep" / "state.json").read_text()) == {"step": 4}
    alone = run(3)
    assert (alone["value"], "no checkpoint of trial 6" in alone["message"]) == (0, True)


def test_a_level_whose_checkpoint_cannot_be_kept_says_so(quick):
    task = encoded([[8, 1, 12]], {"8": {}}, levels={"8": {"level": 2, "keep_checkpoint": True}})
    (kept(quick).with_name(".new")).parent.mkdir(parents=True)
    kept(quick).with_name(".new").write_text("no folder can be made here")
    command = f"{sys.executable} count.py 2 0"
    ended = quick.run(command, files={"count.py": COUNTER}, checkpoint=["ckpt"], number=1, task=task)
    assert (ended.verdict["value"], "checkpoint is not kept" in ended.message) == (0, True)


@pytest.mark.parametrize("damaged", [[".kept"], [".kept", ".old"]])
def test_a_damaged_copy_is_not_given_to_the_payload(quick, until, damaged):
    """As after a power cut: the copy before it is used, and if that is damaged too, the payload begins anew."""
    process, _ = count(quick, 1000, 0.3)
    old = kept(quick).with_name(".old")
    until(lambda: saved_step(quick) >= 2 and old.is_dir())
    os.killpg(psutil.Process(process.pid).children()[0].pid, signal.SIGKILL)
    process.wait(600)
    before = json.loads((old / "ckpt" / "deep" / "state.json").read_text())["step"] if len(damaged) == 1 else 0
    for name in damaged:
        os.truncate(old.with_name(name) / "ckpt" / "deep" / "state.json", 3)
    process, folder = count(quick, before + 1, 0.05)
    assert quick.finish(process, folder).verdict["value"] == before


def test_a_checkpoint_that_is_always_written_is_kept(quick, until):
    quick.quick["QUIET"] = 4.0  # longer than it ever pauses
    # A busy machine makes a long pause of a short one: there is none within a write. Looks come every second.
    process, _ = count(quick, 1000, 0.7)
    until(lambda: saved_step(quick) >= 3)
    payload = psutil.Process(process.pid).children()[0]
    process.kill()
    process.wait()
    payload.kill()
    assert saved_step(quick) >= 3


@pytest.fixture
def adopting():
    """Makes this process the parent of orphans, as a pilot is; it never reaps them before the end."""
    prctl = ctypes.CDLL(None).prctl
    prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    yield
    prctl(36, 0, 0, 0, 0)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


SAVES = """
import os, signal, subprocess, sys, time
shell = f'/proc/{os.getppid()}'
def save(*_):
    %s
    open('best.bin', 'w').write('on term')
    sys.exit(%d)
%s
signal.signal(signal.SIGTERM, save)
open('ready', 'w')
time.sleep(60)
"""
GONE = "while os.path.exists(shell): time.sleep(0.01)"
LATER = f"({sys.executable} train.py &); trap 'exit 1' TERM; while true; do sleep 0.05; done"


@pytest.mark.usefixtures("adopting")
@pytest.mark.parametrize(
    ("command", "script"),
    [
        (f"{sys.executable} train.py", SAVES % ("pass", 0, "")),
        (f"true; {sys.executable} train.py; true", SAVES % (GONE, 1, "open('best.bin', 'w').write('at first')")),
        # As where a batch system ends all at once: srun's helper has lost srun before the runner hears of it.
        (f"{sys.executable} train.py", SAVES % ("pass", 0, "subprocess.run('sleep 300 &', shell=True)")),
        (LATER, SAVES % ("time.sleep(0.5)", 0, "")),
    ],
    ids=["alone", "its shell dies of term", "an orphan waits for its adopter", "another has adopted it"],
)
def test_a_checkpoint_written_on_term_is_kept(quick, until, command, script):
    process, folder = quick.start(command, files={"train.py": script}, checkpoint=["best.bin"])
    until((folder / "ready").exists)
    process.terminate()
    assert quick.finish(process, folder).code == 1
    assert (kept(quick) / "best.bin").read_text() == "on term"


@pytest.mark.parametrize("helper", [False, True], ids=["alone", "beside one that ends well"])
def test_a_half_written_checkpoint_does_not_replace_a_whole_one(quick, until, helper):
    script = (
        "import os, time\nopen('best.bin', 'w').write('whole')\n"
        "kept = os.environ['HPO_PILOT_CHECKPOINT_DIR'] + '/.kept/best.bin'\n"
        "while not os.path.exists(kept):\n    time.sleep(0.05)\n"
        "f = open('best.bin', 'w')\nopen('ready', 'w')\n"
        "while True:\n    f.write('half')\n    f.flush()\n    time.sleep(0.01)\n"
    )
    quick.quick["QUIET"] = 2.0  # longer than a busy machine lets it pause
    helping = "(trap 'exit 0' TERM; while true; do sleep 0.05; done) & " if helper else ""
    command = f"{helping}{sys.executable} train.py" + ("; true" if helper else "")
    process, folder = quick.start(command, files={"train.py": script}, checkpoint=["best.bin"])
    until((folder / "ready").exists)
    process.terminate()
    process.wait()
    assert (kept(quick) / "best.bin").read_text() == "whole"


def test_links_that_lead_out_are_not_followed(quick):
    quick.run(
        "mkdir ckpt; ln -s /etc/hostname ckpt/out; echo x > ckpt/in; exit 1", checkpoint=["ckpt", "/etc/hosts", "../x"]
    )
    assert sorted(path.name for path in (kept(quick) / "ckpt").iterdir()) == ["in"]
    assert [path.name for path in kept(quick).iterdir() if path.is_dir()] == ["ckpt"]


def test_the_payload_may_write_to_the_checkpoint_folder(quick):
    first = quick.run("echo mine > $HPO_PILOT_CHECKPOINT_DIR/state; exit 1")
    assert first.verdict["value"] is None
    assert (quick.checkpoints / "1a2b3c4d" / "t8f1" / "state").read_text() == "mine\n"
    second = quick.run("""cp $HPO_PILOT_CHECKPOINT_DIR/state .; echo '{"status": 0, "loss": 1}' > output.json""")
    assert (second.folder / "state").read_text() == "mine\n"
    assert not (quick.checkpoints / "1a2b3c4d" / "t8f1").exists()


def test_after_a_crash_between_two_renames_the_old_copy_is_used(quick):
    old = kept(quick).with_name(".old")
    old.mkdir(parents=True)
    (old / "best.bin").write_text("before")
    ended = quick.run("""cat best.bin; echo '{"status": 0, "loss": 1}' > output.json""", checkpoint=["best.bin"])
    assert (ended.folder / "payload.log").read_text() == "before"


def test_a_new_attempt_waits_until_the_previous_one_has_ended(quick, until):
    files = {"train.py": SAVES % ("time.sleep(1)", 0, "")}
    process, folder = quick.start(f"{sys.executable} train.py", files=files, checkpoint=["best.bin"])
    until((folder / "ready").exists)
    process.terminate()
    second = quick.run("""cat best.bin; echo '{"status": 0, "loss": 1}' > output.json""", checkpoint=["best.bin"])
    assert (second.folder / "payload.log").read_text() == "on term"
    process.wait()
