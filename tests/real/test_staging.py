"""Images, inputs and large files on the nodes' own disks, in an allocation of a real Slurm.

Both nodes are this machine: the scratch of each is a folder of its own, whose name only its processes know.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.real.processes import missing
from tests.real.slurm import NODES, slurm
from tests.real.test_allocation import ONE, TWO, Site, embedded, here

__all__ = ["embedded", "here", "slurm"]

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
def data(here: Site) -> Path:
    """An input; the payload's files are written, too."""
    (here.files / "look.sh").write_text(LOOK)
    (here.files / "big.bin").write_bytes(b"weights\n" + bytes(17 << 20))
    path = here.folder / "data.bin"
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


def ours(here: Site, node: str) -> list[Path]:
    return sorted(here.folder.glob(f"scratch/{node}/hpo-pilot-*/*"))


def test_trials_share_one_copy_per_node(here: Site, data: Path, image: Path, scratch: dict[str, Any]) -> None:
    needs = replace(ONE, cores=4, minutes=1.0)
    task = here.submit("sh look.sh", 6, needs, inputs=[str(data)], container=str(image))
    job = here.allocate(**scratch)
    here.wait(task)
    verdicts = here.server.verdicts(task)
    copies = {node: ours(here, node) for node in NODES}
    said = here.end(job)
    assert [verdict["metrics"].get("copies") for verdict in verdicts] == [1111] * 6, "image, input, large file"
    assert {node for v in verdicts for node in NODES if f"on_{node}" in v["metrics"]} == set(NODES)
    assert {node: len(found) for node, found in copies.items()} == dict.fromkeys(NODES, 3)
    staged = re.findall(r"(\d) files or folders of \d+ MB staged on 1 nodes", said)
    assert sum(map(int, staged)) == 6, "each file once on each node"
    waited = sorted(verdict["metrics"]["stage_in_seconds"] for verdict in verdicts)
    assert waited[0] < waited[-1], "the first pay, the last find all there"
    assert not any(ours(here, node) for node in NODES), "removed at the end"
    assert [path.name for path in here.folder.glob("scratch/*/*")] == ["somebody's"]


def test_a_full_scratch_is_no_failure(here: Site, data: Path, scratch: dict[str, Any]) -> None:
    """What fits is copied, and the rest is read where it is; so is all of a job whose nodes differ in their paths."""
    more = here.folder / "more.bin"
    more.write_bytes(bytes(2 << 20))
    few, wide = replace(ONE, cores=4, minutes=1.0), replace(TWO, cores=4, minutes=1.0)
    inputs = [str(data), str(more)]
    tasks = [
        here.submit("sh look.sh", 2, few, inputs=inputs),
        here.submit("[ $SLURM_PROCID = 1 ] || sh look.sh", 1, wide, inputs=inputs),
    ]
    job = here.allocate("--staging-mb", "3", **scratch)
    here.wait(*tasks)
    found = [[v["metrics"]["copies"] for v in here.server.verdicts(task)] for task in tasks]
    said = here.end(job)
    assert found[0] in ([1010, 1010], [1000, 1000]) and found[1] == [1000], "by chance the one or the other fits"
    assert len(re.findall(r"is not staged, and read where it is: with it, 4 MB would be staged", said)) == 1
    assert "big.bin is not staged: it has 17 MB, more than --staging-mb" in said
    assert "is another path on each node" in said
    assert not any(ours(here, node) for node in NODES)
