"""What each rank of a training spent its time on, and how well the ranks were used: measured, gathered, told."""

from __future__ import annotations

import json
import math
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpo_pilot.runner import hpo_pilot_ranks, hpo_pilot_results

#: A training of ranks that wait for each other, with sleep for work: (rank, ranks, seconds of input, of computation).
TRAINING = """
import json, os, sys, time
import hpo_pilot_ranks as ranks

rank, size, reading, working = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])

def barrier(step):
    open("at-%d-%d" % (step, rank), "w").close()
    while not all(os.path.exists("at-%d-%d" % (step, other)) for other in range(size)):
        time.sleep(0.002)

barrier(0)
ranks.start(rank, size)
for step in (1, 2):
    for batch in ranks.loader([None]):
        pass
    with ranks.load_input():
        time.sleep(reading / 2)
    time.sleep(working / 2)
    ranks.images(32)
    with ranks.communicate():
        barrier(step)
ranks.stop()
if rank == 0:
    time.sleep(0.1)  # what comes after counts for nothing
    with open("output.json", "w") as file:
        json.dump({"loss": 0.5, "metrics": {"accuracy": 0.9}}, file)
"""


def two(work: tuple[float, float], reading: tuple[float, float] = (0.0, 0.0)) -> str:
    """The command of two ranks."""
    first, second = (f"python3 train.py {rank} 2 {reading[rank]} {work[rank]}" for rank in (0, 1))
    return f"{second} & {first} && wait"


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HPO_PILOT_MEASURED", str(tmp_path / "measured"))
    monkeypatch.setattr(hpo_pilot_ranks.atexit, "register", lambda _: None)
    monkeypatch.setattr(hpo_pilot_ranks, "_clock", None)
    monkeypatch.setattr(hpo_pilot_ranks, "_stopped", False)
    yield
    hpo_pilot_ranks._clock = None


def of_rank(folder: Path, rank: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "measured" / f"{rank}.json").read_text())
    return told


def test_a_planted_delay_of_one_rank_moves_load_balance_by_what_is_computed(bench):
    ended = bench.run(two((0.4, 0.8)), files={"train.py": TRAINING})
    metrics = ended.verdict["metrics"]
    assert ended.verdict["value"] == 0.5
    assert metrics["pop_load_balance"] == pytest.approx((0.4 + 0.8) / 2 / 0.8, rel=0.05)
    assert metrics["pop_communication_efficiency"] == pytest.approx(1.0, rel=0.05)
    assert metrics["pop_parallel_efficiency"] == pytest.approx(0.75, rel=0.07)
    assert metrics["communication_seconds"] == pytest.approx((0.8 - 0.4) / 2, rel=0.2)
    assert metrics["images_per_second"] == pytest.approx(4 * 32 / 0.8, rel=0.07)
    assert metrics["ranks"] == 2
    assert metrics["accuracy"] == 0.9
    metadata = json.loads((ended.folder / "userJobMetadata.json").read_text())
    assert [rank["rank"] for rank in metadata["hpo_pilot_ranks"]] == [0, 1]
    assert metadata["hpo_pilot_ranks"][1]["compute"] == pytest.approx(0.8, rel=0.05)


def test_input_is_counted_apart(bench):
    ended = bench.run(two((0.4, 0.4), reading=(0.4, 0.4)), files={"train.py": TRAINING})
    metrics = ended.verdict["metrics"]
    assert metrics["pop_load_balance"] == pytest.approx(1.0, rel=0.05)
    assert metrics["pop_communication_efficiency"] == pytest.approx(1.0, rel=0.1)
    assert metrics["pop_input_fraction"] == pytest.approx(0.5, rel=0.07)
    assert metrics["images_per_second"] == pytest.approx(4 * 32 / 0.8, rel=0.07)


def test_a_figure_of_the_ranks_can_be_the_objective(bench):
    ended = bench.run(
        two((0.1, 0.2)), files={"train.py": TRAINING}, metric="images_per_second", objectives=["images_per_second"]
    )
    assert ended.verdict["value"] == ended.verdict["metrics"]["images_per_second"] > 0


def test_what_the_payload_says_itself_goes_first(bench):
    said = 'echo \'{"loss": 1, "metrics": {"images_per_second": 7}}\' >output.json'
    ended = bench.run(f"python3 train.py 0 1 0 0.1; {said}", files={"train.py": TRAINING})
    assert ended.verdict["metrics"]["images_per_second"] == 7
    assert ended.verdict["metrics"]["ranks"] == 1


def test_a_rank_without_a_word_leaves_no_figures(bench):
    rank = {"rank": 1, "size": 2, "seconds": 1.0, "compute": 1.0, "communication": 0.0, "input": 0.0, "images": 0}
    written = f"echo '{json.dumps(rank)}' >$HPO_PILOT_MEASURED/1.json"
    ended = bench.run(f"mkdir $HPO_PILOT_MEASURED; {written}; echo '{{\"loss\": 1}}' >output.json")
    assert (ended.verdict["value"], ended.verdict["metrics"]) == (1, {})
    assert ended.message == "1 of 2 ranks told what they spent their time on"


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "[]",
        '{"rank": 1}',
        '{"rank": 5, "size": 2, "seconds": 1, "compute": 1, "communication": 0, "input": 0, "images": 0}',
        '{"rank": 0, "size": 1, "seconds": NaN, "compute": 1, "communication": 0, "input": 0, "images": 0}',
        '{"rank": 0, "size": 1, "seconds": 1, "compute": -1, "communication": 0, "input": 0, "images": 0}',
        '{"rank": 0, "size": 1, "seconds": 1, "compute": 9, "communication": 0, "input": 0, "images": 0}',
        '{"rank": true, "size": 1, "seconds": 1, "compute": 1, "communication": 0, "input": 0, "images": 0}',
        '{"rank": 0, "size": 1, "seconds": 0, "compute": 0, "communication": 0, "input": 0, "images": 0}',
        "[" * 60000,
    ],
)
def test_a_broken_file_of_a_rank_ends_no_job(bench, broken):
    ended = bench.run(
        "mkdir $HPO_PILOT_MEASURED; cp 0.json $HPO_PILOT_MEASURED; echo '{\"loss\": 1}' >output.json",
        files={"0.json": broken},
    )
    assert (ended.verdict["value"], ended.verdict["metrics"]) == (1, {})
    assert ended.message


def test_the_figures_are_pop_s(tmp_path):
    """Two ranks of 10 s without input, of which one computes 8 and the other 4."""
    for rank, compute in ((0, 8.0), (1, 4.0)):
        told = {"rank": rank, "size": 2, "seconds": 12.0, "compute": compute, "input": 2.0, "images": 600}
        (tmp_path / f"{rank}.json").write_text(json.dumps({**told, "communication": 10.0 - compute}))
    figures, kept, why = hpo_pilot_ranks.assess(str(tmp_path), float)
    assert figures == pytest.approx(
        {
            "pop_load_balance": 0.75,
            "pop_communication_efficiency": 0.8,
            "pop_parallel_efficiency": 0.6,
            "pop_input_fraction": 1 / 6,
            "images_per_second": 100.0,
            "ranks": 2.0,
            "compute_seconds": 6.0,
            "communication_seconds": 4.0,
            "input_seconds": 2.0,
        }
    )
    assert math.isclose(
        figures["pop_parallel_efficiency"], figures["pop_load_balance"] * figures["pop_communication_efficiency"]
    )
    assert (len(kept["hpo_pilot_ranks"]), why) == (2, "")


def test_of_many_ranks_those_that_compute_longest_are_told_one_by_one(tmp_path):
    for rank in range(300):
        told = {"rank": rank, "size": 300, "seconds": 2.0, "compute": 1.0 + rank / 1000, "input": 0, "images": 0}
        (tmp_path / f"{rank}.json").write_text(json.dumps({**told, "communication": 0.5}))
    figures, kept, _ = hpo_pilot_ranks.assess(str(tmp_path), float)
    assert figures["ranks"] == 300
    assert [rank["rank"] for rank in kept["hpo_pilot_ranks"]] == list(range(44, 300))


def test_a_context_inside_another_takes_its_time_from_it(tmp_path):
    hpo_pilot_ranks.start()
    with hpo_pilot_ranks.communicate():
        time.sleep(0.05)
        with hpo_pilot_ranks.compute():
            time.sleep(0.1)
        time.sleep(0.05)
    time.sleep(0.05)
    hpo_pilot_ranks.stop()
    told = of_rank(tmp_path)
    assert (told["rank"], told["size"]) == (0, 1)
    assert told["communication"] == pytest.approx(0.1, abs=0.04)
    assert told["compute"] == pytest.approx(0.15, abs=0.04)
    assert told["seconds"] == pytest.approx(told["communication"] + told["compute"] + told["input"])


def test_after_the_stop_nothing_is_told_until_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr(hpo_pilot_ranks, "SAVE_EVERY", 0.0)
    hpo_pilot_ranks.start()
    hpo_pilot_ranks.images(3)
    with hpo_pilot_ranks.load_input():
        hpo_pilot_ranks.stop()
        told = of_rank(tmp_path)
        time.sleep(0.02)
    with hpo_pilot_ranks.communicate(), hpo_pilot_ranks.compute():
        time.sleep(0.02)
    hpo_pilot_ranks.images(5)
    hpo_pilot_ranks.stop()
    assert of_rank(tmp_path) == told
    assert told["images"] == 3
    hpo_pilot_ranks.start()
    with hpo_pilot_ranks.communicate():
        time.sleep(0.02)
    hpo_pilot_ranks.stop()
    assert of_rank(tmp_path)["communication"] >= 0.02
    assert of_rank(tmp_path)["images"] == 0


def test_a_context_that_fails_is_left_like_any_other(tmp_path):
    with pytest.raises(KeyError), hpo_pilot_ranks.load_input():
        raise KeyError
    time.sleep(0.05)
    hpo_pilot_ranks.stop()
    assert of_rank(tmp_path)["compute"] >= 0.05


def test_a_loader_is_timed_and_else_as_it_was(tmp_path):
    class Slow(list):
        sampler = "its own"

        def __iter__(self):
            for batch in list.__iter__(self):
                time.sleep(0.03)
                yield batch

    timed = hpo_pilot_ranks.loader(Slow([1, 2, 3]))
    assert (len(timed), timed.sampler) == (3, "its own")
    begun = time.monotonic()
    assert [list(timed), list(timed)] == [[1, 2, 3], [1, 2, 3]]
    took = time.monotonic() - begun
    hpo_pilot_ranks.stop()
    assert 0.17 < of_rank(tmp_path)["input"] < took + 0.01


def test_an_optimizer_s_waiting_is_communication(tmp_path):
    class Horovod:
        """What Horovod's optimizer does: step waits through synchronize, which others may call too."""

        def __init__(self):
            self.steps = 0

        def synchronize(self):
            time.sleep(0.05)
            return "gradients"

        def step(self):
            assert self.synchronize() == "gradients"
            time.sleep(0.05)
            self.steps += 1

    optimizer = Horovod()
    hpo_pilot_ranks.start()
    assert hpo_pilot_ranks.optimizer(optimizer) is optimizer
    optimizer.step()
    hpo_pilot_ranks.stop()
    assert of_rank(tmp_path)["communication"] == pytest.approx(0.05, abs=0.03)
    assert of_rank(tmp_path)["compute"] == pytest.approx(0.05, abs=0.03)
    plain = object()
    assert hpo_pilot_ranks.optimizer(plain) is plain


def test_gpu_work_is_waited_for_before_the_clock_is_read(tmp_path):
    hpo_pilot_ranks.start(synchronize=lambda: time.sleep(0.05))
    with hpo_pilot_ranks.communicate():
        pass
    hpo_pilot_ranks.stop()
    told = of_rank(tmp_path)
    assert told["communication"] == pytest.approx(0.05, abs=0.03)
    assert told["compute"] == pytest.approx(0.1, abs=0.04)


def test_only_who_began_is_timed(tmp_path):
    hpo_pilot_ranks.start()

    def elsewhere() -> None:
        with hpo_pilot_ranks.load_input():
            time.sleep(0.05)
        hpo_pilot_ranks.images(100)
        hpo_pilot_ranks.stop()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    child = os.fork()
    if child == 0:
        elsewhere()
        hpo_pilot_ranks._at_exit()
        os._exit(0)
    os.waitpid(child, 0)
    assert not (tmp_path / "measured").exists()
    hpo_pilot_ranks.stop()
    told = of_rank(tmp_path)
    assert (told["input"], told["images"]) == (0, 0)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_SIZE": "6"}, (5, 6)),
        ({"RANK": "", "WORLD_SIZE": "2"}, (0, 1)),
    ],
)
def test_the_launcher_says_which_rank_it_is(tmp_path, monkeypatch, environment, expected):
    for names in hpo_pilot_ranks.RANK_VARIABLES:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with hpo_pilot_ranks.compute():
        pass
    hpo_pilot_ranks.stop()
    told = of_rank(tmp_path, expected[0])
    assert (told["rank"], told["size"]) == expected


def test_a_rank_that_is_killed_has_told_before(tmp_path, monkeypatch):
    monkeypatch.setattr(hpo_pilot_ranks, "SAVE_EVERY", 0.0)
    hpo_pilot_ranks.start()
    with hpo_pilot_ranks.communicate():
        time.sleep(0.02)
    assert of_rank(tmp_path)["communication"] >= 0.02
    assert [path.name for path in (tmp_path / "measured").iterdir()] == ["0.json"]


def test_where_no_file_can_be_written_the_training_goes_on(tmp_path, monkeypatch, capsys):
    (tmp_path / "measured").write_text("in the way")
    hpo_pilot_ranks.start()
    hpo_pilot_ranks.stop()
    assert "is not written" in capsys.readouterr().out


def test_horovod_is_told_to_write_its_timeline_where_that_is_kept(bench):
    writes = 'printf "[\\n{},\\n" >"$HOROVOD_TIMELINE"; echo \'{"loss": 1}\' >output.json'
    ended = bench.run(writes, outputs=["horovod_timeline.json"])
    assert ended.verdict["outputs"] == ["horovod_timeline.json"]
    with tarfile.open(ended.folder / "outputs.tar.gz") as packed:
        content = packed.extractfile("horovod_timeline.json")
        assert content is not None and content.read() == b"[\n{},\n"
    silent = bench.run('test -z "$HOROVOD_TIMELINE" && echo \'{"loss": 1}\' >output.json', outputs=["output.json"])
    assert silent.verdict["value"] == 1


def test_a_long_timeline_is_cut_after_a_whole_event(tmp_path, monkeypatch):
    monkeypatch.setattr(hpo_pilot_results, "TIMELINE_KEPT", 30)
    path = tmp_path / "timeline.json"
    path.write_text("[\n" + '{"ph": "B"},\n' * 5)
    hpo_pilot_results.shorten(str(path))
    assert path.read_text() == "[\n" + '{"ph": "B"},\n' * 2
    hpo_pilot_results.shorten(str(path))
    assert path.read_text() == "[\n" + '{"ph": "B"},\n' * 2


@pytest.mark.parametrize(
    "environment",
    [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, {"PMI_RANK": "0", "PMI_SIZE": "1"}, {"PMI_RANK": "1"}],
)
def test_who_has_nobody_to_meet(monkeypatch, environment):
    """One process, a batch script, one rank, a launcher that does not say how many."""
    for name in {name for names in hpo_pilot_ranks.LAUNCHED for name in names} | {"SLURM_NTASKS", "HOROVOD_RANK"}:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    hpo_pilot_ranks.meet(SimpleNamespace(mpi_built=lambda: False))
    assert "HOROVOD_RANK" not in os.environ


def test_a_rank_that_does_not_meet_the_first_says_where_it_looked(monkeypatch):
    for name in {name for names in hpo_pilot_ranks.LAUNCHED for name in names} | {"HOROVOD_RANK"}:
        monkeypatch.delenv(name, raising=False)
    told = {"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=r"rank 0 is not at 127\.0\.0\.1:1: "):
        hpo_pilot_ranks.meet(SimpleNamespace(mpi_built=lambda: False), 0.0)
    hpo_pilot_ranks.meet(SimpleNamespace(mpi_built=lambda: True), 0.0)
    assert "HOROVOD_RANK" not in os.environ
