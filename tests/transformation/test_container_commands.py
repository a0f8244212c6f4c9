"""The exact command line of each container runtime.

Sources:
    Apptainer: its user guide, "GPU Support" (--nv, --rocm) and "Bind Paths and Mounts"; OLCF, Containers on Summit,
        "Running an MPI program with the OLCF MPI base image": exec --bind $MPI_ROOT:$MPI_ROOT; OLCF, examples of
        Containers on Frontier, frontier/containers_on_frontier_docs/gpu_aware_mpi_example: exec --rocm.
    Podman: podman-run(1), "--device", with the Container Device Interface; ROCm, "Running ROCm Docker containers".
    podman-hpc: github.com/NERSC/podman-hpc, etc/modules.d: gpu.yaml (--gpu), mpich.yaml (--mpi).
    Shifter: github.com/NERSC/shifter, doc/modules.rst (--module=gpu,mpich), doc/command/shifter.rst (--image, --volume,
        --workdir); NERSC, "Shifter".
    ch-run(1).
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import ANY

import pytest

from hpo_pilot.transformation import container
from hpo_pilot.transformation.container import IMAGE_PATH, RUNTIMES, ContainerStart, Inside

JOB = Path("/work/job")
ENV = {
    "PATH": "/bin",
    "USER": "me",
    "LD_LIBRARY_PATH": "/old",
    "TRIAL": "secret value",
    "A": "1",
    "BASH_FUNC_ml%%": "x",
}
ARGV = ["python3", "train.py", "--x"]


@pytest.fixture(autouse=True)
def none_is_here(monkeypatch):
    """Then programs stand there by their names."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(container, "_has_write_fake", lambda program: True)


@pytest.fixture
def mpi(tmp_path):
    (tmp_path / "mpi" / "lib").mkdir(parents=True)
    return tmp_path / "mpi"


def test_each_runtime_has_its_line_here() -> None:
    assert set(RUNTIMES) == {"none", "apptainer", "charliecloud", "shifter", "podman", "podman-hpc"}


def line(name: str, image: str, inside: Inside, env: dict[str, str] | None = None) -> list[str]:
    """As for ranks, which share /tmp with their launcher."""
    inside = inside._replace(shares_tmp=True)
    return RUNTIMES[name].wrap(ContainerStart(ARGV, image, [JOB], ENV if env is None else env, JOB, inside))


@pytest.mark.parametrize(("kind", "flags"), [("nvidia", ["--nv"]), ("amd", ["--rocm"]), ("none", [])])
def test_apptainer(kind, flags, mpi):
    assert line("apptainer", "x.sif", Inside(kind, [Path("/data")], [mpi])) == [
        *["apptainer", "exec", *flags, "--bind", f"{JOB}:{JOB}", "--bind", "/data:/data:ro"],
        *["--bind", f"{mpi}:{mpi}:ro", "--env", f"LD_LIBRARY_PATH={mpi}/lib:/old", "--pwd", str(JOB), "x.sif", *ARGV],
    ]
    # A path that is bound twice stays writable.
    assert line("apptainer", "x.sif", Inside("none", [JOB])) == [
        *["apptainer", "exec", "--bind", f"{JOB}:{JOB}", "--pwd", str(JOB), "x.sif", *ARGV]
    ]


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("nvidia", ["--device=nvidia.com/gpu=all"]),
        ("amd", ["--device=/dev/kfd", "--device=/dev/dri"]),
        ("intel", ["--device=/dev/dri"]),
    ],
)
def test_podman(kind, flags, mpi):
    assert line("podman", "example.org/x:1", Inside(kind, [Path("/data")], [mpi])) == [
        *["podman", "run", "--rm", "--network=host", "--ipc=host", "--pid=host", "--user=0:0"],
        *["--security-opt=label=disable", *flags, f"--env=LD_LIBRARY_PATH={mpi}/lib:/old"],
        *[f"--volume={JOB}:{JOB}", "--volume=/data:/data:ro", f"--volume={mpi}:{mpi}:ro", "--env=A", "--env=TRIAL"],
        *[f"--workdir={JOB}", "--entrypoint=python3", "example.org/x:1", "train.py", "--x"],
    ]


def test_podman_on_an_unpacked_root_with_a_lifeline(tmp_path):
    argv = line("podman", str(tmp_path), Inside("none"), {"HPO_PILOT_LIFELINE_FD": "9"})
    assert argv[:5] == [
        *[
            "/bin/sh",
            "-c",
            'exec 3<"/proc/self/fd/$HPO_PILOT_LIFELINE_FD" && export HPO_PILOT_LIFELINE_FD=3 && exec "$@"',
        ],
        *["sh", "podman"],
    ]
    assert argv[-5:] == ["--preserve-fds=1", "--rootfs", f"{tmp_path}:O", "train.py", "--x"]
    assert "--env=HPO_PILOT_LIFELINE_FD" in argv


@pytest.mark.parametrize(
    ("kind", "flags"),
    [("nvidia", ["--gpu"]), ("amd", ["--device=/dev/kfd", "--device=/dev/dri"]), ("none", [])],
)
def test_podman_hpc(kind, flags, mpi):
    assert line("podman-hpc", "example.org/x:1", Inside(kind, [Path("/data")], [mpi])) == [
        *["podman-hpc", "run", "--rm", "--network=host", "--ipc=host", "--pid=host", "--user=0:0"],
        *["--security-opt=label=disable", *flags, "--mpi", f"--volume={JOB}:{JOB}", "--volume=/data:/data:ro"],
        *["--env=A", "--env=TRIAL", f"--workdir={JOB}", "--entrypoint=python3", "example.org/x:1", "train.py", "--x"],
    ]


@pytest.mark.parametrize(
    ("kind", "with_mpi", "module"),
    [
        ("nvidia", True, ["--module=gpu,mpich"]),
        ("nvidia", False, ["--module=gpu"]),
        ("none", True, ["--module=mpich"]),
        ("none", False, []),
    ],
)
@pytest.mark.parametrize("image", ["docker://example.org/x:1", "docker:example.org/x:1", "example.org/x:1"])
def test_shifter(kind, with_mpi, module, image, mpi):
    assert line("shifter", image, Inside(kind, [Path("/data")], [mpi] if with_mpi else [])) == [
        *["shifter", "--image=docker:example.org/x:1", *module, f"--volume={JOB}:{JOB}", "--volume=/data:/data:ro"],
        *[f"--workdir={JOB}", *ARGV],
    ]


def test_charliecloud(tmp_path, mpi):
    assert line("charliecloud", str(tmp_path), Inside("nvidia", [Path("/data")], [mpi])) == [
        *["ch-run", "--write-fake", "--bind", f"{JOB}:{JOB}", "--bind", "/data:/data", "--bind", f"{mpi}:{mpi}"],
        *["--env-no-expand", f"--set-env=PATH={IMAGE_PATH}", "--cd", str(JOB), str(tmp_path), "--"],
        *["/bin/sh", "-c", ANY, "sh", "env", f"LD_LIBRARY_PATH={mpi}/lib:/old", *ARGV],
    ]
    assert line("charliecloud", str(tmp_path), Inside("none"), {})[:2][0] == "env"  # ch-run wants USER


@pytest.mark.parametrize(
    ("has_fake", "image", "job", "makes"),
    [
        (False, "root", "/data/job", True),
        (False, "root", "/tmp/job", False),
        (False, "root", "/there", False),
        (False, "root.sqfs", "/data/job", False),
        (True, "root", "/data/job", False),
    ],
)
def test_charliecloud_that_writes_into_images(tmp_path, monkeypatch, has_fake, image, job, makes):
    """A copy of such an image, made before, would lack the folders of later jobs."""
    (tmp_path / "root" / "there").mkdir(parents=True)
    monkeypatch.setattr(container, "_has_write_fake", lambda _: has_fake)
    assert RUNTIMES["charliecloud"].makes_mount_points(str(tmp_path / image), [Path(job)]) is makes
    assert not RUNTIMES["podman"].makes_mount_points(str(tmp_path / image), [Path(job)])


@pytest.mark.parametrize("name", ["apptainer", "charliecloud", "shifter"])
def test_the_active_environment_of_the_machine_stays_outside(name, tmp_path):
    """Where the runtime would pass it on."""
    words = line(name, str(tmp_path), Inside("none"), {"USER": "me", "PYTHONPATH": "/mine", "VIRTUAL_ENV": "/venv"})
    assert words[:6] == ["env", "-u", "PYTHONPATH", "-u", "VIRTUAL_ENV", RUNTIMES[name].programs[0]]


@pytest.mark.parametrize("below_tmp", [True, False])
def test_apptainer_has_a_tmp_of_its_own(tmp_path, monkeypatch, below_tmp):
    """A job's folder below /tmp has its place in it; a launcher's ranks share the node's."""
    job, data = tmp_path / "job", tmp_path / "data"
    job.mkdir()
    data.write_text("")
    tmp = str(tmp_path) if below_tmp else "/elsewhere"
    monkeypatch.setattr(container, "TMP", tmp)
    words = RUNTIMES["apptainer"].wrap(ContainerStart(ARGV, "x.sif", [job], {}, job, Inside("none", [data])))
    scratch = job / "hpo_pilot_tmp"
    assert words[2:6] == ["--bind", f"{scratch}:{tmp}", "--bind", f"{job}:{job}"]
    assert scratch.stat().st_mode & 0o777 == 0o700
    assert ((scratch / "job").is_dir(), (scratch / "data").is_file()) == (below_tmp, below_tmp)
    shared = RUNTIMES["apptainer"].wrap(ContainerStart(ARGV, "x.sif", [job], {}, job, Inside("none", shares_tmp=True)))
    assert not any(word.endswith(f":{tmp}") for word in shared)


def test_what_this_machine_has_is_the_default(monkeypatch):
    there = {"/dev/nvidiactl"}
    monkeypatch.setattr(Path, "exists", lambda path: str(path) in there)
    assert "--nv" in line("apptainer", "x.sif", Inside())
    there.clear()
    there.add("/dev/kfd")
    assert "--rocm" in line("apptainer", "x.sif", Inside())
