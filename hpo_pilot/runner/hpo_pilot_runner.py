#!/usr/bin/env python3
"""Runs one hyper-parameter point: the file that travels in every sandbox.

    python3 -I -S hpo_pilot_runner.py --task <table of points> --number <n>

It picks point n, writes input.json, runs the payload's command, reads output.json and writes userJobMetadata.json. The
search may name these files differently. A failure of the payload (a crash, NaN, no output.json, its time limit) is a
verdict: the runner exits with 0 and writes the reason into the metadata, because PanDA keeps no metadata of failed jobs
and a retry would fail again. A failure that PanDA should retry (full disk, a signal to stop, a dead pilot, a
cancelled job step, a broken --task) ends with exit status 1 and one line. The file uses only the standard library,
Python 3.6 syntax and no site-packages. It starts once for each point, so rarely used modules are imported where they
are used. hpo_pilot_series.py starts it several times, one point after another.
"""
# ruff: noqa: B905  (zip's strict= is newer than 3.6)

import binascii
import fcntl
import json
import os
import select
import signal
import sys
import time
import zlib

try:
    import ctypes
except ImportError:  # a Python that was built without it
    ctypes = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

PAYLOAD_FILE, LOG_FILE = "hpo_pilot_payload.json", "payload.log"
NAMES = {"point": "input.json", "result": "output.json", "inputs": "input_ds.json", "progress": "progress.jsonl"}
STAGED_FILE = "hpo_pilot_inputs.json"  # names of the fetched input files
STOP_FILE = "hpo_pilot_stop.txt"  # the pilot writes the reason here when it ends a payload that broke a limit
RANKS_FOLDER = "hpo_pilot_measured"
TIMELINE, RANKS_TIMELINE = "horovod_timeline.json", "ranks_timeline.json"  # each only if it is a declared output
LOG_HEAD = LOG_TAIL = 512 * 1024  # bytes kept from the beginning and from the end of the log
LOG_SHOWN = 64 * 1024  # bytes of log in the metadata
LOG_KEPT = 2000  # characters of it for a payload with a figure of merit
FILE_LIMIT = 10 * 1024 * 1024  # bytes of output.json, and bytes read from the end of progress.jsonl
PROGRESS_KEPT = METRICS_KEPT = 200  # with LOG_SHOWN these limits keep the metadata below PanDA's 1 MB
HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON, RANKS, RESULTS = "hpo_pilot_python", "hpo_pilot_ranks", "hpo_pilot_results"
ORPHANS, COMMAND, FIGURES = "hpo_pilot_orphans", "hpo_pilot_command", "hpo_pilot_figures"
LAUNCH = "hpo_pilot_launch"  # the pilot writes its .py and .json here if a launcher starts the payload
COUNTERS = ("/sys/cray/pm_counters", "/sys/class/powercap", "/proc/driver/nvidia", "/dev/kfd")  # possible, of energy
GRACE = 10.0  # seconds between TERM and KILL, for the payload to write its checkpoint
SECRETS = {"TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "X509", "OIDC"}
SHELL_SIGNS = set("\"'\\$`;&|<>()[]{}*?!#~=\n")
SPAWN = getattr(os, "posix_spawnp", None)  # type: Any  # Python 3.8
FUNCTION = globals().get("FUNCTION")  # calls the payload's function if hpo_pilot_function.py has forked this process


def from_json(data: bytes) -> "Any":
    """Decode JSON in UTF-8, with or without a byte order mark; ValueError if it is not JSON."""
    return json.loads(data.decode("utf-8-sig"))


def to_json(value: "Any") -> bytes:
    """Encode as JSON, in ASCII."""
    return json.dumps(value).encode()


def read(path: str, limit: int) -> bytes:
    """Read the last `limit` bytes of a file."""
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
        return file.read(limit)


def write(path: str, data: bytes) -> None:
    """Write a file atomically."""
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.rename(path + ".new", path)


def number(value: "Any") -> "Optional[float]":
    """Return the value as a finite float, or None; a bool is not a number."""
    counts = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if counts else None


def clean(data: bytes, limit: int) -> str:
    """Return the last `limit` bytes as printable text, because terminals and pages show what payloads write."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    text = "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)
    return text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")


def files_in(root: str, names: "Iterable[str]") -> "Iterator[str]":
    """Yield the named files and the files in the named folders; skip names and links that lead outside of root."""
    for name in names:
        found = [os.path.join(folder, f) for folder, _, files in os.walk(os.path.join(root, name)) for f in files]
        for file in found or [os.path.join(root, name)]:
            if os.path.isfile(file) and os.path.realpath(file).startswith(os.path.realpath(root) + os.sep):
                yield os.path.relpath(file, root)


def prepare(task: str, index: str) -> "Tuple[Dict[str, Any], Dict[str, Any]]":
    """Pick the point and write the payload's input files; returns (the job's identity, the payload's description)."""
    try:
        table = from_json(zlib.decompress(binascii.a2b_base64(task.translate({45: "+", 95: "/"}) + "===")))
        job = {name: table[name] for name in ("search", "uid", "generation", "folds")}
        job["number"], job["attempt"] = int(index), int(os.environ.get("PANDA_ATTEMPTNR") or 1)
        job["trial"], job["fold"], job["seed"] = dict(enumerate(table["jobs"], table.get("first", 1)))[job["number"]]
        job.update(table.get("levels", {}).get(str(job["trial"]), {}))  # level, chain, keep_checkpoint
        point, payload = table["points"][str(job["trial"])], from_json(read(PAYLOAD_FILE, FILE_LIMIT))
        command = payload["command"].replace("%FOLDS", str(job["folds"])).replace("%FOLD", str(job["fold"]))
        if payload.get("segment"):
            import shlex  # noqa: PLC0415  only with segments

            job["segment"] = payload["segment"]
            command = command.replace("%SEGMENT_NAME", shlex.quote(job["segment"]))
        if payload.get("placeholders"):
            command = companion(COMMAND)["fill"](command, payload["placeholders"], point)
        names = dict(NAMES, **{key: name for key, name in (payload.get("file_names") or {}).items() if name})
        staged = from_json(read(STAGED_FILE, FILE_LIMIT)) if os.path.exists(STAGED_FILE) else payload.get("inputs")
    except Exception as error:
        raise SystemExit("hpo_pilot_runner: --task or %s is broken: %r" % (PAYLOAD_FILE, error)) from error
    root = os.environ.get("HPO_PILOT_CHECKPOINT_ROOT") or os.path.abspath("hpo_pilot_checkpoints")
    # A trial that goes on from earlier ones has a folder beside theirs; pilot/checkpoints.py knows these names.
    chain = job.get("chain", job["trial"])
    own = "" if chain == job["trial"] else ".%s" % job["trial"]
    job["checkpoint_dir"] = os.path.join(root, job["uid"], "t%sf%s%s" % (chain, job["fold"], own))
    job["nodes"], job["gpus"] = payload.get("nodes") or 1, payload.get("gpus_per_node") or 0
    if os.environ.get("HPO_PILOT_IDDS_URL"):  # ends in /idds and has all points of the job
        mine = "/t%sf%s/idds" % (job["trial"], job["fold"])
        os.environ["HPO_PILOT_IDDS_URL"] = os.environ["HPO_PILOT_IDDS_URL"].rpartition("/")[0] + mine
    for stale in filter(os.path.lexists, (names["result"], names["progress"], "outputs.tar.gz")):
        os.unlink(stale)  # from the user's own dry run
    for source in filter(None, (payload.get("result"), payload.get("progress"))):
        if os.path.isfile(source.get("file", "")):
            os.unlink(source["file"])
    write(names["point"], to_json(point))
    write("job.json", to_json(job))
    write(names["inputs"], to_json(staged or []))
    return job, dict(payload, command=command, file_names=names, point=point)


def companion(name: str) -> "Any":
    """Load a file beside this one. It is not imported: the payload's files would come first in sys.path."""
    space = {"__name__": name}
    with open(os.path.join(HERE, name + ".py"), "rb") as file:
        exec(compile(file.read(), file.name, "exec"), space)  # noqa: S102  as import does
    return space


def hold(folder: str) -> None:
    """Make the checkpoint folder and wait for an earlier attempt, whose pilot died, to save its last checkpoint."""
    os.makedirs(folder, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)  # stays locked until this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        del error  # a file system without locks


def spawn(command: str, env: "Dict[str, str]", output: int) -> int:
    """Start the payload's command as `start` does, but quicker, because it does not copy this process."""
    for fd in map(int, os.listdir("/dev/fd")):
        try:
            os.set_inheritable(fd, fd < 3)
        except OSError as error:
            del error  # that of the list itself, closed by now
    files = ((0, 0, os.devnull, os.O_RDONLY, 0), (2, output, 1), (2, output, 2))  # POSIX_SPAWN_OPEN, POSIX_SPAWN_DUP2
    kept = {"file_actions": files, "setpgroup": 0, "setsigdef": (signal.SIGPIPE, signal.SIGXFSZ)}  # as in `start`
    words = [] if SHELL_SIGNS & set(command) else command.split()
    path = words[0] if words else "/bin/sh"
    return int(SPAWN(path, words or ["sh", "-c", command], env, **kept))


def start(command: str, env: "Dict[str, str]", output: int, launch: "Any") -> int:
    """Start the payload, through the launcher if there is one, as leader of a process group; returns its pid."""
    if SPAWN and not (FUNCTION or launch):
        try:
            return spawn(command, env, output)
        except OSError as error:
            del error  # no such program: below, a shell reports that
    pid = os.fork()
    try:
        os.setpgid(pid, pid)  # parent and child both do it: it must be done before either goes on
    except OSError as error:
        del error  # the child was quicker
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would pass that on
            signal.signal(ignored, signal.SIG_DFL)
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        if FUNCTION and not launch:
            FUNCTION(env)
        os.closerange(3, 256)
        words = launch.words(command) if launch else [] if SHELL_SIGNS & set(command) else command.split()
        try:  # without a shell if possible, so that signals reach the payload directly
            os.execvpe(words[0], words, env)  # noqa: S606
        except (OSError, IndexError):  # the command needs a shell, which also reports a missing program
            shell = ["-c", 'exec "$0" "$@"', *words] if launch else ["-c", command]
            os.execve("/bin/sh", ["sh", *shell], env)  # noqa: S606
    finally:
        os._exit(127)


def adopt_orphans() -> None:
    """Become the parent of the payload's orphaned processes, to end and reap them; only on Linux."""
    try:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    except (OSError, AttributeError) as error:
        del error  # not Linux


def end_orphans() -> None:
    """End what an ended payload has left in other process groups."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return  # nothing, as a rule
    companion(ORPHANS)["end_all"]()


class Life:
    """The payload's processes and log, from its start to the end of its process group."""

    def __init__(self, job: "Dict[str, Any]", payload: "Dict[str, Any]", checkpoints: "Any") -> None:
        self.checkpoints, self.log, self.logged = checkpoints, open(LOG_FILE, "wb+", 0), 0  # noqa: SIM115
        self.launch, self.figures = payload.get(LAUNCH), payload.get(FIGURES)
        self.limit = time.monotonic() + 60 * (number(payload.get("minutes")) or 1e7)
        self.wake, alarm = os.pipe()
        os.set_blocking(alarm, False)
        signal.set_wakeup_fd(alarm)
        for noticed in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(noticed, lambda *_: None)  # the signal's number arrives through the pipe
        lifeline = os.environ.pop("HPO_PILOT_LIFELINE_FD", "-")  # a container runtime may have closed it
        self.lifeline = int(lifeline) if os.path.exists("/dev/fd/" + lifeline) else self.wake
        self.pipe, output = os.pipe()
        self.poll = select.poll()
        for fd in (self.wake, self.lifeline, self.pipe):
            self.poll.register(fd, select.POLLIN)
        env = {name: value for name, value in os.environ.items() if not SECRETS & set(name.upper().split("_"))}
        env.update(("HPO_PILOT_" + name.upper(), str(value)) for name, value in job.items())
        env["HPO_PILOT_CORES"] = str(payload.get("cores") or 0)
        env["HPO_PILOT_MEASURED"] = os.path.abspath(RANKS_FOLDER)  # ranks may run in another folder
        if payload.get("cores") and not self.launch:  # numerical libraries would use all cores of the machine
            env.setdefault("OMP_NUM_THREADS", str(payload["cores"]))
        if payload.get("progress"):
            env.setdefault("PYTHONUNBUFFERED", "1")  # or a line would come with many later ones
        if TIMELINE in (payload.get("outputs") or ()):
            env["HOROVOD_TIMELINE"] = os.path.abspath(TIMELINE)
        if RANKS_TIMELINE in (payload.get("outputs") or ()):
            env["HPO_PILOT_TIMELINE"] = "1"
        adopt_orphans()
        self.pid = start(payload["command"], env, output, self.launch)
        os.close(output)

    def read_log(self) -> bool:
        """Copy the payload's output into the log: its beginning, then a ring for its end. False: there was none."""
        if self.pipe not in dict(self.poll.poll(0)):
            return False
        data = said = os.read(self.pipe, 1 << 16)
        if self.figures:
            self.figures.feed(data)
        while data:
            at = self.logged if self.logged < LOG_HEAD else LOG_HEAD + (self.logged - LOG_HEAD) % LOG_TAIL
            self.log.seek(at)
            done = self.log.write(data[: (LOG_HEAD if at < LOG_HEAD else LOG_HEAD + LOG_TAIL) - at])
            self.logged, data = self.logged + done, data[done:]
        return bool(said)

    def close_log(self) -> str:
        """Put the ring in order; returns the end of the log."""
        left_out = self.logged - LOG_HEAD - LOG_TAIL
        if left_out > 0:
            self.log.seek(LOG_HEAD)
            ring, middle = self.log.read(LOG_TAIL), left_out % LOG_TAIL
            self.log.seek(LOG_HEAD)
            self.log.write(b"\n... %d bytes are left out here ...\n" % left_out + ring[middle:] + ring[:middle])
        return clean(read(LOG_FILE, LOG_SHOWN), LOG_SHOWN)

    def tell(self, which: int) -> bool:
        """Send a signal to the payload's process group; False if the group is empty."""
        try:
            os.killpg(self.pid, which)
            return True
        except OSError:
            return False

    def is_running(self) -> bool:
        """Return whether the payload's group has a running process; processes that wait to be reaped do not count."""
        if not self.tell(0):
            return False
        try:
            pids = [name for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return True  # not Linux
        for pid in pids:
            try:
                with open("/proc/%s/stat" % pid, "rb") as file:  # proc(5); the name in brackets may hold brackets
                    state, _, group = file.read().rpartition(b")")[2].split()[:3]
            except (OSError, ValueError):
                continue  # it has just ended
            if int(group) == self.pid and state not in (b"Z", b"X"):
                return True
        return False

    def has_ended(self) -> bool:
        """Return whether the payload has ended; reaps its orphans that have ended, and not the payload itself."""
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == self.pid:
                return ended is not None
            os.waitpid(ended.si_pid, 0)

    def watch(self) -> str:
        """Wait until the payload has ended ("") or must be ended; returns the cause: limit, term or lifeline."""
        while True:
            save_at = self.checkpoints.next if self.checkpoints else 1e9
            look_at = self.figures.next if self.figures and self.figures.progress.get("file") else 1e9
            due = min(self.limit, save_at, look_at) - time.monotonic()
            events = dict(self.poll.poll(1000 * min(max(0, due), 1e6)))
            if self.pipe in events and not self.read_log():
                self.poll.unregister(self.pipe)
            if self.wake in events:
                if set(os.read(self.wake, 512)) - {signal.SIGCHLD}:
                    return "term"
                if self.has_ended():
                    return ""
            elif self.lifeline in events:
                return "lifeline"
            if time.monotonic() >= self.limit:
                return "limit"
            if self.figures:
                self.figures.look()
            if time.monotonic() >= save_at:
                self.checkpoints.save()

    def end(self, cause: str) -> int:
        """End the rest of the group and keep the checkpoints; returns the leader's wait status."""
        which = 0 if cause and self.launch and self.launch.tell("TERM") else signal.SIGTERM
        status, until = None, time.monotonic() + GRACE  # type: Optional[int], float
        told, exited = False, False
        while cause and time.monotonic() < until and self.tell(which):
            which = 0  # later rounds only test whether the group is empty
            if self.checkpoints and not told:
                self.checkpoints.mark()
            told = True
            try:
                reaped, ended = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # not Linux: others have adopted them
                reaped, ended = 0, 0
                if not self.is_running():
                    break
            status = ended if reaped == self.pid else status
            exited = exited or (reaped != 0 and os.WIFEXITED(ended))
            while self.read_log():
                pass
            time.sleep(0 if reaped else 0.01)
        killed = bool(cause) and self.is_running()
        self.tell(signal.SIGKILL)
        if killed and self.launch:
            self.launch.tell("KILL")
        status = os.waitpid(self.pid, 0)[1] if status is None else status
        end_orphans()
        any(not self.read_log() for _ in range(1024))  # at most 64 MB: a process that cannot be ended may go on writing
        if self.checkpoints:
            self.checkpoints.changed = 0.0
            # A shell around the training dies of the signal; the training may save and end with an exit code.
            saved = exited and self.checkpoints.has_changed()
            # Above 128: a shell or a launcher says that a signal ended the training, which may have been writing.
            exited = os.WIFEXITED(status) and os.WEXITSTATUS(status) <= 128
            self.checkpoints.save(settled=not killed and (exited or saved))
        return status


def how_it_ended(status: int) -> str:
    """Describe how the payload ended; empty after exit code 0."""
    names = {getattr(signal, name): name for name in dir(signal) if name.startswith("SIG") and "_" not in name}
    code = os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status) - 128
    how = "was ended by signal %d" % code if os.WIFSIGNALED(status) else "ended with exit code %d" % (code + 128)
    how += " (%s)" % names[code] if code in names else ""
    return how + (", as the system does when memory runs out" if code == signal.SIGKILL else "") if status else ""


def written(name: str, limit: int) -> bytes:
    """Read a file of the payload; ValueError if it is missing, not a plain file or too large."""
    if not os.path.isfile(name) or os.path.getsize(name) > limit:
        text = "no plain file of at most %g MB" % (limit / 2.0**20)
        raise ValueError(text if os.path.lexists(name) else "none was written")
    return read(name, limit)


def judge(
    name: str, wanted: "List[str]", ended: str, used: "Any", find: "Any" = None
) -> "Tuple[List[Any], Dict[str, float], str]":
    """Judge the payload's result.

    Args:
        name: the result file, or the key of the search file that says where the result is.
        wanted: names of the figures of merit.
        ended: how the payload failed; empty: it ended well.
        used: metrics of the ranks' efficiency and of the energy.
        find: returns the figure of merit; None: it is in the result file.

    Returns:
        (the figures of merit, further metrics, why there are no figures of merit).
    """
    output, wrong = {}, ""  # type: Any, str
    try:
        output = {wanted[0]: find()} if find else from_json(written(name, FILE_LIMIT))
        output = {wanted[0]: output} if isinstance(output, (int, float)) else output  # a bare number is accepted
        if not isinstance(output, dict):
            raise ValueError("not an object, {...}")
    except (ValueError, RecursionError) as error:
        output, wrong = {}, "no usable %s: %s" % (name, error)
    metrics = dict(used, **(output["metrics"] if isinstance(output.get("metrics"), dict) else {}))
    figures, status = [output.get(key, metrics.get(key)) for key in wanted], output.get("status", 0)
    missing = [repr(key) for key in wanted if key not in output and key not in metrics]
    if status != 0 or isinstance(status, bool):
        wrong = "the payload reported status %s: %s" % (to_json(status).decode(), output.get("message") or "no message")
        wrong += "; it " + ended if ended else ""
    elif ended:
        wrong = "the payload " + ended
    elif not wrong and missing:
        wrong = "%s has no key %s; it has %s" % (name, " and no ".join(missing), ", ".join(map(repr, output)) or "none")
    elif not wrong:
        bad = ((key, name, to_json(x).decode()) for key, x in zip(wanted, figures) if number(x) is None)
        wrong = "; ".join("%r in %s is no finite number but %.60s" % x + "..." * (len(x[2]) > 60) for x in bad)
    numbers = ((str(key)[:100], number(metrics[key])) for key in list(metrics)[:METRICS_KEPT])
    return [None if wrong else number(x) for x in figures], {key: x for key, x in numbers if x is not None}, wrong


def read_progress(name: str, metric: str) -> "List[List[Any]]":
    """Read [step, value] pairs (None: NaN), thinned out but with the last one; broken lines are skipped."""
    pairs = []  # type: List[List[Any]]
    for line in read(name, FILE_LIMIT).split(b"\n") if os.path.isfile(name) else ():
        try:
            entry = from_json(line)
            value = entry[metric] if metric in entry else entry["value"]
            if number(entry["step"]) is not None and isinstance(value, (int, float)) and not isinstance(value, bool):
                pairs.append([entry["step"], number(value)])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return pairs[: -1 : len(pairs) // PROGRESS_KEPT + 1] + pairs[-1:]


def run(options: "Dict[str, str]") -> None:
    """Run the job; SystemExit or OSError if there is no verdict."""
    started = time.time()
    job, payload = prepare(options.get("--task", ""), options.get("--number", ""))
    command = payload["command"]
    if payload.get("python"):
        payload["command"] = companion(PYTHON)["command_with"](payload["python"], command, HERE)
    if os.path.exists(os.path.join(HERE, LAUNCH + ".json")):
        payload[LAUNCH] = companion(LAUNCH)["Launch"](HERE, SHELL_SIGNS)
    if payload.get("result") or payload.get("progress"):
        payload[FIGURES] = companion(FIGURES)["Figures"](payload, payload["file_names"]["progress"], written)
    hold(job["checkpoint_dir"])
    from_start = "chain" in job and not set(os.listdir(job["checkpoint_dir"])) - {".new"}
    anew = "trained from the start: there is no checkpoint of trial %s" % job["chain"] if from_start else ""
    kept = (job["checkpoint_dir"], payload["checkpoint"], files_in) if payload.get("checkpoint") else ()
    life = Life(job, payload, companion("hpo_pilot_checkpoints")["Checkpoints"](*kept) if kept else None)
    on_nodes = LAUNCH in payload and any(ORPHANS in word for word in payload[LAUNCH].said["before"])
    metered = on_nodes or any(map(os.path.exists, COUNTERS))
    meter = companion("hpo_pilot_energy")["meter_of"](job, payload, ranks=on_nodes) if metered else dict
    try:
        cause = life.watch()
        status = life.end(cause)
    finally:
        life.tell(signal.SIGKILL)
    tail = life.close_log()
    if life.figures:
        life.figures.end()
    if cause == "limit":
        ended = "reached its time limit of %s minutes (resources.minutes)" % payload["minutes"]
    elif cause == "term" and os.path.exists(STOP_FILE):
        ended = clean(read(STOP_FILE, 1000), 1000)
    elif cause:
        sys.exit("hpo_pilot_runner: " + ("told to stop" if cause == "term" else "the pilot died"))
    elif status and LAUNCH in payload and payload[LAUNCH].was_cancelled(tail):
        sys.exit("hpo_pilot_runner: the job step was cancelled")
    else:
        ended = how_it_ended(status)
        said = payload[LAUNCH].last_words(tail) if LAUNCH in payload else tail.strip().rpartition("\n")[2]
        ended += ": " + said[:300] if ended and said else ""
    names, wanted = payload["file_names"], payload.get("objectives") or [payload.get("metric") or "loss"]
    find = (lambda: payload[FIGURES].figure(tail)) if payload.get("result") else None
    if os.environ.get("HPO_PILOT_IDDS_URL") and not ended and not find and not os.path.lexists(names["result"]):
        companion(RESULTS)["fetch_loss"](names["result"], wanted[0])
    assess = companion(RANKS)["assess"] if os.path.isdir(RANKS_FOLDER) else lambda *_: ({}, {}, "")
    used, ranks, unjudged = assess(RANKS_FOLDER, number)
    if "memory_mb" in payload.get("measured", ()) and LAUNCH not in payload:
        import resource  # noqa: PLC0415  only with a limit on the memory

        used["memory_mb"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024.0  # of the largest process
    (value, *others), metrics, message = judge(
        "payload.result" if find else names["result"], wanted, ended, dict(used, **meter()), find
    )
    keep = companion(RESULTS)["own_metadata"] if "metadata" in names else lambda *_: ({}, "")
    own, unkept = keep(names.get("metadata"), written, number)
    outputs = [] if value is None else payload.get("outputs") or []
    if RANKS_TIMELINE in outputs and os.path.isdir(RANKS_FOLDER):
        companion(RANKS)["join_timelines"](RANKS_FOLDER, RANKS_TIMELINE)
    if outputs:
        outputs, message = companion(RESULTS)["pack"](outputs, files_in)
    progress = read_progress(names["progress"], payload.get("progress_metric") or wanted[0])
    inside = LAUNCH not in payload or not payload.get("container")
    python = companion(PYTHON)["which"](payload, command, message + tail, inside) if value is None else ""
    if job.get("keep_checkpoint") and life.checkpoints and life.checkpoints.trouble:
        anew = "; ".join(filter(None, (anew, "the checkpoint is not kept: " + life.checkpoints.trouble)))
    message = "; ".join(filter(None, (message, unkept if value is not None else "", unjudged, python, anew)))
    verdict = dict(job, version=1, status=int(value is None), value=value, metrics=metrics, outputs=outputs)
    verdict.update({"from_start": True} if from_start else {})
    verdict.update(message=clean(message[:2000].encode("utf-8", "replace"), 2000))
    verdict.update(cause=cause, log_tail=tail if value is None else tail[-LOG_KEPT:], values=[value, *others])
    verdict.update(started=started, ended=time.time(), seconds=time.time() - started, node=os.uname().nodename)
    verdict.update(progress=progress, last_progress=dict(zip(("step", "value"), progress[-1])) if progress else None)
    told = companion("hpo_pilot_hpogrid")["reported"] if "hyperparameters" in payload else lambda known, _: known
    write("userJobMetadata.json", to_json(told(dict(own, hpo_pilot=verdict, **ranks), payload)))
    try:
        os.rmdir(job["checkpoint_dir"])
    except OSError:
        if value is not None and "level" not in job:  # no later attempt needs it; the pilot deletes those of levels
            import shutil  # noqa: PLC0415  only with checkpoints

            shutil.rmtree(job["checkpoint_dir"], ignore_errors=True)


if __name__ == "__main__":
    try:
        run(dict(zip(sys.argv[1::2], sys.argv[2::2])))
    except OSError as error:
        sys.exit("hpo_pilot_runner: cannot work in %s: %s" % (os.getcwd(), error))
