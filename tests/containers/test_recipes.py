"""The recipes agree with each other, with what builds Horovod, with the payloads and with the sites' profiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.test_horovod_build import build

__all__ = ["build"]

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
RECIPES = sorted([*CONTAINERS.glob("*/*Containerfile"), *CONTAINERS.glob("*/*.def")])
CONTAINERFILES = [path for path in RECIPES if path.name.endswith("Containerfile")]
PAYLOAD_FILES = [path for path in CONTAINERFILES if path.parent.name != "steering"]
LISTS = sorted([*CONTAINERS.glob("*/*requirements.txt"), *CONTAINERS.glob("*/*constraints.txt")])
DEFINITIONS = {"frontier": CONTAINERS / "horovod" / "frontier.def", "summit": CONTAINERS / "horovod" / "summit.def"}


def name_of(path: Path) -> str:
    return str(path.relative_to(CONTAINERS))


def pins(path: Path) -> dict[str, str]:
    """{canonical name: version} of a list of pip's or conda's."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    pairs = [re.fullmatch(r"([\w.-]+)==?([\d.]+)", line) for line in lines]
    assert all(pairs), lines
    found = {canonicalize_name(pair[1]): pair[2] for pair in pairs if pair}
    assert len(found) == len(lines), "twice"
    return found


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, its words) of a Containerfile."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def bases(path: Path) -> list[str]:
    """The images that a recipe begins with."""
    return re.findall(r"^(?:From:|FROM) (\S+)", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", LISTS, ids=name_of)
def test_all_versions_are_exact(path):
    assert all(line.count("==") == 1 for line in path.read_text().splitlines() if line and not line.startswith("#"))
    assert pins(path)


#: Bases whose tag is that of one release; the digest of the image for all architectures is not known.
RELEASES = {
    "docker.io/rocm/pytorch:rocm6.4.1_ubuntu22.04_py3.10_pytorch_release_2.6.0",
    "docker.io/condaforge/miniforge3:24.11.3-2",
}


def test_bases_are_public_and_pinned():
    """By the digest of the index of all architectures; the same tag has the same digest in all recipes."""
    pinned: dict[str, set[str]] = {}
    for path in RECIPES:
        found = set(bases(path)) - RELEASES
        assert found or set(bases(path)) & RELEASES, path
        for image in found:
            parts = re.fullmatch(r"(docker\.io/[\w./-]+:[\w.-]*\d[\w.-]*)@sha256:([0-9a-f]{64})", image)
            assert parts, (path, image)
            pinned.setdefault(parts[1], set()).add(parts[2])
    assert {len(digests) for digests in pinned.values()} == {1}


@pytest.mark.parametrize("path", [*RECIPES, *LISTS, CONTAINERS / "build_root.py"], ids=name_of)
def test_nothing_names_a_registry_of_packages_or_a_place_of_one_machine(path):
    assert not re.search(r"https?://|pypi\.|anaconda\.org|index-url|/work/|/root/", path.read_text(), re.IGNORECASE)


@pytest.mark.parametrize("path", PAYLOAD_FILES, ids=name_of)
def test_payloads_run_as_nobody_special(path):
    found = instructions(path)
    last = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    assert [words for name, words in found[last:] if name == "USER"] == ["1000"]
    assert any("useradd" in words and "--uid 1000" in words for name, words in found[last:] if name == "RUN")


@pytest.mark.parametrize("path", PAYLOAD_FILES, ids=name_of)
def test_no_compiler_is_left_and_no_cache(path):
    found = instructions(path)
    last = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    kept = " ".join(words for name, words in found[last:] if name == "RUN")
    assert path.parent.name == "autotune" or not re.search(r"\b(g\+\+|gcc|make|python3-dev)\b", kept)
    for name, words in found:
        if name == "RUN" and "apt-get install" in words:
            assert "--no-install-recommends" in words and "rm -rf /var/lib/apt/lists" in words
        if name == "RUN" and "pip install" in words:
            assert "--no-cache-dir" in words or any("PIP_NO_CACHE_DIR=1" in other for _, other in found)


def test_what_is_copied_is_there():
    for path in CONTAINERFILES:
        context = ROOT if f"-f containers/{name_of(path)} ." in path.read_text() else path.parent
        for name, words in instructions(path):
            if name == "COPY" and "--from" not in words:
                assert all((context / source).exists() for source in words.split()[:-1]), (path, words)
    for path in DEFINITIONS.values():
        section = path.read_text().partition("%files\n")[2].partition("\n\n")[0]
        assert section
        assert all((ROOT / line.split()[0]).exists() for line in section.splitlines())


def test_every_payload_has_an_image():
    named = set(
        re.findall(r"\b(digits|calo_gan|resnet50|transformer|bdt|autotune)\b", "".join(p.read_text() for p in RECIPES))
    )
    assert {path.name for path in (ROOT / "payloads").iterdir() if (path / "train.py").exists()} == named


def test_horovod_and_torch_are_what_is_built_and_tried(build):
    constraints = pins(CONTAINERS / "horovod" / "constraints.txt")
    assert f"torch=={constraints['torch']}" == build.TORCH
    for path in [*LISTS, *DEFINITIONS.values()]:
        assert set(re.findall(r"^\s*horovod[= ]+(\S+)", path.read_text(), re.MULTILINE)) <= {build.HOROVOD}, path
    for name in ("constraints.txt", "rocm-constraints.txt"):
        assert pins(CONTAINERS / "horovod" / name)["horovod"] == build.HOROVOD


@pytest.mark.parametrize("name", ["constraints.txt", "rocm-constraints.txt"])
def test_all_that_a_build_installs_is_pinned_within_what_it_asks_for(build, name):
    found = pins(CONTAINERS / "horovod" / name)
    payloads = (ROOT / "deploy" / "horovod" / "requirements.txt").read_text().splitlines()
    wanted = [*build.BUILD_NEEDS, build.CMAKE, *(line for line in payloads if line and not line.startswith("#"))]
    for requirement in map(Requirement, wanted):
        version = found.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in {name}"
        assert requirement.specifier.contains(version), requirement
    assert "mpich" in found


def test_summit_has_all_that_the_payloads_import(build):
    found = pins(CONTAINERS / "horovod" / "summit-packages.txt")
    payloads = (ROOT / "deploy" / "horovod" / "requirements.txt").read_text().splitlines()
    for requirement in [Requirement(line) for line in payloads if line and not line.startswith("#")]:
        assert canonicalize_name(requirement.name) in found
    assert f"torch {found['pytorch']}" in DEFINITIONS["summit"].read_text()
    assert Requirement(build.CMAKE).specifier.contains(found["cmake"])


def test_cuda_is_that_of_torch():
    """Torch 2.13.0 on PyPI asks for cuda-toolkit 13.0.3; a driver and GPUs that CUDA 13 knows."""
    text = (CONTAINERS / "horovod" / "cuda.Containerfile").read_text()
    torch = pins(CONTAINERS / "horovod" / "constraints.txt")["torch"]
    (image, runtime) = (base.partition("@")[0] for base in bases(CONTAINERS / "horovod" / "cuda.Containerfile"))
    cuda = re.search(r"/cuda:([\d.]+)-cudnn-devel-(ubuntu[\d.]+)$", image)
    assert cuda and f"torch {torch} is built for CUDA {cuda[1]}" in text
    assert runtime == f"docker.io/library/{cuda[2].replace('ubuntu', 'ubuntu:')}"
    compiled = re.search(r"CUDA_CC_LIST=([\d,]+)", text)
    assert compiled and min(map(int, compiled[1].split(","))) >= 75  # CUDA 13 knows no older ones


def test_rocm_is_the_same_in_both_recipes():
    containerfile, definition = CONTAINERS / "horovod" / "rocm.Containerfile", DEFINITIONS["frontier"]
    (image,) = set(bases(containerfile) + bases(definition))
    said = re.search(r"rocm([\d.]+)_\w+\.\w+_py([\d.]+)_pytorch_release_([\d.]+)$", image)
    assert said
    constraints = (CONTAINERS / "horovod" / "rocm-constraints.txt").read_text()
    assert f"torch {said[3]} for ROCm {said[1]}, under\n# Python {said[2]}" in constraints
    assert f"torch {said[3]}\n" in definition.read_text()
    # The same steps in both.
    built = re.findall(r"HOROVOD_\w+=\S+", " ".join(words for name, words in instructions(containerfile)))
    assert built == re.findall(r"HOROVOD_\w+=\S+", definition.read_text())


@pytest.mark.parametrize("path", sorted(CONTAINERS.glob("horovod/*Containerfile")), ids=name_of)
def test_both_stages_have_the_same_python(path):
    """The venv that is copied names it."""
    build, runtime = (base.partition("@")[0] for base in bases(path))
    assert build == runtime or ("ubuntu24.04" in build and runtime.endswith("ubuntu:24.04"))
    for version in re.findall(r"python(3\.\d+)/", path.read_text()):
        assert f"python:{version}" in runtime or (runtime.endswith("ubuntu:24.04") and version == "3.12")


@pytest.mark.parametrize("site", sorted(DEFINITIONS))
def test_definitions_are_for_the_machines_of_their_profiles(site):
    text = DEFINITIONS[site].read_text()
    profile = yaml.safe_load((ROOT / "deploy" / "sites" / f"{site}.yaml").read_text())
    assert f"deploy/sites/{site}.yaml" in text
    assert profile["containers"]["runtime"] == "apptainer"
    assert f"architecture {profile['node']['architecture']}\n" in text
    assert all(folder in text for folder in profile["containers"]["mpi"])
    for module in profile["modules"]:
        assert not module.startswith("apptainer-") or module in text
    if site == "summit":
        assert "HOROVOD_BUILD_CUDA_CC_LIST=70" in text and profile["node"]["gpus"]["model"].startswith("V100")


def test_families_have_the_same_libraries():
    """A payload that moves from one image to another computes the same."""
    lists = [pins(path) for path in LISTS if path.name != "rocm-constraints.txt"]
    for name in set.intersection(*(set(found) for found in lists)):
        assert len({found[name] for found in lists}) == 1, name
