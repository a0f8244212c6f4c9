"""Starts a payload through a launcher. The pilot copies it beside hpo_pilot_runner.py, which loads it.

The pilot also writes hpo_pilot_launch.json: the launcher's words before the payload's command, patterns of the
launcher's own lines in the log, and the commands that signal a job step if the launcher does not pass signals on. As a
program, `hpo_pilot_launch.py KILL` ends the rest of the step. Standard library only, Python 3.6 syntax.
"""

import json
import os
import re
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Set, Tuple

DOCUMENT = "hpo_pilot_launch.json"
FOLDER = "%FOLDER"  # in a word: the folder where the payload runs
SECONDS = 30.0  # time limit for a command of the batch system
#: Errors of ranks that lost their partner: a consequence, not the cause of the failure.
CONSEQUENCE = re.compile(
    "HorovodInternalError|Horovod has been shut down|ChildFailedError|^KeyboardInterrupt|DistBackendError"
    "|Connection (closed|reset) by peer"
)
#: What a shell says of a process that a signal ended. A launcher may pass on the rank's own output after it.
ENDED = re.compile("(Killed|Aborted|Bus error|Segmentation fault|Floating point exception|Illegal instruction)( |$)")
#: The end of the launcher's line on a rank that SIGTERM has ended; it may come before the line on the step's end.
TERMINATED = ": Terminated"


class Launch:
    """The launcher as the pilot describes it."""

    def __init__(self, folder: str, shell_signs: "Optional[Set[str]]" = None) -> None:
        """Reads the pilot's description; a command with one of `shell_signs` needs a shell."""
        with open(os.path.join(folder, DOCUMENT), "rb") as file:
            self.said = json.loads(file.read().decode())  # type: Any
        self.shell_signs = shell_signs or set()

    def words(self, command: str) -> "List[str]":
        """Return the whole command as a list of words."""
        before = [word.replace(FOLDER, os.getcwd()) for word in self.said["before"]]
        return before + (["/bin/sh", "-c", command] if self.shell_signs & set(command) else command.split())

    def tell(self, name: str) -> bool:
        """Send a signal to the job step itself; False if that is not possible or there is no such step."""
        found = False
        for step in self.steps():
            words = [word.replace("%SIGNAL", name) for word in self.said["signal"]] + [step]
            # The status says little: scancel 22.05 fails if the allocation has nodes without this step, and signals it.
            found = run(words) is not None or found
        return found

    def steps(self) -> "List[str]":
        """Return the batch system's names of the running steps of this job."""
        done = run(self.said["steps"]) if self.said.get("steps") else None
        listed = [line.split() for line in done.stdout.decode("utf-8", "replace").splitlines()] if done else []
        return [words[0] for words in listed if words[1:] == [self.said["name"]]]

    def was_cancelled(self, log: str) -> bool:
        """Return whether the step was ended from outside: the launcher says so before it says that a rank failed."""
        dead, cancelled = (re.compile(self.said.get(key) or "(?!)") for key in ("dead", "cancelled"))
        for line in log.splitlines():
            if cancelled.search(line):
                return True
            if dead.search(line) and not line.rstrip().endswith(TERMINATED):
                return False
        return False

    def last_words(self, log: str) -> str:
        """Return the last line of the rank that failed first, or the launcher's error line if no rank wrote one.

        A rank with an exception comes before ranks that waited for it, even if those ended earlier.
        """
        label, dead, own = (re.compile(self.said.get(key) or "(?!)") for key in ("label", "dead", "own"))
        lines = log.splitlines()
        at, rank = len(lines), None  # type: int, Optional[str]
        for place, line in enumerate(lines):
            failed = dead.search(line)
            if failed:
                at, rank = place, failed.group(1) if dead.groups else None
                break
        raised = exceptions(lines, label, own)
        by_dead = [each for each in raised if rank and each[1] and int(each[1]) == int(rank)]
        for _, who, text in (by_dead or [each for each in raised if each[0] < at])[-1:] or raised[:1]:
            return "rank %s: %s" % (who, text) if who else text
        before, of_rank, of_launcher = "", "", ""
        partners = {found.group() for found in map(label.match, filter(CONSEQUENCE.search, lines)) if found}
        for place, line in enumerate(lines):
            labelled = label.match(line)
            text = (line[labelled.end() :] if labelled else line).rstrip()
            if own.search(text):
                of_launcher = of_launcher or (text if "error" in text.lower() else "")
            elif text:
                before = text if place < at and not (labelled and labelled.group() in partners) else before
                if labelled and rank and int(labelled.group(1)) == int(rank) and not ENDED.match(of_rank):
                    of_rank = text
        return "rank %s: %s" % (rank, of_rank) if of_rank else before or of_launcher


def exceptions(lines: "List[str]", label: "Any", own: "Any") -> "List[Tuple[int, str, str]]":
    """Return the exceptions in a log as (line number, rank, text), without consequences and the launcher's own.

    Each rank and stream is read separately, because a launcher mixes their lines.
    """
    found, inside = [], set()  # type: List[Tuple[int, str, str]], Set[str]
    for place, line in enumerate(lines):
        labelled = label.match(line)
        stream, text = (labelled.group(), line[labelled.end() :]) if labelled else ("", line)
        if text.startswith("Traceback (most recent call last)"):
            if labelled or not own.search(text):
                inside.add(stream)
        elif stream in inside and re.match(r"[A-Za-z_][\w.]*(:|$)", text):
            inside.discard(stream)
            if not CONSEQUENCE.search(text):
                found.append((place, labelled.group(1) if labelled else "", text.rstrip()))
    return found


def run(words: "List[str]") -> "Any":
    """Run a command of the batch system; None if it cannot run. Errors go to the runner's log."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print("hpo_pilot_launch: %s: %s" % (words[0], error), file=sys.stderr)
        return None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        print("hpo_pilot_launch: %s ended with %d: %s" % (words[0], done.returncode, said), file=sys.stderr)
    return done


if __name__ == "__main__":
    Launch(os.path.dirname(os.path.abspath(__file__))).tell(sys.argv[1])
