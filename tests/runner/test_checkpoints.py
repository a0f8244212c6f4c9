"""Checkpoints outlive attempts, and whatever ends these."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

# Counts from where the checkpoint is; writes it in two steps, so that a copy taken between them is worthless.
COUNTER = """
import json, os, sys, time
os.makedirs('ckpt/deep', exist_ok=True)
step = json.load(open('ckpt/deep/state.json'))['step'] if os.path.exists('ckpt/deep/state.json') else 0
first = step
print('first', first, flush=True)
while step < int(sys.argv[1]):
    step += 1
    with open('ckpt/deep/state.json', 'w') as file:
        file.write('{"step": ')
        file.flush()
        time.sleep(float(sys.argv[2]) / 10)
        file.write('%d}' % step)
    open('ckpt/at', 'w').write(str(step))
    time.sleep(float(sys.argv[2]))
json.dump({'status': 0, 'loss': first}, open('output.json', 'w'))
"""


@pytest.fixture
def quick(bench: Any) -> Any:
    bench.quick = {"SAVE_EVERY": 1.0, "QUIET": 0.2, "GRACE": 3.0}
    return bench


def kept(bench: Any) -> Path:
    return Path(bench.checkpoints) / "1a2b3c4d" / "t8f1" / ".kept"


def saved_step(bench: Any) -> int:
    path = kept(bench) / "ckpt" / "deep" / "state.json"
    return int(json.loads(path.read_text())["step"]) if path.exists() else 0


def count(bench: Any, steps: int, pause: float, **options: Any) -> Any:
    return bench.start(
        f"{sys.executable} count.py {steps} {pause}",
        files={"count.py": COUNTER},
        checkpoint=["ckpt", "best.bin"],
        **options,
    )


@pytest.mark.parametrize("victims", ["runner", "all", "lifeline", "term"])
def test_an_attempt_goes_on_where_the_one_before_was_ended(quick: Any, until: Any, victims: str) -> None:
    reading, writing = os.pipe()
    process, folder = count(quick, 1000, 0.5, lifeline=reading)
    until(lambda: saved_step(quick) >= 2)
    payload = next(int(pid) for pid in children(process.pid))
    if victims == "lifeline":
        os.close(writing)
    elif victims == "term":
        process.terminate()
    else:
        os.kill(process.pid, signal.SIGKILL)
        if victims == "all":
            os.killpg(payload, signal.SIGKILL)
    process.wait(10)
    until(lambda: victims == "runner" or not Path(f"/proc/{payload}").exists() or zombie(payload))
    if victims == "runner":  # nobody is left to end its payload but the pilot
        os.killpg(payload, signal.SIGKILL)
    at = saved_step(quick)
    assert at >= 2
    process, folder = count(quick, at + 1, 0.05, env={"PANDA_ATTEMPTNR": "2"})
    ended = quick.finish(process, folder, time.monotonic())
    assert ended.verdict["value"] == at and ended.verdict["attempt"] == 2
    assert not kept(quick).parent.exists()  # it succeeded
    for fd in [reading] + ([writing] if victims != "lifeline" else []):
        os.close(fd)


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_one_that_writes_without_rest_is_kept_all_the_same(quick: Any, until: Any) -> None:
    quick.quick["QUIET"] = 4.0  # longer than it ever pauses
    process, folder = count(quick, 1000, 1.0)
    until(lambda: saved_step(quick) >= 3)
    process.kill()
    process.wait()
    os.killpg(children_of_group(folder), signal.SIGKILL)
    assert saved_step(quick) >= 3


def children_of_group(folder: Path) -> int:
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and (entry / "cwd").resolve() == folder
                and b"count.py" in (entry / "cmdline").read_bytes()
            ):
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError("the payload is gone")


def terminated(quick: Any, until: Any, script: str) -> tuple[subprocess.Popen[bytes], Path]:
    """A job whose training said that it was ready, and then got TERM; and its folder."""
    process, folder = quick.start(f"{sys.executable} train.py", files={"train.py": script}, checkpoint=["best.bin"])
    until((folder / "ready").exists)
    process.terminate()
    return process, folder


def test_a_checkpoint_written_on_term_is_kept(quick: Any, until: Any) -> None:
    script = (
        "import signal, sys, time\n"
        "def save(*_):\n    open('best.bin', 'w').write('saved on term')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nopen('ready', 'w')\ntime.sleep(60)\n"
    )
    process, folder = terminated(quick, until, script)
    assert quick.finish(process, folder, time.monotonic()).code == 1
    assert (kept(quick) / "best.bin").read_text() == "saved on term"


def test_a_shell_that_dies_of_term_does_not_cost_what_the_training_saves(quick: Any, until: Any) -> None:
    script = (
        "import os, signal, sys, time\n"
        "shell = f'/proc/{os.getppid()}'\n"
        "def save(*_):\n"
        "    while os.path.exists(shell):\n        time.sleep(0.01)\n"
        "    open('best.bin', 'w').write('late')\n    sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, save)\nopen('best.bin', 'w').write('at first')\n"
        "open('ready', 'w')\ntime.sleep(60)\n"
    )
    command = f"true; {sys.executable} train.py; true"
    process, folder = quick.start(command, files={"train.py": script}, checkpoint=["best.bin"])
    until((folder / "ready").exists)
    process.terminate()
    assert quick.finish(process, folder, time.monotonic()).code == 1
    assert (kept(quick) / "best.bin").read_text() == "late"


@pytest.fixture
def adopting() -> Iterator[None]:
    """Makes this process the parent of orphans, as a pilot is; it never reaps them before the end."""
    prctl = ctypes.CDLL(None).prctl
    prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    yield
    prctl(36, 0, 0, 0, 0)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@pytest.mark.usefixtures("adopting")
def test_what_waits_for_its_adopter_does_not_count_as_running(quick: Any, until: Any) -> None:
    """As where a batch system ends all at once: srun's helper has lost srun before the runner hears of it."""
    script = (
        "import os, signal, subprocess, sys, time\n"
        "subprocess.run('sleep 300 &', shell=True)\n"
        "def save(*_):\n    open('best.bin', 'w').write('saved on term')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nopen('ready', 'w')\ntime.sleep(60)\n"
    )
    process, folder = terminated(quick, until, script)
    assert quick.finish(process, folder, time.monotonic()).code == 1
    assert (kept(quick) / "best.bin").read_text() == "saved on term"


@pytest.mark.usefixtures("adopting")
def test_what_another_has_adopted_gets_its_time_to_save(quick: Any, until: Any) -> None:
    script = (
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(0.5)\n    open('best.bin', 'w').write('late')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nopen('ready', 'w')\ntime.sleep(60)\n"
    )
    command = f"({sys.executable} train.py &); trap 'exit 1' TERM; while true; do sleep 0.05; done"
    process, folder = quick.start(command, files={"train.py": script}, checkpoint=["best.bin"])
    until((folder / "ready").exists)
    process.terminate()
    assert quick.finish(process, folder, time.monotonic()).code == 1
    assert (kept(quick) / "best.bin").read_text() == "late"


@pytest.mark.parametrize("helper", [False, True], ids=["alone", "beside one that ends well"])
def test_a_half_written_checkpoint_does_not_replace_a_whole_one(quick: Any, until: Any, helper: bool) -> None:
    script = (
        "import os, time\nopen('best.bin', 'w').write('whole')\n"
        "kept = os.environ['HPO_PILOT_CHECKPOINT_DIR'] + '/.kept/best.bin'\n"
        "while not os.path.exists(kept):\n    time.sleep(0.05)\n"
        "f = open('best.bin', 'w')\nopen('ready', 'w')\n"
        "while True:\n    f.write('half')\n    f.flush()\n    time.sleep(0.01)\n"
    )
    helping = "(trap 'exit 0' TERM; while true; do sleep 0.05; done) & " if helper else ""
    command = f"{helping}{sys.executable} train.py" + ("; true" if helper else "")
    process, folder = quick.start(command, files={"train.py": script}, checkpoint=["best.bin"])
    until((folder / "ready").exists)
    process.terminate()
    process.wait()
    assert (kept(quick) / "best.bin").read_text() == "whole"


def test_links_that_lead_out_are_not_followed(quick: Any) -> None:
    quick.run(
        "mkdir ckpt; ln -s /etc/hostname ckpt/out; echo x > ckpt/in; exit 1", checkpoint=["ckpt", "/etc/hosts", "../x"]
    )
    assert sorted(path.name for path in (kept(quick) / "ckpt").iterdir()) == ["in"]
    assert sorted(path.name for path in kept(quick).iterdir()) == ["ckpt"]


def test_the_payload_may_keep_its_own_in_the_folder(quick: Any) -> None:
    first = quick.run("echo mine > $HPO_PILOT_CHECKPOINT_DIR/state; exit 1")
    assert first.verdict["value"] is None
    assert (quick.checkpoints / "1a2b3c4d" / "t8f1" / "state").read_text() == "mine\n"
    second = quick.run("""cp $HPO_PILOT_CHECKPOINT_DIR/state .; echo '{"status": 0, "loss": 1}' > output.json""")
    assert (second.folder / "state").read_text() == "mine\n"
    assert not (quick.checkpoints / "1a2b3c4d" / "t8f1").exists()


def test_a_crash_between_the_two_renames_costs_nothing(quick: Any) -> None:
    old = kept(quick).with_name(".old")
    old.mkdir(parents=True)
    (old / "best.bin").write_text("before")
    ended = quick.run("""cat best.bin; echo '{"status": 0, "loss": 1}' > output.json""", checkpoint=["best.bin"])
    assert (ended.folder / "payload.log").read_text() == "before"


def test_a_new_attempt_waits_for_the_last_words_of_the_one_before(quick: Any, until: Any) -> None:
    script = (
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(1)\n    open('best.bin', 'w').write('late')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nopen('ready', 'w')\ntime.sleep(60)\n"
    )
    process, folder = quick.start(f"{sys.executable} train.py", files={"train.py": script}, checkpoint=["best.bin"])
    until((folder / "ready").exists)
    process.terminate()
    second = quick.run("""cat best.bin; echo '{"status": 0, "loss": 1}' > output.json""", checkpoint=["best.bin"])
    assert (second.folder / "payload.log").read_text() == "late"
    process.wait()
