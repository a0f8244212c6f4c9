"""How payloads are ended, and what is left of them: nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

FAMILY = "(env -i setsid sleep 300 & echo $! >> pids); "
FAMILY += "sleep 300 & echo $! >> pids; (sleep 300 & echo $! >> pids; wait) & echo $! >> pids; echo $$ >> pids; "


def started(folder: Path, count: int = 5) -> bool:
    path = folder / "pids"
    return path.exists() and len(path.read_text().split()) >= count


@pytest.mark.parametrize("waits", ["wait", "trap '' TERM; while true; do sleep 0.1; done"], ids=["", "ignores TERM"])
def test_a_hanging_payload_is_ended_with_all_its_children(bench, until, alive, waits):
    bench.quick = {"GRACE": 0.5}
    ended = bench.run(FAMILY + waits, minutes=0.02)
    assert ended.code == 0 and ended.message == "the payload reached its time limit of 0.02 minutes (resources.minutes)"
    until(lambda: not alive(ended.folder))


def test_children_that_outlive_the_payload_are_ended(bench, until, alive):
    ended = bench.run(FAMILY + """echo '{"status": 0, "loss": 1}' > output.json""")
    assert ended.verdict["value"] == 1
    until(lambda: not alive(ended.folder))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_leaves_nothing_and_no_verdict(bench, until, alive, how):
    process, folder = bench.start(FAMILY + "wait")
    until(lambda: started(folder))
    process.send_signal(how)
    ended = bench.finish(process, folder)
    assert ended.code == 1 and ended.said == "hpo_pilot_runner: told to stop\n" and ended.verdict is None
    until(lambda: not alive(folder))


def test_the_pilots_death_is_the_payloads_end(bench, until, alive):
    reading, writing = os.pipe()
    process, folder = bench.start(FAMILY + "wait", lifeline=reading)
    os.close(reading)
    until(lambda: started(folder))
    assert process.poll() is None
    os.close(writing)
    ended = bench.finish(process, folder)
    assert ended.code == 1 and ended.said == "hpo_pilot_runner: the pilot died\n"
    until(lambda: not alive(folder))


def test_the_payload_does_not_inherit_the_lifeline(bench):
    reading, writing = os.pipe()
    ended = bench.run("ls -l /proc/self/fd > fds; env > env", lifeline=reading)
    os.close(reading)
    os.close(writing)
    assert "LIFELINE" not in (ended.folder / "env").read_text()
    links = [line.split(" -> ")[1] for line in (ended.folder / "fds").read_text().splitlines() if " -> " in line]
    assert sum(link.startswith("pipe:") for link in links) <= 2  # its output, and no more


def test_a_pilot_may_end_a_payload_for_its_own_fault(bench, until, alive):
    process, folder = bench.start(FAMILY + "wait")
    until(lambda: started(folder))
    (folder / "hpo_pilot_stop.txt").write_text("used 900 MB of memory, more than the 500 MB that it asked for")
    process.terminate()
    ended = bench.finish(process, folder)
    assert ended.code == 0 and ended.verdict["status"] == 1
    assert ended.message == "the payload used 900 MB of memory, more than the 500 MB that it asked for"
