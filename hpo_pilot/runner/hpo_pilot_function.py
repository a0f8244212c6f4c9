#!/usr/bin/env python3
"""Calls a Python function as the payload.

    python3 hpo_pilot_function.py MODULE:FUNCTION

The function gets the point as a mapping of values by parameter name and, if it takes a second argument, a `Trial`. It
returns the figure of merit, a sequence with one figure for each objective, or the content of output.json as a mapping.
FILE.pkl instead of MODULE:FUNCTION names a file with a pickled function.

To import a training's modules may take longer than the training. So an interpreter that has imported them can be kept,
and a process forked from it for each point: by a pilot for the jobs of a search (`serve`), and by hpo_pilot_series.py
for the points of one job (`run_series`). The forked process has a memory, a folder and an environment of its own.
Standard library only, Python 3.6 syntax.
"""

import array
import atexit
import contextlib
import functools
import gc
import hashlib
import importlib
import inspect
import json
import os
import pickle
import random
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

#: The program of a job; and, if it runs several points, the one of a point, and the folder of the payload's files.
RUNNER, POINT_RUNNER, PAYLOAD_FOLDER = "hpo_pilot_runner.py", "hpo_pilot_point.py", "payload"
PAYLOAD_FILE, JOB_FILE = "hpo_pilot_payload.json", "job.json"
NAMES = {"point": "input.json", "result": "output.json", "progress": "progress.jsonl"}
#: Signals that the runner handles; a payload starts with their default actions.
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP)
#: Longest import of modules that is tried for the next jobs, in seconds.
TRY_SECONDS = 300
HEADER = struct.Struct("!Q")  # length of a request


class Trial:
    """What a function may know of the trial that it computes.

    Attributes:
        number: number of the trial in its search, from 1.
        fold: number of the fold, from 0.
        folds: number of folds.
        seed: another one for each trial, and the same for all folds of a trial.
        generation: number of the generation.
        checkpoint_dir: folder that later attempts of the same fold find again.
    """

    def __init__(self, job: "Dict[str, Any]", progress: str) -> None:
        self.number, self.fold, self.folds, self.seed = job["trial"], job["fold"], job["folds"], job["seed"]
        self.generation, self.checkpoint_dir = job["generation"], job["checkpoint_dir"]
        self._progress = progress

    def report(self, value: float, step: float) -> None:
        """Report an intermediate value of the figure of merit, such as an epoch's; early stopping judges by it."""
        with open(self._progress, "a") as file:
            file.write(json.dumps({"step": step, "value": value}, default=plain) + "\n")


def plain(value: "Any") -> "Any":
    """Return a scalar of NumPy or PyTorch as a Python number."""
    try:
        return value.item()
    except (AttributeError, ValueError):
        raise TypeError("%r is no number" % (value,)) from None


def load(spec: str) -> "Callable[..., Any]":
    """Import the function; modules are searched first in the payload's folder."""
    folder = os.path.join(os.getcwd(), PAYLOAD_FOLDER) if os.path.exists(POINT_RUNNER) else os.getcwd()
    sys.path.insert(0, folder)
    if spec.endswith(".pkl"):
        with open(os.path.join(folder, spec), "rb") as file:
            function = pickle.load(file)  # noqa: S301  a file of the payload, whose code runs anyway
    else:
        module, _, name = spec.partition(":")
        function = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    if not callable(function):
        raise TypeError("%s is no function" % spec)
    return function  # type: ignore[no-any-return]


def read(path: str) -> "Any":
    """Read a JSON file."""
    with open(path, "rb") as file:
        return json.loads(file.read().decode())


def call(function: "Callable[..., Any]", found: "Optional[List[Any]]" = None) -> None:
    """Call the function with the point in the current folder, and write its result.

    Args:
        function: the payload's function.
        found: the random generators of its modules; None: not looked for yet.
    """
    payload = read(PAYLOAD_FILE)
    names = dict(NAMES, **{key: name for key, name in (payload.get("file_names") or {}).items() if name})
    point, trial = read(names["point"]), Trial(read(JOB_FILE), names["progress"])
    seed_again(generators() if found is None else found, trial.seed)
    result = function(point, trial) if wants_trial(function) else function(point)
    if not isinstance(result, dict):
        if result is None:
            raise TypeError("the function returned nothing, and must return the figure of merit")
        figures, wanted = result if isinstance(result, (list, tuple)) else [result], payload["objectives"]
        if len(figures) != len(wanted):
            raise TypeError("the function returned %d figures of merit instead of %d" % (len(figures), len(wanted)))
        result = dict(zip(wanted, figures))  # noqa: B905  zip's strict= is newer than 3.6
    with open(names["result"] + ".new", "w") as file:
        json.dump(result, file, default=plain)
    os.rename(names["result"] + ".new", names["result"])


def generators() -> "List[Any]":
    """Return the random generators of this process: of random, numpy and torch, and of all its modules."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")  # type: Any, Any
    kinds = (random.Random, *(getattr(numpy, name) for name in ("Generator", "RandomState") if hasattr(numpy, name)))
    known = gc.get_objects()
    # By `type`: isinstance asks for __class__, which a proxy may answer with an error.
    found = [
        each for each in known if issubclass(type(each), kinds) and not issubclass(type(each), random.SystemRandom)
    ]
    if hasattr(torch, "Generator"):  # the collector does not know these
        found += {id(each): each for each in gc.get_referents(*known) if type(each) is torch.Generator}.values()
    return found


def seed_again(found: "List[Any]", seed: int) -> None:
    """Seed each generator with its state and the trial's seed.

    Each trial begins with what a module has made while it was imported or pickled: without this, all would draw the
    same "random" numbers. A generator that a module has seeded draws the same ones again in the same trial.
    """
    for each in found:
        with contextlib.suppress(Exception):  # a class of the user's own, which cannot be seeded like that
            seed_one(each, seed)


def seed_one(generator: "Any", seed: int) -> None:
    """Seed a generator with its state and a seed."""
    if isinstance(generator, random.Random):
        generator.seed(mixed(generator.getstate(), seed))
    elif hasattr(generator, "bit_generator"):  # numpy.random.Generator
        bits = generator.bit_generator
        bits.state = type(bits)(mixed(bits.state, seed)).state
    elif hasattr(generator, "manual_seed"):  # torch.Generator; torch's own seeds the GPUs too
        torch = sys.modules["torch"]
        seeded = torch if generator is torch.default_generator else generator
        seeded.manual_seed(mixed(generator.get_state(), seed) >> 65)
    else:  # numpy.random.RandomState
        number = mixed(generator.get_state(), seed)
        generator.seed([number >> shift & 0xFFFFFFFF for shift in range(0, 128, 32)])


def mixed(state: "Any", seed: int) -> int:
    """Return a number of 128 bits that depends on a generator's state and on a seed."""
    text = json.dumps([state, seed], sort_keys=True, default=lambda array: array.tolist())
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def wants_trial(function: "Callable[..., Any]") -> bool:
    """Return whether the function takes a second positional argument."""
    try:
        kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in positional for kind in kinds) > 1 or inspect.Parameter.VAR_POSITIONAL in kinds


def payload_of(function: "Callable[..., Any]", kept: "Kept") -> "Callable[[Dict[str, str]], None]":
    """Return what the runner calls in the payload's process, with its environment, instead of starting a command."""

    def run(env: "Dict[str, str]") -> None:
        reset_signals()
        os.environ.clear()
        os.environ.update(env)
        before = set(sys.modules)

        def work() -> None:
            call(function, kept.generators)
            with contextlib.suppress(OSError):
                kept.note([name for name in list(sys.modules) if name not in before and is_installed(name)], env)

        end_with(work, orderly=True)

    return run


def is_installed(name: str) -> bool:
    """Return whether a loaded module is of the standard library or an installed package: it knows of no trial."""
    module = sys.modules[name]
    file = getattr(module, "__file__", None) or ""
    library = os.path.dirname(os.__file__) + os.sep
    return getattr(module, "__name__", None) == name and (
        file.startswith(library) or "/site-packages/" in file or "/dist-packages/" in file
    )


class Kept:
    """Modules that jobs have imported while they ran; they are imported once for the next jobs.

    A function may import its libraries when it is called. Without this, each job would load them again.
    """

    def __init__(self) -> None:
        """Look for the random generators that exist now."""
        self.generators = generators()
        self.file = tempfile.TemporaryFile(dir=".")  # noqa: SIM115  open as long as this process
        self.names = []  # type: List[str]
        self.tried = set(self.names)
        self.trying = 0

    def note(self, names: "List[str]", env: "Dict[str, str]") -> None:
        """Note the modules that this process has imported since its start with this environment."""
        os.ftruncate(self.file.fileno(), 0)
        os.pwrite(self.file.fileno(), json.dumps([names, changes(env)]).encode(), 0)

    def recall(self) -> None:
        """Import noted modules, once another process has shown that they do no harm to processes forked later."""
        if self.trying:
            pid, status = os.waitpid(self.trying, os.WNOHANG)
            if not pid:
                return
            self.trying = 0
            if not status:
                load_modules(self.names)
                self.generators = generators()
        try:
            text = os.pread(self.file.fileno(), os.fstat(self.file.fileno()).st_size, 0)
            names, changed = json.loads(text.decode())
        except ValueError:  # nothing, or the job was killed
            return
        os.ftruncate(self.file.fileno(), 0)
        self.names = [name for name in names if name not in self.tried and name not in sys.modules]
        self.tried.update(self.names)
        if self.names:
            flush()
            self.trying = os.fork()
            if not self.trying:
                signal.alarm(TRY_SECONDS)
                end_with(lambda: sys.exit(not is_harmless(self.names, changed)), orderly=False)

    def close(self) -> None:
        """End the process that tries modules."""
        if self.trying:
            os.kill(self.trying, signal.SIGKILL)
            os.waitpid(self.trying, 0)


def load_modules(names: "List[str]") -> None:
    """Import modules; if one cannot be imported, the function meets the error."""
    for name in names:
        with contextlib.suppress(BaseException):
            importlib.import_module(name)


def is_harmless(modules: "List[str]", changed: "Dict[str, str]") -> bool:
    """Import modules, and return whether a process that has done it may fork jobs.

    Args:
        modules: names of the modules.
        changed: variables that the job has set: by importing them, or as settings for them.
    """
    before = dict(os.environ)
    load_modules(modules)
    own = changes(before)
    devices = [os.path.realpath("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd")]
    uses_gpu = any(path.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/")) for path in devices)
    return threading.active_count() == 1 and not uses_gpu and changed.items() <= own.items()


def changes(before: "Dict[str, str]") -> "Dict[str, str]":
    """Return the variables of this process that are new or have another value."""
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def reset_signals() -> None:
    """Undo the handlers of the process from which this one was forked."""
    for which in HANDLED:
        signal.signal(which, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def end_with(work: "Callable[[], Any]", *, orderly: bool) -> None:
    """Do the work and end this process as the interpreter would end it.

    Args:
        work: what is left to do.
        orderly: whether functions that modules registered for the end are called.
    """
    status = 1
    try:
        work()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  as at the end of a program
        traceback.print_exc()
    try:
        if orderly:  # as multiprocessing ends the processes that it forks
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(status & 0xFF)


class Runner:
    """The runner of a sandbox, ready to run in processes that are forked from this one."""

    def __init__(self, function: "Optional[Callable[..., Any]]") -> None:
        """Load the runner in the current folder; `function`: the payload's, None: the payload is a command."""
        self.kept = Kept() if function else None
        self.globals = {}  # type: Dict[str, Any]
        if function and self.kept:
            self.globals["FUNCTION"] = payload_of(function, self.kept)
        self.globals["START"] = functools.partial(Forked, self)
        self.programs = {}  # type: Dict[str, Any]
        for name in (RUNNER, POINT_RUNNER):
            if os.path.exists(name):
                with open(name, "rb") as file:
                    self.programs[name] = compile(file.read(), name, "exec")
                exec(self.programs[name], {"__name__": "loaded", "__file__": name})  # noqa: S102  for its imports

    def prepare(self) -> None:
        """Import what earlier jobs have imported; called before a job is forked."""
        if self.kept:
            self.kept.recall()

    def run(self, argv: "List[str]", folder: str, env: "Dict[str, str]") -> None:
        """Run the program argv[0] as the main program of this process, which a fork has made, and end the process."""
        reset_signals()
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        sys.argv = argv
        if "FUNCTION" in self.globals:
            sys.path[0] = folder  # `load` has put the folder of this process there
        space = dict(self.globals, __name__="__main__", __file__=argv[0])
        end_with(lambda: exec(self.programs[os.path.basename(argv[0])], space), orderly=False)  # noqa: S102


class Forked:
    """A forked process of the runner, with the part of subprocess.Popen that hpo_pilot_series.py uses."""

    def __init__(
        self, runner: "Runner", words: "List[str]", cwd: str, env: "Dict[str, str]", stdout: "Any", **_: "Any"
    ) -> None:
        """Start it; words: python3 -I -S PROGRAM ARGUMENTS."""
        self.returncode = None  # type: Optional[int]
        runner.prepare()
        flush()
        self.pid = os.fork()
        if not self.pid:
            for target in (1, 2):
                os.dup2(stdout.fileno(), target)
            runner.run(words[3:], os.path.abspath(cwd), env)

    def wait(self) -> int:
        """Wait for its end; returns its exit status."""
        if self.returncode is None:
            status = os.waitpid(self.pid, 0)[1]
            self.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.returncode

    def send_signal(self, which: int) -> None:
        """Send a signal."""
        os.kill(self.pid, which)


def flush() -> None:
    """Flush what this process has printed, so that a forked one does not print it again."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def run_series(spec: str, argv: "List[str]") -> None:
    """Run hpo_pilot_series.py in this process, which forks a process for each point."""
    try:
        runner = Runner(load(spec))
    except BaseException:  # noqa: BLE001  each point will meet the same error, and it belongs into their logs
        os.execv(sys.executable, [sys.executable, "-I", "-S", *argv])  # noqa: S606
    sys.argv = argv
    try:
        exec(runner.programs[RUNNER], dict(runner.globals, __name__="__main__", __file__=argv[0]))  # noqa: S102
    finally:
        if runner.kept:
            runner.kept.close()


def serve(descriptor: int, spec: str) -> None:
    """Fork jobs for a pilot until it closes the connection.

    A request is a header with the length of the JSON text that follows: words of the command, folder, environment. Two
    file descriptors come with it: for the output, and the end of the pilot's lifeline. The answer is the PID of the
    process, which is a child of the pilot because the process between has ended.

    Args:
        descriptor: of a connected socket.
        spec: names the function; empty: the payload is a command.
    """
    for which in (signal.SIGINT, signal.SIGHUP):  # meant for the pilot, which decides what becomes of its jobs
        signal.signal(which, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    runner = Runner(load(spec) if spec else None)
    connection.sendall(HEADER.pack(0))
    while True:
        text, descriptors = receive(connection)
        if not text:
            return
        runner.prepare()
        flush()
        connection.sendall(HEADER.pack(fork(runner, connection, json.loads(text.decode()), descriptors)))
        for each in descriptors:
            os.close(each)


def receive(connection: "Any") -> "Tuple[bytes, List[int]]":
    """Return a request and its file descriptors; nothing if the connection was closed."""
    descriptors = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(HEADER.size, socket.CMSG_LEN(2 * descriptors.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if not head:
        return b"", []
    return take(connection, HEADER.unpack(head + take(connection, HEADER.size - len(head)))[0]), list(descriptors)


def take(connection: "Any", size: int) -> bytes:
    """Receive that many bytes."""
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise EOFError("the pilot ended in the middle of a request")
        found += more
    return found


def fork(runner: Runner, connection: "Any", request: "Dict[str, Any]", descriptors: "List[int]") -> int:
    """Fork a process for a job, and return its PID when it is a child of the pilot."""
    reading, writing = os.pipe()
    between = os.fork()
    if between:
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            pid = int(pipe.read() or b"0")
        os.waitpid(between, 0)
        return pid
    try:
        pid = os.fork()
        if pid:
            os.setpgid(pid, pid)  # parent and child both do it: it must be done before either goes on
            os.write(writing, b"%d" % pid)
            return os._exit(0)
        os.setpgid(0, 0)
        connection.close()
        os.close(reading)
        os.close(writing)
        output, lifeline = descriptors
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        runner.run(request["argv"], request["folder"], dict(request["env"], HPO_PILOT_LIFELINE_FD=str(lifeline)))
    finally:
        os._exit(127)


def main(words: "List[str]") -> None:
    """Run as `hpo_pilot_function.py SPEC`, or with --serve or --series for an interpreter that forks."""
    if words[0] == "--serve":
        serve(int(words[1]), words[2])
    elif words[0] == "--series":
        run_series(words[1], words[2:])
    else:
        call(load(words[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
