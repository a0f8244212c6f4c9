"""Site profiles: queues, files with their mistakes and places, and power."""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.site_files import SiteFileError, find_site, load_site, price_of, site_files, site_price
from hpo_pilot.hpc.site_folders import shipped_folder, site_folders
from hpo_pilot.hpc.site_profile import Batch, SiteProfile
from hpo_pilot.search import Resources, Search
from hpo_pilot.search.yaml_document import read_document
from schemas.write import schema_of

#: As on a machine where larger jobs may run longer, with a queue for small ones that run long.
BATCH = Batch.model_validate(
    {
        "system": "slurm",
        "queue": "batch",
        "queues": {
            "batch": {
                "walltime": [{"nodes": 91, "hours": 2}, {"nodes": 183, "hours": 6}, {"nodes": 9472, "hours": 12}]
            },
            "extended": {"walltime": [{"nodes": 64, "hours": 24}]},
        },
    }
)


def test_walltimes() -> None:
    batch = BATCH.queues["batch"]
    assert [batch.hours(nodes) for nodes in (1, 91, 92, 183, 184, 9472, 9473)] == [2, 2, 6, 6, 12, 12, None]
    assert BATCH.largest() == 9472
    assert [BATCH.longest(nodes) for nodes in (64, 65, 9472, 9473)] == [24, 12, 12, None]


@pytest.mark.parametrize(
    ("nodes", "hours", "size"),
    [(1, 2, 1), (1, 24, 1), (64, 24, 64), (65, 2, 65), (65, 3, 92), (65, 6.5, 184), (200, 12, 200), (65, 13, None)],
)
def test_the_smallest_allocation_that_holds_a_job(nodes: int, hours: float, size: int | None) -> None:
    assert BATCH.smallest(nodes, hours) == size


def test_what_is_not_said_is_not_limited() -> None:
    batch = Batch()
    assert (batch.largest(), batch.longest(10**6), batch.smallest(10**6, 1000)) == (None, None, 10**6)
    half = Batch.model_validate({"queues": {"small": {"walltime": [{"nodes": 4, "hours": 1}]}, "any": {}}})
    assert (half.largest(), half.longest(5), half.smallest(5, 100)) == (None, None, 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queues": {"a": {"walltime": [{"nodes": 4, "hours": 1}, {"nodes": 4, "hours": 2}]}}}, "must grow"),
        ({"queue": "b", "queues": {"a": {}}}, "'b' is not among the queues: a"),
        ({"warning": {"signal": "SIG usr"}}, "pattern"),
        ({"options": ["--a\n#SBATCH --b"]}, "pattern"),
        ({"system": "condor"}, "slurm"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Batch.model_validate(given)


def test_power_and_shape() -> None:
    profile = SiteProfile.model_validate(
        {
            "name": "x",
            "node": {
                "gpus": {"count": 4, "kind": "amd"},
                "power": {"idle": 100, "per_core": 2, "per_gpu": 250.5, "source": "a meter"},
            },
        }
    )
    assert (profile.node.gpu_count, profile.node.gpu_kind) == (4, "amd")
    assert profile.node.power is not None
    assert profile.node.power.watts(cores=10, gpus=2) == 621
    bare = SiteProfile(name="y").node
    assert (bare.gpu_count, bare.gpu_kind) == (0, "none")


# --- site files ---


ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "deploy" / "sites").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_they_are_sound(path: Path) -> None:
    profile = load_site(path)
    assert profile.name == path.stem
    jsonschema.validate(read_document(path).value, schema_of("site.json"))


def test_summit_is_as_its_guide_has_it() -> None:
    summit = find_site("summit")
    assert (summit.node.cores, summit.node.gpu_count, summit.node.architecture) == (42, 6, "ppc64le")
    batch = summit.batch.queues["batch"]
    assert [batch.hours(nodes) for nodes in (45, 46, 91, 92, 921, 922, 4608, 4609)] == [2, 6, 6, 12, 12, 24, 24, None]


@pytest.mark.parametrize(
    ("name", "queue", "nodes", "hours"),
    [
        ("lumi-g", "standard-g", [1024, 1025], [48, None]),  # "Slurm partitions allocatable by node"
        ("alps", "normal", [1022], [24]),  # Daint, "Slurm"
        ("leonardo", "boost_usr_prod", [64, 65], [24, None]),  # "SLURM Partitions Overview"
        ("marenostrum5", "acc_ehpc", [100, 101], [72, None]),  # queues of ACC
        ("aurora", "prod", [256, 1024, 1025, 1999, 2000, 10624, 10625], [12, 12, 18, 18, 24, 24, None]),  # "Queues"
        ("aurora", "capacity", [16, 17], [168, None]),
        ("polaris", "prod", [10, 24, 25, 99, 100, 496, 497], [3, 3, 6, 6, 24, 24, None]),  # "Queues"
        ("polaris", "capacity", [4, 5], [168, None]),
    ],
)
def test_walltimes_are_as_the_guides_have_them(
    name: str, queue: str, nodes: list[int], hours: list[float | None]
) -> None:
    batch = find_site(name).batch.queues[queue]
    assert [batch.hours(number) for number in nodes] == hours


def test_every_mistake_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "name: y\n"
        "node: {core: 3, memory_mb: -1, gpus: {kind: nvida, count: 2, modell: x}}\n"
        "batch:\n"
        "  system: slrum\n"
        "  queues: {a: {walltime: [{nodes: 4, hours: 1}, {node: 3, hours: 1}], limit: {}}}\n"
        "launcher: {name: sjrun}\n"
        "environment: {A: 3, b c: x}\n"
        "constraint: x\n"
        "setup: [a, 3]\n"
        "scratch: {node: tmp}\n"
    )
    with pytest.raises(SiteFileError) as caught:
        load_site(file)
    told = [str(problem).removeprefix(f"{file}:") for problem in caught.value.problems]
    assert [line.split(": ")[:2] for line in told] == [
        ["1:7", "name"],
        ["2:8", "node.core"],
        ["2:28", "node.memory_mb"],
        ["2:45", "node.gpus.kind"],
        ["2:62", "node.gpus.modell"],
        ["4:11", "batch.system"],
        ["5:50", "batch.queues.a.walltime[1].node"],
        ["5:71", "batch.queues.a.limit"],
        ["6:18", "launcher.name"],
        ["7:18", "environment.A"],
        ["7:26", "environment.b c"],
        ["8:1", "constraint"],
        ["9:12", "setup[1]"],
        ["10:17", "scratch.node"],
    ]
    for line, hint in (
        (0, "call the file y.yaml, or the site x"),
        (1, "did you mean cores?"),
        (3, "did you mean nvidia?"),
        (4, "did you mean model?"),
        (5, "did you mean slurm?"),
        (6, "did you mean nodes?"),
        (7, "did you mean limits?"),
        (8, "did you mean srun?"),
        (9, "put it in quotes: '3'"),
        (10, "must be a variable's name"),
        (11, "it belongs under batch"),
        (13, "must be a full path, from / or a variable on"),
    ):
        assert hint in told[line]


@pytest.mark.parametrize("text", ["", "[1]", "name: x\nnode:\n\tcores: 1\n", "node: {cores: 4}\n"])
def test_no_profile_at_all(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(SiteFileError, match=r"x\.yaml"):
        load_site(file)


def test_own_files_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "a", tmp_path / "missing", tmp_path / "b", tmp_path / "config" / "hpo_pilot" / "sites"]
    for folder in (folders[0], folders[2], folders[3]):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HPO_PILOT_SITES", os.pathsep.join(map(str, folders[:3])))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for folder, cores in ((folders[0], 1), (folders[2], 2), (folders[3], 3)):
        (folder / "mine.yaml").write_text(f"name: mine\nnode: {{cores: {cores}}}\n")
    (folders[3] / "summit.yaml").write_text("name: summit\nnode: {cores: 7}\n")
    assert find_site("mine").node.cores == 1
    assert find_site("summit").node.cores == 7
    assert site_files()["frontier"] == ROOT / "deploy" / "sites" / "frontier.yaml"
    (folders[0] / "mine.yaml").unlink()
    assert find_site("mine").node.cores == 2
    with pytest.raises(
        InputError, match=r"no site profile 'sumit': did you mean summit\?.*~/\.config/hpo_pilot/sites.*HPO_PILOT_SITES"
    ):
        find_site("sumit")


def test_the_home_folder_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / ".config" / "hpo_pilot" / "sites"
    own.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert site_folders()[0] == own


def test_a_home_that_cannot_be_looked_at_has_no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/" + "x" * 300)  # root may read all folders, but none has this name
    assert all("xxx" not in str(folder) for folder in site_folders())


def test_where_installations_have_them(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "hpo_pilot"
    prefix = tmp_path / "prefix"
    assert shipped_folder(package, [prefix]) is None
    beside = package.parent / "share" / "hpo_pilot" / "sites"  # pip install --target
    beside.mkdir(parents=True)
    assert shipped_folder(package, [prefix]) == beside
    (prefix / "share" / "hpo_pilot" / "sites").mkdir(parents=True)
    assert shipped_folder(package, [prefix]) == prefix / "share" / "hpo_pilot" / "sites"
    assert shipped_folder(ROOT / "hpo_pilot", [prefix]) == ROOT / "deploy" / "sites"


def test_an_installation_brings_them() -> None:
    """What setup.cfg puts where `shipped_folder` looks; pip makes wheels by it."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = setup["options.data_files"]["share/hpo_pilot/sites"].split()
    assert sorted(path for pattern in patterns for path in ROOT.glob(pattern)) == SHIPPED


# --- power ---


POWER = "name: ours\nnode: {cores: 10, power: {idle: %d, per_core: 5, per_gpu: 0, source: meter}}\n"


def test_a_whole_node_of_summit_draws_what_top500_says():
    whole = Resources(nodes=3, gpus_per_node=6, cores=42)
    assert site_price(find_site("summit"), whole).watts == pytest.approx(3 * 2190, rel=0.01)


@pytest.mark.parametrize(
    ("cores", "gpus", "memory", "share"), [(7, 1, 1000, 1 / 6), (21, 1, 1000, 0.5), (1, 0, 512_000, 1)]
)
def test_of_what_an_idle_node_draws_a_job_has_its_share(cores, gpus, memory, share):
    watts = site_price(find_site("summit"), Resources(gpus_per_node=gpus, cores=cores, memory_mb=memory)).watts
    assert watts == pytest.approx(500 * share + 4.5 * cores + 250 * gpus)


def test_a_search_has_its_site_s_figures(tmp_path, monkeypatch):
    monkeypatch.setenv("HPO_PILOT_SITES", str(tmp_path))
    search = Search.model_validate(
        {
            "search": "demo",
            "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
            "payload": {"command": "true"},
            "resources": {"cores": 5, "nodes": 2},
            "site": {"profile": "ours"},
        }
    )
    assert price_of(search).watts is None  # there is no such file
    site = tmp_path / "ours.yaml"
    for number, (idle, watts) in enumerate([(100, 150.0), (300, 350.0)]):
        site.write_text(POWER % idle)
        os.utime(site, ns=(number, number))
        assert price_of(search).watts == watts
    site.write_text("name: theirs\n")
    os.utime(site, ns=(9, 9))
    assert price_of(search).watts is None
