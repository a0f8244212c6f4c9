#!/usr/bin/env python3
"""Runs one hyper-parameter point: the file that travels in every sandbox.

    python3 -I -S hpo_pilot_runner.py --task <table of points> --number <n>

It picks point n, writes input.json, runs the payload's command, reads output.json, writes userJobMetadata.json.
What the payload does wrong (a crash, NaN, no output.json, its time limit) is a verdict: exit 0 and the reason in the
metadata, for PanDA keeps nothing of failed jobs and a retry would only repeat it. What PanDA shall retry ends with
exit 1 and one line: a disk full, told to stop, the pilot died, a broken --task. The file stands alone: standard
library, Python 3.6 syntax, no site-packages. It starts once per job: what few jobs need is imported where it is used.
"""
# ruff: noqa: PLC0415, B905  (imports where they are used, see above; zip's strict= is newer than 3.6)

import binascii
import os
import select
import sys
import time
import zlib

try:  # the parts written in C: `import signal` takes 5 ms more for its enums, `import json` 9 for regular expressions
    import _json
    import _signal as signal  # type: ignore[import-not-found]
except ImportError:
    import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, NoReturn, Optional, Tuple

PAYLOAD_FILE = "hpo_pilot_payload.json"
STOP_FILE = "hpo_pilot_stop.txt"  # where a pilot that ends a payload for its own fault leaves the reason
LOG_HEAD = LOG_TAIL = 512 * 1024  # bytes of log kept from its beginning and from its end
LOG_SHOWN = 64 * 1024  # bytes of log in the metadata
OUTPUT_LIMIT = 10 * 1024 * 1024  # bytes of output.json
PROGRESS_KEPT = METRICS_KEPT = 200  # with LOG_SHOWN these keep the metadata far below the 1 MB that PanDA takes
GRACE = 10.0  # seconds between TERM and KILL: time for the payload to write its checkpoint
SAVE_EVERY = 5.0  # seconds between looks at the checkpoints
QUIET = 0.5  # seconds without a write after which a checkpoint counts as complete
SECRETS = {"TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "X509", "OIDC"}
SHELL_SIGNS = set("\"'\\$`;&|<>()[]{}*?!#~=\n")


def from_json(data: bytes) -> "Any":
    """Decode JSON; ValueError, in json's words, where it is none."""
    text = data.decode("utf-8-sig").strip(" \t\r\n")
    hooks = dict.fromkeys(("object_hook", "object_pairs_hook", "array_hook"))
    try:
        how = type("", (), dict(hooks, strict=1, parse_float=float, parse_int=int, parse_constant=float))  # type: Any
        value, end = _json.make_scanner(how)(text, 0)
        return value if not text[end:] else 1 // 0
    except Exception:  # noqa: BLE001  whatever the short cut does not like, the public way decides
        import json

        return json.loads(text)


def to_json(value: "Any") -> bytes:
    """Encode as JSON, in ASCII."""
    try:
        how = (None, None, _json.encode_basestring_ascii, None, ": ", ", ", False, False, True)  # type: Any
        return "".join(_json.make_encoder(*how)(value, 0)).encode()
    except Exception:  # noqa: BLE001  as above
        import json

        return json.dumps(value).encode()


def read(path: str, limit: int = OUTPUT_LIMIT) -> bytes:
    """A file, or its last `limit` bytes."""
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
        return file.read(limit)


def write(path: str, data: bytes) -> None:
    """Write a file so that it is there complete or not at all."""
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.rename(path + ".new", path)


def number(value: "Any") -> "Optional[float]":
    """The value as a finite float, else None: a bool is no number."""
    try:
        value = None if isinstance(value, (bool, str)) else float(value)
        return value if value - value == 0 else None
    except (TypeError, OverflowError):
        return None


def clean(data: bytes, limit: int) -> str:
    """The last `limit` bytes as harmless lines of text: terminals and pages show what payloads write."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    text = "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)
    return text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")


def files_in(name: str) -> "Iterator[str]":
    """A file, or the files of a folder; none that a link leads to out of the job's folder or the checkpoints."""
    for folder, file in [os.path.split(name)] + [(folder, f) for folder, _, files in os.walk(name) for f in files]:
        path = os.path.normpath(os.path.join(folder, file))
        if os.path.isfile(path) and not os.path.relpath(
            os.path.realpath(path), os.path.realpath(name if os.path.isdir(name) and 0 else ".")
        ).startswith(".."):
            yield path


def prepare(task: str, index: str) -> "Tuple[Dict[str, Any], Dict[str, Any]]":
    """Pick the point and write the payload's files; returns (which job it is, the payload's description)."""
    try:
        table = from_json(zlib.decompress(binascii.a2b_base64(task.translate({45: "+", 95: "/"}) + "===")))
        job = {name: table[name] for name in ("search", "uid", "generation", "folds")}
        job["number"], job["attempt"] = int(index), int(os.environ.get("PANDA_ATTEMPTNR") or 1)
        job["trial"], job["fold"], job["seed"] = dict(enumerate(table["jobs"], 1))[job["number"]]
        point, payload = table["points"][str(job["trial"])], from_json(read(PAYLOAD_FILE))
        command = payload["command"].replace("%FOLDS", str(job["folds"])).replace("%FOLD", str(job["fold"]))
    except Exception as error:
        raise SystemExit(
            "hpo_pilot_runner: --task or %s is broken: %r, number %s" % (PAYLOAD_FILE, error, index)
        ) from error
    root = os.environ.get("HPO_PILOT_CHECKPOINT_ROOT") or os.path.abspath("hpo_pilot_checkpoints")
    job["checkpoint_dir"] = os.path.join(root, job["uid"], "t%sf%s" % (job["trial"], job["fold"]))
    job["nodes"], job["gpus"] = payload.get("nodes") or 1, payload.get("gpus_per_node") or 0
    for stale in ("output.json", "progress.jsonl", "outputs.tar.gz"):  # the user's own dry run may have left some
        if os.path.lexists(stale):
            os.unlink(stale)
    write("input.json", to_json(point))
    write("job.json", to_json(job))
    write("input_ds.json", to_json(payload.get("inputs") or []))
    return job, dict(payload, command=command)


class Log:
    """payload.log: its head, then a ring for the tail, so that 2 GB of log take 1 MB of disk."""

    def __init__(self) -> None:
        self.file, self.size = open("payload.log", "wb+", 0), 0  # noqa: SIM115  closed with the process

    def add(self, data: bytes) -> None:
        """Keep what the payload said."""
        while data:
            at = self.size if self.size < LOG_HEAD else LOG_HEAD + (self.size - LOG_HEAD) % LOG_TAIL
            self.file.seek(at)
            done = self.file.write(data[: (LOG_HEAD if at < LOG_HEAD else LOG_HEAD + LOG_TAIL) - at])
            self.size, data = self.size + done, data[done:]

    def close(self) -> str:
        """Put the ring in order; returns the last part."""
        left_out = self.size - LOG_HEAD - LOG_TAIL
        if left_out > 0:
            self.file.seek(LOG_HEAD)
            ring = self.file.read(LOG_TAIL)
            note = b"\n... %d bytes are left out here ...\n" % left_out
            self.file.seek(LOG_HEAD)
            self.file.write(note + ring[left_out % LOG_TAIL :] + ring[: left_out % LOG_TAIL])
        self.file.seek(max(0, self.file.seek(0, os.SEEK_END) - LOG_SHOWN))
        return clean(self.file.read(), LOG_SHOWN)


class Checkpoints:
    """The declared checkpoints of a trial's fold, kept between attempts.

    They are copied to `.new`, then renamed to `.kept`: complete, or not there. Files that a writer may be at work on
    (changed within QUIET) wait for the next look.
    """

    def __init__(self, folder: str, names: "List[str]") -> None:
        self.names, self.changed = names, 0.0
        self.kept, self.old, self.new = (os.path.join(folder, name) for name in (".kept", ".old", ".new"))
        self.next = time.monotonic() + SAVE_EVERY if self.names else 1e9
        os.makedirs(folder, exist_ok=True)
        try:
            import fcntl

            self.lock = open(folder + ".lock", "wb")  # noqa: SIM115  held until the end
            fcntl.flock(self.lock, fcntl.LOCK_EX)  # the attempt before, if its pilot died, may be saving its last one
        except OSError:
            pass  # a file system without locks
        self.copy(self.kept if os.path.isdir(self.kept) else self.old, ".")
        self.saved = self.look()

    @staticmethod
    def copy(source: str, target: str, names: "Iterable[str]" = ()) -> None:
        """Copy the named files, or all, from one folder to another."""
        found = (os.path.join(folder, file) for folder, _, files in os.walk(source) for file in files)
        for name in names or [os.path.relpath(file, source) for file in found]:
            import shutil

            os.makedirs(os.path.dirname(os.path.join(target, name)) or ".", exist_ok=True)
            shutil.copy2(os.path.join(source, name), os.path.join(target, name))

    def look(self) -> "List[Tuple[str, int, float]]":
        """What is there: (file, bytes, unix time of its last change)."""
        found = ((file, os.stat(file)) for file in files_in(self.names))
        return sorted((file, about.st_size, about.st_mtime) for file, about in found)

    def save(self, settled: bool = False) -> None:
        """Keep what changed, unless it may be half-written; `settled`: no writer is left."""
        import shutil

        began = time.monotonic()
        try:
            seen, self.next = self.look(), began + SAVE_EVERY
            if not seen or seen == self.saved:
                return
            self.changed = self.changed or began
            quiet = (
                QUIET / 10 if began - self.changed > SAVE_EVERY else QUIET
            )  # one that never rests: between two writes
            self.next = began + QUIET / 4
            if settled or time.time() - max(changed for _, _, changed in seen) >= quiet:
                shutil.rmtree(self.new, ignore_errors=True)
                self.copy(".", self.new, [file for file, _, _ in seen])
                if self.look() == seen:
                    shutil.rmtree(self.old, ignore_errors=True)
                    if os.path.isdir(self.kept):
                        os.rename(self.kept, self.old)
                    os.rename(self.new, self.kept)
                    self.saved, self.changed = seen, 0.0
                    self.next = began + SAVE_EVERY + 20 * (time.monotonic() - began)  # copies take 5% of the time
        except OSError as error:  # a file that went away, a full disk: the copy before is still there
            self.next = began + SAVE_EVERY
            print("hpo_pilot_runner: checkpoint not kept: %s" % error, file=sys.stderr)


def become(command: str, env: "Dict[str, str]", output: int) -> "NoReturn":
    """In the child: lead a process group and turn into the payload."""
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would hand that on
            signal.signal(ignored, signal.SIG_DFL)
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        words = [] if SHELL_SIGNS & set(command) else command.split()
        try:  # without a shell, where none is needed: then none stands between the payload and our signals
            os.execvpe(words[0], words, env)  # noqa: S606
        except (OSError, IndexError):  # it needs one, or is a word of its own; if not, the shell says what is wrong
            os.execve("/bin/sh", ["sh", "-c", command], env)  # noqa: S606
    finally:
        os._exit(127)


class Life:
    """The payload from its start to the end of its process group."""

    def __init__(self, job: "Dict[str, Any]", payload: "Dict[str, Any]", log: Log, checkpoints: Checkpoints) -> None:
        self.log, self.checkpoints = log, checkpoints
        self.limit = time.monotonic() + 60 * (number(payload.get("minutes")) or 1e7)
        self.wake, alarm = os.pipe()
        os.set_blocking(alarm, False)
        signal.set_wakeup_fd(alarm)
        for noticed in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(noticed, lambda *_: None)  # its number comes through the pipe
        try:
            self.lifeline = int(os.environ.pop("HPO_PILOT_LIFELINE_FD", "") or -1)
            os.set_inheritable(self.lifeline, False)
        except OSError:
            self.lifeline = self.wake  # there is none, or a container runtime has closed it
        self.pipe, output = os.pipe()
        os.set_blocking(self.pipe, False)
        self.poll = select.poll()
        for fd in (self.wake, self.lifeline, self.pipe):
            self.poll.register(fd, select.POLLIN)
        env = {name: value for name, value in os.environ.items() if not SECRETS & set(name.upper().split("_"))}
        env.update(("HPO_PILOT_" + name.upper(), str(value)) for name, value in job.items())
        self.pid = os.fork()
        if not self.pid:
            become(payload["command"], env, output)
        try:
            os.setpgid(self.pid, self.pid)
        except OSError as error:
            del error  # the child was quicker
        os.close(output)

    def read_log(self) -> bool:
        """Take what the payload says; False if that is nothing."""
        try:
            data = os.read(self.pipe, 1 << 16)
        except BlockingIOError:
            return False
        self.log.add(data)
        return bool(data)

    def tell(self, which: int) -> bool:
        """Send a signal to the payload's group; False if nobody is left in it."""
        try:
            os.killpg(self.pid, which)
            return True
        except OSError:
            return False

    def watch(self) -> str:
        """Wait until the payload ended ("") or must end: limit, term, lifeline."""
        while True:
            due = min(self.limit, self.checkpoints.next) - time.monotonic()
            events = dict(self.poll.poll(1000 * min(max(0, due), 1e6)))
            if self.pipe in events and not self.read_log():
                self.poll.unregister(self.pipe)
            if self.wake in events:
                if set(os.read(self.wake, 512)) - {signal.SIGCHLD}:
                    return "term"
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    return ""
            elif self.lifeline in events:
                return "lifeline"
            if time.monotonic() >= self.limit:
                return "limit"
            if time.monotonic() >= self.checkpoints.next:
                self.checkpoints.save()

    def end(self, cause: str) -> int:
        """End what is left of the group, keep the checkpoints; returns the leader's wait status."""
        status, which, until = None, signal.SIGTERM, time.monotonic() + GRACE  # type: Optional[int], int, float
        if cause:
            import ctypes

            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans of the payload are ours to reap
        while cause and time.monotonic() < until and self.tell(which):
            which = 0  # from now on only: is anybody left?
            reaped, ended = os.waitpid(-1, os.WNOHANG)
            status = ended if reaped == self.pid else status
            while self.read_log():
                pass
            time.sleep(0 if reaped else 0.01)
        killed = self.tell(signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1] if status is None else status
        for _ in range(1024):  # 64 MB: one who left the group may go on writing
            if not self.read_log():
                break
        if self.checkpoints.names:
            self.checkpoints.changed = 0.0
            self.checkpoints.save(settled=os.WIFEXITED(status) and not (cause and killed))
        return status


def how_it_ended(status: int) -> str:
    """The payload's end in words; none after exit code 0."""
    names = {getattr(signal, name): name for name in dir(signal) if name.startswith("SIG") and "_" not in name}
    code = os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status) - 128
    how = "was ended by signal %d" % code if os.WIFSIGNALED(status) else "ended with exit code %d" % (code + 128)
    how += " (%s)" % names[code] if code in names else ""
    how += ", as the system does when memory runs out" if code == signal.SIGKILL else ""
    return how if status else ""


def judge(metric: str, ended: str) -> "Tuple[Optional[float], Dict[str, float], str]":
    """The verdict: (value, further metrics, why there is no value)."""
    output, wrong = {}, ""  # type: Any, str
    try:
        if not os.path.lexists("output.json"):
            raise ValueError("the payload wrote none")
        if not os.path.isfile("output.json") or os.path.getsize("output.json") > OUTPUT_LIMIT:
            raise ValueError("no plain file of at most %d MB" % (OUTPUT_LIMIT >> 20))
        output = from_json(read("output.json"))
        if not isinstance(output, dict):
            raise ValueError("not an object, {...}")
    except (ValueError, RecursionError) as error:
        output, wrong = {}, "no usable output.json: %s" % error
    metrics = output["metrics"] if isinstance(output.get("metrics"), dict) else {}
    value, status = output.get(metric, metrics.get(metric)), output.get("status", 0)
    if status != 0 or isinstance(status, bool):
        wrong = "the payload reported status %s: %s" % (to_json(status).decode(), output.get("message") or "no message")
        wrong += "; it " + ended if ended else ""
    elif ended:
        wrong = "the payload " + ended
    elif not wrong and metric not in output and metric not in metrics:
        wrong = "output.json has no key %r; it has %s" % (metric, ", ".join(map(repr, output)) or "none")
    elif not wrong and number(value) is None:
        wrong = "%r in output.json is no finite number but %.60s" % (metric, to_json(value).decode())
    numbers = ((str(key)[:100], number(metrics[key])) for key in list(metrics)[:METRICS_KEPT])
    return None if wrong else number(value), {key: x for key, x in numbers if x is not None}, wrong


def read_progress() -> "List[List[Any]]":
    """The [step, value] of progress.jsonl, thinned, the last one always among them; broken lines are passed over."""
    pairs, last, count, stride = [], [], 0, 1  # type: List[List[Any]], List[List[Any]], int, int
    if os.path.isfile("progress.jsonl"):
        with open("progress.jsonl", "rb") as file:
            for line in iter(lambda: file.readline(1 << 16), b""):
                try:
                    entry = from_json(line)
                    pair = [entry["step"], number(entry["value"])]
                except (ValueError, TypeError, KeyError, RecursionError):
                    continue
                if number(pair[0]) is not None and pair[1] is not None:
                    last = [pair]
                    pairs += last if count % stride == 0 else []
                    count += 1
                if len(pairs) == 2 * PROGRESS_KEPT:
                    pairs, stride = pairs[::2], 2 * stride
    pairs = pairs[:: len(pairs) // PROGRESS_KEPT + 1]
    return pairs if pairs[-1:] == last else pairs + last


def pack(names: "List[str]") -> "List[str]":
    """Put the declared outputs into outputs.tar.gz; returns those that were not found."""
    import tarfile

    with tarfile.open("outputs.tar.gz.new", "w:gz", compresslevel=3, dereference=True) as archive:
        for file in sorted(set(files_in(names))):
            archive.add(file, recursive=False)
    os.rename("outputs.tar.gz.new", "outputs.tar.gz")
    return [name for name in names if not any(files_in([name]))]


def run(options: "Dict[str, str]") -> None:
    """The whole job; Trouble or OSError where it cannot be judged."""
    started = time.time()
    job, payload = prepare(options.get("--task", ""), options.get("--number", ""))
    log, checkpoints = Log(), Checkpoints(job["checkpoint_dir"], payload.get("checkpoint") or [])
    life = Life(job, payload, log, checkpoints)
    try:
        cause = life.watch()
        status = life.end(cause)
    finally:
        life.tell(signal.SIGKILL)
    tail = log.close()
    if cause == "limit":
        ended = "reached its time limit of %s minutes" % payload["minutes"]
    elif cause == "term" and os.path.exists(STOP_FILE):
        ended = clean(read(STOP_FILE), 1000)
    elif cause:
        sys.exit("hpo_pilot_runner: " + ("told to stop" if cause == "term" else "the pilot died"))
    else:
        ended = how_it_ended(status)
        ended += ": " + tail.strip().rpartition("\n")[2][-300:] if ended and tail.strip() else ""
    value, metrics, message = judge(payload.get("metric") or "loss", ended)
    outputs, missing = payload.get("outputs") if value is not None else None, []  # type: Any, List[str]
    if outputs:
        missing = pack(outputs)
        message = "declared outputs not found: " + ", ".join(missing) if missing else ""
    progress = read_progress()
    verdict = dict(job, version=1, status=int(value is None), value=value, metrics=metrics)
    verdict["outputs"] = [name for name in outputs or [] if name not in missing]
    verdict.update(message=clean(message.encode("utf-8", "replace"), 2000), log_tail=tail if value is None else "")
    verdict.update(started=started, ended=time.time(), seconds=time.time() - started, node=os.uname().nodename)
    verdict["last_progress"] = dict(zip(("step", "value"), progress[-1])) if progress else None
    write("userJobMetadata.json", to_json({"hpo_pilot": dict(verdict, progress=progress)}))
    try:
        os.rmdir(job["checkpoint_dir"])
    except OSError:
        if value is not None:  # after success nobody goes on from there
            import shutil

            shutil.rmtree(job["checkpoint_dir"], ignore_errors=True)


if __name__ == "__main__":
    try:
        run(dict(zip(sys.argv[1::2], sys.argv[2::2])))
    except OSError as error:
        sys.exit("hpo_pilot_runner: cannot work in %s: %s" % (os.getcwd(), error))
