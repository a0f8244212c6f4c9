"""bsub, bjobs and bkill that keep jobs in a file and refuse what the real ones refuse; for LSF is not to be had.

What they check comes from IBM Spectrum LSF 10.1's reference of the commands. The state of a job is what a test writes
into $LSF_STUB/jobs.json.
"""

import getopt
import json
import os
import pathlib
import re
import shlex
import sys

FOLDER = pathlib.Path(os.environ["LSF_STUB"])
JOBS = FOLDER / "jobs.json"
#: Options of bsub, and what their values look like; None: they have none.
BSUB = {
    "J": r"[^\s]{1,4094}",
    "nnodes": r"[1-9]\d*",
    "n": r"[1-9]\d*",
    "W": r"\d+(:[0-5]\d)?",
    "q": r"\w+",
    "P": r"\w{1,511}",
    "wa": r"[A-Z][A-Z0-9]*",
    "wt": r"\d+(:[0-5]\d)?",
    "R": r"(select|span|rusage)\[[^\]]+\]",
    "gpu": r"num=\d+/(host|task)",
    "o": r"/.+",
    "alloc_flags": r"[A-Za-z0-9 ]+",
    "rn": None,
    "x": None,
}


def say(said):
    sys.stdout.write(f"{said}\n")


def complain(said):
    sys.stderr.write(f"{said}\n")


def end(status, said):
    complain(said)
    sys.exit(status)


def read():
    return json.loads(JOBS.read_text()) if JOBS.exists() else {}


def bsub():
    if sys.argv[1:]:
        end(255, "bsub: only a script on standard input is looked through for #BSUB lines")
    script = sys.stdin.read()
    lines = script.splitlines()
    if not lines or not lines[0].startswith("#!"):
        end(255, "Empty job. Job not submitted.")
    given = {}
    for line in lines:
        if not line.startswith("#BSUB "):
            continue
        words = shlex.split(line[len("#BSUB ") :])
        while words:
            option = words.pop(0)
            name = option[1:]
            if not option.startswith("-") or name not in BSUB:
                end(255, f"{option}: Bad argument or option. Job not submitted.")
            if BSUB[name] is None:
                given[name] = True
                continue
            if not words or not re.fullmatch(BSUB[name], words[0]):
                end(255, f"{option}: Illegal value {words[:1]}. Job not submitted.")
            given[name] = words.pop(0)
    if "nnodes" not in given and "n" not in given:
        end(255, "neither -nnodes nor -n. Job not submitted.")
    if "wt" in given and "wa" not in given:
        end(255, "-wt: needs -wa. Job not submitted.")
    if (FOLDER / "project").exists() and given.get("P") != (FOLDER / "project").read_text():
        end(255, f"User is not in project {given.get('P')}. Request aborted by esub. Job not submitted.")
    jobs = read()
    number = str(1000 + len(jobs))
    jobs[number] = {"name": given.get("J", ""), "queue": given.get("q", "normal"), "stat": "PEND", "reason": "-"}
    jobs[number] |= {"script": script, "options": given}
    JOBS.write_text(json.dumps(jobs))
    say(f"Job <{number}> is submitted to queue <{jobs[number]['queue']}>.")


def bjobs():
    words = sys.argv[1:]
    if words.count("-noheader") != 1:
        end(255, "bjobs: this stub prints no header")
    words.remove("-noheader")
    try:
        options, ids = getopt.getopt(words, "ao:")
    except getopt.GetoptError as error:
        end(255, f"bjobs: {error}")
    fields = dict(options).get("-o", "").split()
    if fields != ["jobid", "stat", "queue", "exit_reason", "job_name", "delimiter='|'"]:
        end(255, f"bjobs: not the fields that this stub has: {fields}")
    jobs = read()
    if not jobs:
        end(255, "No job found")
    for number, job in jobs.items():
        if ids and number not in ids:
            continue
        say("|".join((number, job["stat"], job["queue"], job["reason"], job["name"])))


def bkill():
    jobs, status = read(), 0
    if not sys.argv[1:] or not all(word.isdigit() for word in sys.argv[1:]):
        end(255, "bkill: Job ID or job name needed")
    for number in sys.argv[1:]:
        if number not in jobs:
            complain(f"Job <{number}>: No matching job found")
            status = 255
        elif jobs[number]["stat"] in ("DONE", "EXIT"):
            complain(f"Job <{number}>: Job has already finished")
            status = 255
        else:
            jobs[number] |= {"stat": "EXIT", "reason": "TERM_OWNER: job killed by owner"}
            say(f"Job <{number}> is being terminated")
    JOBS.write_text(json.dumps(jobs))
    sys.exit(status)


{"bsub": bsub, "bjobs": bjobs, "bkill": bkill}[pathlib.Path(sys.argv.pop(1)).name]()
