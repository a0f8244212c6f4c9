"""Hardware requirements of prun; the cases follow panda-server 1.0.4."""

from __future__ import annotations

import pytest

from hpo_pilot.server.brokerage import (
    CpuRequirement,
    GpuOffer,
    GpuRequirement,
    HardwareError,
    HardwareRequirements,
    cpu_fits,
    gpus_fit,
    offered_gpus,
    parse_architecture,
)

A100 = GpuOffer(1, "NVIDIA", "NVIDIA A100-SXM4-40GB", "Ampere", "40960", "12.4", "575.57.08")
T4 = GpuOffer(2, "NVIDIA", "Tesla T4", "Turing", "16384", "11.8", "535.1")


@pytest.mark.parametrize(
    ("text", "required"),
    [
        ("", HardwareRequirements()),
        ("x86_64-centos7-gcc8-opt", HardwareRequirements("", (CpuRequirement("x86_64"),))),
        ("x86_64-el9-gcc13-opt@el9", HardwareRequirements("el9", (CpuRequirement("x86_64"),))),
        ("@el9", HardwareRequirements("el9")),
        ("#x86_64-intel-avx2", HardwareRequirements("", (CpuRequirement("x86_64", "intel", "avx2"),))),
        (
            "#(x86_64-*-avx2|aarch64)",
            HardwareRequirements("", (CpuRequirement("x86_64", "*", "avx2"), CpuRequirement("aarch64"))),
        ),
        ("&nvidia", HardwareRequirements("", (), GpuRequirement("nvidia"))),
        (
            "@el9#x86_64&nvidia-.*A100.*",
            HardwareRequirements("el9", (CpuRequirement("x86_64"),), GpuRequirement("nvidia", ".*A100.*")),
        ),
        (
            "&nvidia:model!=.*T4.*:uarch=Ampere:vram>=40000:cuda>=12.0",
            HardwareRequirements(
                "",
                (),
                GpuRequirement(
                    "nvidia", ".*T4.*", True, ("Ampere",), (("vram", ">=", (40000,)), ("version", ">=", (12,)))
                ),
            ),
        ),
        (
            '{"base_platform": "el9", "cpu_specs": [{"arch": "x86_64"}], "gpu_spec": {"vendor": "amd"}}',
            HardwareRequirements("el9", (CpuRequirement("x86_64"),), GpuRequirement("amd")),
        ),
        ('{"encoded_platform": "@el9&amd"}', HardwareRequirements("el9", (), GpuRequirement("amd"))),
    ],
)
def test_both_formats_of_requirements(text: str, required: HardwareRequirements) -> None:
    assert parse_architecture(text) == required


@pytest.mark.parametrize(
    ("required", "offer", "fits"),
    [
        ("", "x86_64", True),
        ("#x86_64", "", True),  # the queue does not say
        ("#x86_64", "X86_64-AMD", True),
        ("#aarch64", "x86_64", False),
        ("#x86_64-intel", "x86_64-amd", False),
        ("#x86_64-*-avx512f", "x86_64-intel-avx2", False),
        ("#x86_64-*-avx512f", "x86_64-intel", True),
    ],
)
def test_cpus(required: str, offer: str, fits: bool) -> None:
    assert cpu_fits(parse_architecture(required).cpus, offer) is fits


@pytest.mark.parametrize(
    ("required", "offers", "fits"),
    [
        ("&*", (), False),
        ("&*", (A100,), True),
        ("&nvidia", (A100,), True),
        ("&amd", (A100,), False),
        ("&nvidia-.*A100", (T4, A100), True),  # one of them is enough
        ("&nvidia:model!=.*T4.*", (T4, A100), False),
        ("&nvidia:model!=.*T4.*", (A100,), True),
        ("&nvidia:uarch=Ampere", (T4,), False),
        ("&nvidia:uarch=Ampere", (T4, A100), True),
        ("&nvidia:vram>=40000", (T4, A100), False),  # all must have it
        ("&nvidia:vram>=40000", (A100,), True),
        ("&nvidia:cuda>=12.0", (A100,), True),
        ("&nvidia:cuda>=12.10", (A100,), False),
        ("&nvidia:cuda==12.4.0", (A100,), True),
        ("&nvidia:driver<575.60", (A100,), True),
        ("&nvidia:cuda>=12.0", (GpuOffer(1, "NVIDIA"),), False),  # not said
    ],
)
def test_gpus(required: str, offers: tuple[GpuOffer, ...], fits: bool) -> None:
    gpu = parse_architecture(required).gpu
    assert gpu is not None
    assert gpus_fit(gpu, 1, offers) is fits


def test_gpus_are_counted() -> None:
    assert gpus_fit(GpuRequirement(), 3, (A100, T4))
    assert not gpus_fit(GpuRequirement(), 4, (A100, T4))


@pytest.mark.parametrize(
    ("said", "offers"),
    [
        ({}, None),
        ({"gpus": []}, ()),
        ({"gpus": [{"vendor": "NVIDIA", "vram": 40960, "count": 2}]}, (GpuOffer(2, "NVIDIA", memory_mb="40960"),)),
        ({"gpus": [{"count": -3}]}, (GpuOffer(1),)),
    ],
)
def test_gpus_that_a_pilot_states(said: dict[str, object], offers: tuple[GpuOffer, ...] | None) -> None:
    assert offered_gpus(said) == offers


@pytest.mark.parametrize("said", [{"gpus": 1}, {"gpus": ["A100"]}])
def test_invalid_gpus_of_a_pilot_are_refused(said: dict[str, object]) -> None:
    with pytest.raises(HardwareError):
        offered_gpus(said)


def test_slow_patterns_are_refused() -> None:
    for pattern in ("(a|aa)+b", "(.*)*x", "a*a*a*a*b", "a" * 200, "(a{1,99}){1,99}b", "(|.)" * 27 + "Z"):
        with pytest.raises(HardwareError):
            parse_architecture(f"&nvidia-{pattern}")
    slowest = parse_architecture("&nvidia-.*a.*a.*b").gpu
    assert slowest is not None
    assert not gpus_fit(slowest, 1, (GpuOffer(1, "NVIDIA", "a" * 128),))
