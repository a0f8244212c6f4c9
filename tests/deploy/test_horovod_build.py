"""deploy/horovod/build.py without the compiling, which `make test-real` does."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "horovod" / "build.py"

#: Runs the script with a build that takes a moment and is no Horovod.
QUICK = f"""
import json, os, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # started in the background, it may have been ignored
sys.dont_write_bytecode = True
sys.path.insert(0, {str(SCRIPT.parent)!r})
import build

def quick(folder, wanted):
    with open(os.environ["COUNT"], "a") as count:
        count.write("built\\n")
    bin = folder / "venv" / "bin"
    bin.mkdir(parents=True)
    time.sleep(float(os.environ["SECONDS"]))
    (bin / "python").symlink_to(sys.executable)
    return "2.13.0+test"

build.build, build.add_requirements = quick, lambda *_, **__: ""
build.main()
"""


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("horovod_build", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(folder: Path, *options: str, seconds: float = 0.0, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    given = {"XDG_CACHE_HOME": str(folder), "COUNT": str(folder / "count"), "SECONDS": str(seconds)}
    return subprocess.Popen(
        [sys.executable, "-c", QUICK, *options],
        env={**inherited, **given, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str], code: int = 0) -> str:
    said, complained = process.communicate(timeout=600)
    assert process.returncode == code, complained
    return said.strip() or complained.strip()


def builds(folder: Path) -> int:
    return (folder / "count").read_text().count("built") if (folder / "count").exists() else 0


def left(folder: Path) -> list[Path]:
    return list((folder / "hpo_pilot" / "horovod-builds").glob("*"))


def test_a_step_that_goes_on_says_how_far_it_is(build, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "REPORT_SECONDS", 0.2)
    done = tmp_path / "done"
    code = (
        "import os, sys, time; print(sys.argv[1], flush=True)\nwhile not os.path.exists(sys.argv[2]): time.sleep(0.05)"
    )
    for said, shown in (
        ("Downloading torch", "Downloading torch"),
        ("  [ 40%] Building a\n  [ 45%] Building b\n  cd /tmp/x", "45% compiled"),
    ):

        def stop(text, shown=shown):
            sys.stderr.write(text + "\n")
            if shown in text:
                done.touch()

        monkeypatch.setattr(build, "say", stop)
        done.unlink(missing_ok=True)
        build.run([sys.executable, "-c", code, said, str(done)], tmp_path / "build.log", "building")
        lines = capsys.readouterr().err.splitlines()
        assert any(re.fullmatch(rf"building: \d+ s, {shown}", line) for line in lines), lines


def test_it_is_built_once_and_found_again(tmp_path):
    assert "not built" in end(start(tmp_path, "--where"), code=1)
    python = end(start(tmp_path))
    assert re.fullmatch(rf"{tmp_path}/hpo_pilot/horovod-[0-9a-f]{{12}}/venv/bin/python", python)
    assert Path(python).exists()
    assert end(start(tmp_path)) == end(start(tmp_path, "--where")) == python
    assert builds(tmp_path) == 1
    manifest = json.loads((Path(python).parents[2] / "horovod.json").read_text())
    assert (manifest["torch"], manifest["horovod"], manifest["machine"]) == (
        "2.13.0+test",
        "0.28.1",
        os.uname().machine,
    )


def test_other_options_and_another_torch_are_other_builds(tmp_path):
    first = end(start(tmp_path))
    with_mpi = end(start(tmp_path, HOROVOD_WITH_MPI="1"))
    assert len({first, with_mpi, end(start(tmp_path, "--torch", "torch==2.12.0"))}) == 3
    assert end(start(tmp_path, "--where", HOROVOD_WITH_MPI="1")) == with_mpi
    # What only a training reads makes no other build.
    assert end(start(tmp_path, HOROVOD_TIMELINE="t.json", HOROVOD_CYCLE_TIME="1")) == first
    assert builds(tmp_path) == 3


def test_of_two_at_once_one_builds(tmp_path):
    both = [start(tmp_path, seconds=1.0) for _ in range(2)]
    assert len({end(process) for process in both}) == 1
    assert builds(tmp_path) == 1


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_nothing_under_its_name(tmp_path, which):
    process = start(tmp_path, seconds=30)
    deadline = time.monotonic() + 600
    while not builds(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(which)
    process.communicate(timeout=600)
    assert process.returncode != 0
    assert not list((tmp_path / "hpo_pilot").glob("horovod-????????????"))
    assert len(left(tmp_path)) == (1 if which is signal.SIGKILL else 0)
    assert Path(end(start(tmp_path))).exists()
    assert len(left(tmp_path)) == 1  # what the killed one left is gone


def test_a_build_is_for_cpus_with_gloo_unless_the_environment_says_otherwise(build):
    assert build.build_options({"HOME": "/", "HOROVOD_RANK": "1"}) == {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
    }
    options = build.build_options(
        {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": "/nccl", "HOROVOD_WITH_MPI": "1"}
    )
    assert options["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert options["HOROVOD_NCCL_HOME"] == "/nccl"
    assert "HOROVOD_WITHOUT_MPI" not in options
    assert build.build_options({"HOROVOD_CPU_OPERATIONS": "MPI"})["HOROVOD_WITH_MPI"] == "1"
    assert "HOROVOD_WITH_GLOO" not in build.build_options({"HOROVOD_WITHOUT_GLOO": "1"})


def test_what_is_missing_is_named_with_its_package(build, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"lacks: g\+\+ .*; make\. .*apt-get install g\+\+ make python3-dev"):
        build.check_system(tmp_path)


def test_a_compiler_that_is_too_old_is_named(build, tmp_path, monkeypatch):
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho unrecognized option -std=c++20 >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    with pytest.raises(build.BuildError, match=r"does not know C\+\+20: unrecognized option"):
        build.check_system(tmp_path)


def test_a_failed_step_shows_the_end_of_its_log(build, tmp_path, monkeypatch):
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    with pytest.raises(build.BuildError, match=r"(?s)compiling failed; the whole log is in \S+\.log.*no such header"):
        build.run([sys.executable, "-c", "raise SystemExit('no such header')"], tmp_path / "build.log", "compiling")


@pytest.mark.parametrize(
    ("source", "standard"),
    [("cflags = ['-std=c++20']\n'-std=c++17'", "20"), ("'-std=c++17'", "17"), ("nothing is said", "14")],
)
def test_the_c_standard_is_torch_s_own(build, tmp_path, monkeypatch, source, standard):
    (tmp_path / "cpp_extension.py").write_text(source)
    monkeypatch.setattr(build, "ask", lambda *_: str(tmp_path))
    assert build.cxx_standard(Path("python")) == standard


def test_a_cmake_that_does_is_used_and_another_is_fetched(build, tmp_path, monkeypatch):
    fetched: list[list[str]] = []
    monkeypatch.setattr(build, "run", lambda argv, *_: fetched.append(argv))
    monkeypatch.delenv("HOROVOD_CMAKE", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for version, does in (("3.25.1", True), ("3.20.0", False), ("4.1.0", False)):
        (tmp_path / "cmake").write_text(f"#!/bin/sh\necho cmake version {version}\n")
        (tmp_path / "cmake").chmod(0o755)
        fetched.clear()
        found = build.find_cmake(Path("/venv/bin/python"), tmp_path / "log")
        assert found == (str(tmp_path / "cmake") if does else "/venv/bin/cmake"), version
        assert bool(fetched) is not does


def test_progress_is_no_compiler_warning(build: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    warnings = "  file.h:7:3: warning: deprecated\n     7 |   int x;\n       |   ^~~~~~~~~\n" * 200
    log.write_text(f"\n$ pip install torch\nCollecting torch==2.13.0 (from x)\n{warnings}")
    assert build.progress(log) == "Collecting torch==2.13.0"
    log.write_text(log.read_text() + f"\n$ pip wheel horovod\n{warnings}")
    assert build.progress(log) == "in progress"
    log.write_text(log.read_text() + f"  [ 10%] Building CXX object a.o\n  [ 27%] Building CXX object b.o\n{warnings}")
    assert build.progress(log) == "27% compiled"
