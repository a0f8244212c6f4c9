"""Images, inputs and large files on the nodes' own disks, in an allocation of a real Slurm.

Both nodes are this machine: the scratch of each is a folder of its own, whose name only its processes know.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.jobs import JobNeeds
from tests.pilot.conftest import until
from tests.pilot.test_with_server import Embedded
from tests.real.processes import missing
from tests.real.slurm import NODES, Slurm, slurm
from tests.real.test_allocation import allocation, embedded

__all__ = ["allocation", "embedded", "slurm", "until"]

#: Tells what of it is the node's own copy, with nothing but a shell and what is in the image below.
LOOK = r"""
node=$SLURMD_NODENAME image= found=1
while read -r _ _ _ from at _; do
    [ "$at" != / ] || image=$from
done < /proc/self/mountinfo
for path in "$image" "$(readlink data.bin)" "$(readlink big.bin)"; do
    case $path in
        */scratch/$node/hpo-pilot-*-until-*) found=${found}1 ;;
        *) found=${found}0 ;;
    esac
done
read -r data < data.bin
read -r big < big.bin
[ "$data $big" = "events weights" ] || exit 3
sleep 0.5
echo '{"loss": 1, "metrics": {"on_'$node'": 1, "copies": '$found'}}' > output.json
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "payload"
    folder.mkdir()
    (folder / "look.sh").write_text(LOOK)
    (folder / "big.bin").write_bytes(b"weights\n" + bytes(17 << 20))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(b"events\n" + bytes(2 << 20))
    return path


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a shell and three programs."""
    if shutil.which("ch-run") is None:
        missing("ch-run: `make test-real` installs it, if root")
    root = tmp_path_factory.mktemp("image")
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("dev", "etc", "proc", "sys", "tmp"):
        (root / name).mkdir()
    for name in ("group", "passwd"):
        (root / "etc" / name).touch()
    wanted = {f"/usr/bin/{name}" for name in ("env", "readlink", "sleep")} | {"/usr/bin/sh"}
    for program in list(wanted):
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        wanted |= {path if path.startswith("/usr") else f"/usr{path}" for path in re.findall(r"(/\S+) \(", said)}
    for path in wanted:
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path[1:])
    return root


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A site whose nodes have scratch."""
    for node in NODES:
        (tmp_path / "scratch" / node).mkdir(parents=True)
    (tmp_path / "scratch" / NODES[0] / "somebody's").touch()
    yield {"scratch": {"node": f"{tmp_path}/scratch/$SLURMD_NODENAME"}, "containers": {"runtime": "charliecloud"}}


def ours(tmp_path: Path, node: str) -> list[Path]:
    return sorted(tmp_path.glob(f"scratch/{node}/hpo-pilot-*/*"))


def end(slurm: Slurm, job: str, tmp_path: Path) -> str:
    """Ends an allocation; returns what its pilot said."""
    slurm.run("scancel", "--batch", "--signal=TERM", job)
    slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED")
    return (tmp_path / f"pilot-{job}.log").read_text()


def test_trials_share_one_copy_per_node(
    slurm: Slurm,
    embedded: Embedded,
    files: Path,
    data: Path,
    image: Path,
    scratch: dict[str, Any],
    allocation: Callable[..., str],
    until: Any,
    tmp_path: Path,
) -> None:
    needs = JobNeeds(nodes=1, ranks_per_node=1, cores=4, memory_mb=500, minutes=1.0)
    task = embedded.submit("sh look.sh", 6, needs=needs, files=files, inputs=[str(data)], container=str(image))
    job = allocation(**scratch)
    until(lambda: embedded.state(task) == "done")
    verdicts = embedded.verdicts(task)
    copies = {node: ours(tmp_path, node) for node in NODES}
    said = end(slurm, job, tmp_path)
    assert [verdict["metrics"].get("copies") for verdict in verdicts] == [1111] * 6, "image, input, large file"
    assert {node for v in verdicts for node in NODES if f"on_{node}" in v["metrics"]} == set(NODES)
    assert {node: len(found) for node, found in copies.items()} == dict.fromkeys(NODES, 3)
    staged = re.findall(r"(\d) files or folders of \d+ MB staged on 1 nodes", said)
    assert sum(map(int, staged)) == 6, "each file once on each node"
    waited = sorted(verdict["metrics"]["stage_in_seconds"] for verdict in verdicts)
    assert waited[0] < waited[-1], "the first pay, the last find all there"
    assert not any(ours(tmp_path, node) for node in NODES), "removed at the end"
    assert [path.name for path in tmp_path.glob("scratch/*/*")] == ["somebody's"]


def test_a_full_scratch_is_no_failure(
    slurm: Slurm,
    embedded: Embedded,
    files: Path,
    data: Path,
    scratch: dict[str, Any],
    allocation: Callable[..., str],
    until: Any,
    tmp_path: Path,
) -> None:
    """What fits is copied, and the rest is read where it is; so is all of a job whose nodes differ in their paths."""
    (tmp_path / "more.bin").write_bytes(bytes(2 << 20))
    few = JobNeeds(nodes=1, ranks_per_node=1, cores=4, memory_mb=500, minutes=1.0)
    wide = JobNeeds(nodes=2, ranks_per_node=1, cores=4, memory_mb=500, minutes=1.0)
    inputs = [str(data), str(tmp_path / "more.bin")]
    tasks = [
        embedded.submit("sh look.sh", 2, needs=few, files=files, inputs=inputs),
        embedded.submit("[ $SLURM_PROCID = 1 ] || sh look.sh", 1, needs=wide, files=files, inputs=inputs),
    ]
    job = allocation("--staging-mb", "3", **scratch)
    until(lambda: all(embedded.state(task) == "done" for task in tasks))
    found = [[v["metrics"]["copies"] for v in embedded.verdicts(task)] for task in tasks]
    said = end(slurm, job, tmp_path)
    assert found[0] in ([1010, 1010], [1000, 1000]) and found[1] == [1000], "by chance the one or the other fits"
    assert len(re.findall(r"is not staged, and read where it is: with it, 4 MB would be staged", said)) == 1
    assert "big.bin is not staged: it has 17 MB, more than --staging-mb" in said
    assert "is another path on each node" in said
    assert not any(ours(tmp_path, node) for node in NODES)
