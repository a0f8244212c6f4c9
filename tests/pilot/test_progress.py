from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo_pilot.pilot.report import Progress, thinned
from hpo_pilot.transformation.job import PayloadSettings


@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        ("", ""),
        ('{"step": 1, "value": 0.5}\n', "hpoStep=1 hpoValue=0.5"),
        ('{"step": 1, "value": 0.5}', "hpoStep=1 hpoValue=0.5"),
        ('{"step": 1, "value": 0.5}\n{"step": 2, "val', "hpoStep=1 hpoValue=0.5"),
        ('{"step": 1, "value": 0.5}\n{"step": 2, "value": null}\n[]\nx\n{"step": 3}\n', "hpoStep=1 hpoValue=0.5"),
        ('{"step": NaN, "value": 1}\n{"step": -1, "value": 1}\n{"step": 1e300, "value": 1}\n', ""),
        # A training that diverges says so.
        ('{"step": 1, "value": Infinity}\n{"step": 2, "value": -Infinity}\n', "hpoStep=2 hpoValue=nan hpoPast=1:nan"),
        (
            '{"step": 1, "value": 1' + "0" * 400 + '}\n{"step": 2, "value": NaN}\n',
            "hpoStep=2 hpoValue=nan hpoPast=1:nan",
        ),
        ('{"step": true, "value": 1}\n{"step": "1", "value": 1}\n{"step": 1, "value": true}\n', ""),
        ('{"step": 1, "value": "x"}\n{"step": null, "value": 1}\n{"step": [1], "value": {}}\n', ""),
        ('{"step": 12.0, "value": -1e-7}\n', "hpoStep=12 hpoValue=-1e-07"),
        # Steps that go back take their place; of two reports of a step the first counts.
        (
            '{"step": 5, "loss": 1}\n{"step": 2, "loss": 4}\n{"step": 2, "loss": 9}\n{"step": 3, "loss": 0.123456789}',
            "hpoStep=5 hpoValue=1.0 hpoPast=2:4,3:0.123457",
        ),
        ('{"step": 1, "loss": 3, "value": 2}\n', "hpoStep=1 hpoValue=3.0"),
        ("[" * 100_000 + '\n{"step": 1, "value": 2}\n', "hpoStep=1 hpoValue=2.0"),
    ],
)
def test_what_heartbeats_carry(tmp_path, text, metrics):
    (tmp_path / "progress.jsonl").write_text(text)
    assert Progress(tmp_path, PayloadSettings(metric="loss")).text() == metrics


def test_no_progress_file_or_none_that_can_be_read(tmp_path):
    progress = Progress(tmp_path)
    assert progress.text() == "" and not progress.has_news()
    (tmp_path / "progress.jsonl").mkdir()
    assert progress.text() == "" and not progress.has_news()


def test_only_what_is_new_is_read(tmp_path):
    path = tmp_path / "progress.jsonl"
    progress = Progress(tmp_path)
    with path.open("w") as file:
        for step in range(1, 4):
            file.write(f'{{"step": {step}, ')
            file.flush()
            assert progress.has_news() and f"hpoStep={step} " not in progress.text()
            assert not progress.has_news()
            file.write(f'"value": {step}}}\n')
            file.flush()
            assert progress.has_news() and f"hpoStep={step} hpoValue={step}.0" in progress.text()
    assert progress._offset == path.stat().st_size
    path.write_text('{"step": 1, "value": 7}\n')  # it began anew
    assert progress.text() == "hpoStep=1 hpoValue=7.0"


def test_a_file_that_grows_too_fast_is_read_from_its_end(tmp_path):
    path = tmp_path / "progress.jsonl"
    with path.open("wb") as file:
        file.write(b'{"step": 1, "value": 1}\n')
        file.seek(1 << 30)
        file.write(b'\n{"step": 8, "value": 2}\n')
    assert Progress(tmp_path).text() == "hpoStep=8 hpoValue=2.0"


def test_in_a_job_of_several_points_the_metrics_name_the_one_that_runs(tmp_path):
    (tmp_path / "t3f1").mkdir()
    link = tmp_path / "progress.jsonl"
    link.symlink_to("t3f1/progress.jsonl")
    progress = Progress(tmp_path)
    assert progress.has_news() and progress.text() == "hpoMember=t3f1"
    (tmp_path / "t3f1" / "progress.jsonl").write_text('{"step": 4, "value": 2}\n')
    assert progress.text() == "hpoStep=4 hpoValue=2.0 hpoMember=t3f1"
    link.unlink()
    link.symlink_to("t4f1/progress.jsonl")
    assert progress.text() == "hpoMember=t4f1"
    link.unlink()
    link.symlink_to(".")
    assert not progress.has_news()


STEPS, FIGURES = st.integers(0, 2**53), st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.lists(st.tuples(STEPS, FIGURES), unique_by=lambda v: v[0])


@given(VALUES.map(sorted), st.integers(1, 60))
def test_thinning_keeps_the_newest_and_the_first(values, most):
    kept = thinned(values, most)
    newest = (most + 1) // 2
    assert len(kept) == min(len(values), most) or len(kept) > newest - 1
    assert len(kept) <= most and kept[-newest:] == values[-newest:]
    assert set(kept) <= set(values) and all(a[0] < b[0] for a, b in pairwise(kept))
    assert most < 2 or kept[:1] == values[:1]


def test_thinning_leaves_growing_gaps():
    kept = thinned([(step, 0.0) for step in range(1, 10_001)], 40)
    old = [step for step, _ in kept[:20]]
    assert len(kept) == 40 and old[:4] == [1, 3, 6, 10] and old[-1] > 4_000
    assert all(b <= 3 * a for a, b in pairwise(old))


@given(st.lists(st.tuples(STEPS, FIGURES), max_size=90))
def test_heartbeats_fit_into_what_the_server_keeps(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("job")
    lines = [json.dumps({"step": step, "value": value}) for step, value in values]
    (folder / "progress.jsonl").write_text("\n".join(lines))
    text = Progress(folder).text()
    assert len(text) <= 500
    if values:
        step = max(step for step, _ in values)
        first = next(value for at, value in values if at == step)
        assert text.startswith(f"hpoStep={step} hpoValue={first!r}")
        assert ("hpoPast" in text) == (len({step for step, _ in values}) > 1)


def test_a_gpu_job_is_known_for_one(tmp_path):
    document = PayloadSettings(gpus=4, nodes=2)
    progress = Progress(tmp_path, document)
    assert progress.text() == "nGPU=8"
    lines = (json.dumps({"step": step, "value": 1 / (step + 1)}) for step in range(300))
    (tmp_path / "progress.jsonl").write_text("\n".join(lines) + "\n")
    text = progress.text()
    assert text.startswith("nGPU=8 hpoStep=299 hpoValue=0.0033") and "hpoPast=" in text and len(text) <= 500
