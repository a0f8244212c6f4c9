"""What `status --watch` shows: on wide and narrow terminals, of searches in every state, and how it ends."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
from datetime import UTC, datetime

import pytest
from rich.cells import cell_len
from rich.console import Console

from hpo_pilot.cli.output import next_step
from hpo_pilot.cli.progress import dashboard
from hpo_pilot.store import SearchState
from tests.rest_api import add_results, set_state, steered, write_search

NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
EVIL = "exit \x1b[2J\x1b]0;title\x07 1 \r\n" + "x" * 400


@pytest.fixture(autouse=True)
def demo(folder, work, client):
    """A steered search with twelve trials of forty, of which the first failed."""
    client.submit(write_search(folder, "demo", budget={"trials": 40, "parallel": 4, "hours": 5, "core_hours": 2}))
    add_results(work, "demo", 12)
    with steered(work):
        yield


def drawn(search, width, step="", **more):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, color_system=None)
    console.print(dashboard(search, step, width, now=NOW, **more))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [32, 60, 80, 120])
def test_it_fits_and_says_what_matters(client, width):
    status = client.status("demo")
    lines = drawn(status, width, next_step(client, status))
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= (24 if width >= 60 else 40)
    text = " ".join(" ".join(lines).split())
    for expected in ("demo running", "12 of 40", "best loss 2.50 ± 0.70", "trial 2", "0 of 4 run", "failed", "next"):
        assert expected in text
    if width >= 60:
        assert "trial 1: fold 0: exit status 1" in text
        assert "core-hours (" in text
        assert "left about" in text
        assert "drawing: every point is drawn afresh" in text
        assert re.search(r"2.5 [▁▂▃▄▅▆▇█]+ 2.5", text)


def test_texts_of_payloads_steer_no_terminal(client):
    status = client.status("demo")
    status["message"] = EVIL
    status["last_failure"] = {"trial": 1, "error": EVIL, "ended": None}
    status["remarks"] = [EVIL]
    status["optimizer_state"] = EVIL
    lines = drawn(status, 60, trouble=EVIL)
    assert not any(c for line in lines for c in line if not c.isprintable())
    assert max(map(cell_len, lines)) <= 60


@pytest.mark.parametrize("state", list(SearchState))
def test_every_state_says_what_to_do_next(client, work, state):
    set_state(work, "demo", state, "because")
    status = client.status("demo")
    text = " ".join(drawn(status, 100, next_step(client, status)))
    assert state.value in text
    assert "next" in text
    assert "`hpo-pilot" in text


def test_a_family_and_several_objectives(client, folder):
    client.submit(write_search(folder, "family", segments=["one", "two"]))
    assert "family-two" in " ".join(drawn(client.status("family"), 60))
    objective = [{"metric": "loss"}, {"metric": "time"}]
    client.submit(write_search(folder, "front", objective=objective))
    shown = " ".join(drawn(client.status("front"), 60))
    assert "no result yet" in shown and "to judge by" not in shown, "nothing runs yet whose end could be foreseen"


# --- on a terminal ---


class Terminal:
    """A command on a pseudo-terminal of its own."""

    def __init__(self, columns, *words, **environment):
        self.text = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            self._resize(0, columns)
            # Not what readline puts there behind Python's back: COLUMNS and LINES.
            kept = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
            command = [sys.executable, "-m", "hpo_pilot.cli", *words]
            os.execve(command[0], command, {**kept, "TERM": "xterm-256color", **environment})  # noqa: S606

    @staticmethod
    def _resize(fd, columns):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def resize(self, columns):
        self._resize(self._fd, columns)

    def _read(self, seconds=600.0):
        """Adds what it writes next; false when it has ended."""
        assert select.select([self._fd], [], [], seconds)[0], self.text[-2000:]
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            data = b""
        self.text += data.decode(errors="replace")
        return bool(data)

    def until(self, what):
        """Reads on until `what` is there."""
        start = len(self.text)
        while what not in self.text[start:] and self._read():
            pass

    def end(self):
        while self._read():
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def screens(self):
        """What was drawn, screen by screen, without styles."""
        plain = re.sub(r"\x1b\[[0-9;]*m", "", self.text)
        return [part.split("\x1b")[0].splitlines() for part in plain.split("\x1b[H")[1:]]


@pytest.mark.parametrize("columns", [60, 120])
def test_on_a_terminal(columns):
    terminal = Terminal(columns, "status", "demo", "--watch")
    terminal.until("Ctrl-C stops")
    terminal.resize(80)
    terminal.until("Ctrl-C stops")
    terminal.until("Ctrl-C stops")
    os.kill(terminal.pid, signal.SIGINT)
    assert terminal.end() == 3
    screens = [screen for screen in terminal.screens() if any("12 of 40" in line for line in screen)]
    for screen, width in ((screens[0], columns), (screens[-1], 80)):
        assert {cell_len(line) for line in screen if line.strip()} == {width}
    assert terminal.text.index("\x1b[?1049h") < terminal.text.index("\x1b[?1049l")
    after = terminal.text.rpartition("\x1b[?1049l")[2]
    assert after.strip() == "hpo-pilot: no longer watching search 'demo'; it continues"
    assert "\x1b[?25h" in terminal.text


def test_it_ends_with_the_search(work):
    terminal = Terminal(70, "status", "demo", "--watch", NO_COLOR="1")
    terminal.until("Ctrl-C stops")
    set_state(work, "demo", SearchState.DONE)
    assert terminal.end() == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.text), "no colours"
    after = terminal.text.rpartition("\x1b[?1049l")[2]
    assert "state" in after
    assert "done" in after
