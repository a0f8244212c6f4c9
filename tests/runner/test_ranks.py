"""What each rank of a training spent its time on, and how well the ranks were used: measured, gathered, told."""

from __future__ import annotations

import json
import os
import sys
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpo_pilot.runner import hpo_pilot_ranks, hpo_pilot_results

RANK = {"rank": 0, "size": 1, "seconds": 1, "compute": 1, "communication": 0, "input": 0, "images": 0}


class Clock:
    """Stands in for `time` in the measured module."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(tmp_path, monkeypatch):
    made = Clock()
    monkeypatch.setenv("HPO_PILOT_MEASURED", str(tmp_path / "measured"))
    for name in {name for names in (*hpo_pilot_ranks.RANK_VARIABLES, *hpo_pilot_ranks.LAUNCHED) for name in names}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hpo_pilot_ranks, "time", made)
    monkeypatch.setattr(hpo_pilot_ranks.atexit, "register", lambda _: None)
    monkeypatch.setattr(hpo_pilot_ranks, "_clock", None)
    monkeypatch.setattr(hpo_pilot_ranks, "_stopped", False)
    yield made
    hpo_pilot_ranks._clock = None


def of_rank(folder: Path, rank: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "measured" / f"{rank}.json").read_text())
    return told


def put(folder: Path, rank: int, **told: Any) -> None:
    (folder / f"{rank}.json").write_text(json.dumps({**RANK, "rank": rank, **told}))


def test_ranks_of_a_job(bench):
    """Two processes; what the payload says itself goes first, and a figure of the ranks can be the objective."""
    program = (
        "import sys, hpo_pilot_ranks as r\nr.start(int(sys.argv[1]), 2)\nr.images(8)\n"
        "for _ in r.loader([1]): pass\nsum(range(100000))\nr.stop()\n"
    )
    said = 'echo \'{"loss": 1, "metrics": {"accuracy": 7}}\' >output.json'
    command = f"python3 train.py 1 & python3 train.py 0 && wait; {said}"
    ended = bench.run(
        command, files={"train.py": program}, metric="images_per_second", objectives=["images_per_second"]
    )
    metrics = ended.verdict["metrics"]
    assert ended.verdict["value"] == metrics["images_per_second"] > 0
    assert (metrics["ranks"], metrics["accuracy"]) == (2, 7) and 0 < metrics["pop_load_balance"] <= 1
    metadata = json.loads((ended.folder / "userJobMetadata.json").read_text())
    assert [rank["rank"] for rank in metadata["hpo_pilot_ranks"]] == [0, 1]


@pytest.mark.parametrize(
    "broken",
    [
        *("", "[]", '{"rank": 1}', "[" * 60000),
        *(
            json.dumps({**RANK, **wrong})
            for wrong in ({"rank": 5, "size": 2}, {"seconds": float("nan")}, {"input": -1})
        ),
        *(json.dumps({**RANK, **wrong}) for wrong in ({"compute": 9}, {"rank": True}, {"seconds": 0, "compute": 0})),
    ],
)
def test_a_broken_file_of_a_rank_leaves_no_figures(tmp_path, broken):
    (tmp_path / "0.json").write_text(broken)
    finite = lambda value: value if value == value else None  # noqa: E731, PLR0124 - as the runner's, for NaN
    figures, _, why = hpo_pilot_ranks.assess(str(tmp_path), finite)
    assert figures == {} and why


def test_a_missing_rank_leaves_no_figures(bench):
    written = f"echo '{json.dumps({**RANK, 'rank': 1, 'size': 2})}' >$HPO_PILOT_MEASURED/1.json"
    ended = bench.run(f"mkdir $HPO_PILOT_MEASURED; {written}; echo '{{\"loss\": 1}}' >output.json")
    assert (ended.verdict["value"], ended.verdict["metrics"]) == (1, {})
    assert ended.message == "1 of 2 ranks told what they spent their time on"


def test_the_figures_are_pop_s(tmp_path):
    """Two ranks of 10 s without input, of which one computes 8 and the other 4."""
    for rank, compute in ((0, 8.0), (1, 4.0)):
        told = {"seconds": 12.0, "compute": compute, "input": 2.0, "images": 600, "communication": 10.0 - compute}
        put(tmp_path, rank, size=2, **told)
    figures, kept, why = hpo_pilot_ranks.assess(str(tmp_path), float)
    pop = {"parallel_efficiency": 0.6, "load_balance": 0.75, "communication_efficiency": 0.8, "input_fraction": 1 / 6}
    seconds = {"compute_seconds": 6.0, "communication_seconds": 4.0, "input_seconds": 2.0}
    expected = {f"pop_{name}": value for name, value in pop.items()} | seconds
    assert figures == pytest.approx(expected | {"images_per_second": 100.0, "ranks": 2.0})
    assert (len(kept["hpo_pilot_ranks"]), why) == (2, "")


def test_the_ranks_with_most_computing_are_reported_one_by_one(tmp_path):
    for rank in range(300):
        put(tmp_path, rank, size=300, seconds=2.0, compute=1.0 + rank / 1000, communication=0.5)
    figures, kept, _ = hpo_pilot_ranks.assess(str(tmp_path), float)
    assert figures["ranks"] == 300
    assert [rank["rank"] for rank in kept["hpo_pilot_ranks"]] == list(range(44, 300))


def test_a_context_inside_another_takes_its_time_from_it(tmp_path, clock):
    hpo_pilot_ranks.start()
    with hpo_pilot_ranks.communicate():
        clock.sleep(1)
        with hpo_pilot_ranks.compute():
            clock.sleep(2)
        clock.sleep(4)
    with pytest.raises(KeyError), hpo_pilot_ranks.load_input():  # one that fails is left like any other
        clock.sleep(8)
        raise KeyError
    clock.sleep(16)
    hpo_pilot_ranks.stop()
    told = of_rank(tmp_path)
    assert (told["rank"], told["size"], told["seconds"]) == (0, 1, 31)
    assert (told["communication"], told["compute"], told["input"]) == (5, 18, 8)


def test_after_the_stop_nothing_is_told_until_the_next_start(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(hpo_pilot_ranks, "SAVE_EVERY", 0.0)
    hpo_pilot_ranks.start()
    hpo_pilot_ranks.images(3)
    with hpo_pilot_ranks.communicate():
        clock.sleep(1)
    assert of_rank(tmp_path)["communication"] == 1, "a rank that is killed has told before"
    with hpo_pilot_ranks.load_input():
        hpo_pilot_ranks.stop()
        told = of_rank(tmp_path)
    with hpo_pilot_ranks.communicate(), hpo_pilot_ranks.compute():
        clock.sleep(1)
    hpo_pilot_ranks.images(5)
    hpo_pilot_ranks.stop()
    assert of_rank(tmp_path) == told and told["images"] == 3
    hpo_pilot_ranks.start()
    with hpo_pilot_ranks.communicate():
        clock.sleep(2)
    hpo_pilot_ranks.stop()
    assert (of_rank(tmp_path)["communication"], of_rank(tmp_path)["images"]) == (2, 0)


def test_a_loader_is_timed_and_else_as_it_was(tmp_path, clock):
    class Slow(list):
        sampler = "its own"

        def __iter__(self):
            for batch in list.__iter__(self):
                clock.sleep(1)
                yield batch

    timed = hpo_pilot_ranks.loader(Slow([1, 2, 3]))
    assert (len(timed), timed.sampler) == (3, "its own")
    assert [list(timed), list(timed)] == [[1, 2, 3], [1, 2, 3]]
    hpo_pilot_ranks.stop()
    assert of_rank(tmp_path)["input"] == 6


def test_an_optimizer_s_waiting_is_communication(tmp_path, clock):
    """What Horovod's optimizer does: step waits through synchronize, which others may call too."""
    optimizer = SimpleNamespace(synchronize=lambda: clock.sleep(1) or "gradients")
    hpo_pilot_ranks.start(synchronize=lambda: clock.sleep(4))  # work of a GPU counts where it was started
    assert hpo_pilot_ranks.optimizer(optimizer) is optimizer
    assert optimizer.synchronize() == "gradients"
    clock.sleep(2)
    hpo_pilot_ranks.stop()
    assert (of_rank(tmp_path)["communication"], of_rank(tmp_path)["compute"]) == (5, 10)
    plain = object()
    assert hpo_pilot_ranks.optimizer(plain) is plain


def test_a_model_s_waiting_is_communication(tmp_path, clock, monkeypatch):
    """Torch's parts in small: DDP waits for all buckets in the hook of the last one, others through Work.wait."""

    class Work:
        def wait(self) -> str:
            clock.sleep(1)
            return "done"

    class Parallel:
        process_group = "all ranks"

        def register_comm_hook(self, state: str, hook: Any) -> None:
            self.exchange = lambda is_last: hook(state, SimpleNamespace(is_last=lambda: is_last))

    for name, module in {
        "torch.distributed": SimpleNamespace(Work=Work),
        "torch.nn.parallel": SimpleNamespace(DistributedDataParallel=Parallel),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    started = []
    hook = lambda state, bucket: started.append(state) or SimpleNamespace(wait=lambda: clock.sleep(4))  # noqa: E731
    sharded, parallel = object(), Parallel()
    assert hpo_pilot_ranks.model(sharded) is hpo_pilot_ranks.model(sharded) is sharded
    with monkeypatch.context() as inside:
        inside.setattr("builtins.__import__", lambda *_, **__: SimpleNamespace(allreduce_hook=hook))
        assert hpo_pilot_ranks.model(parallel) is parallel
    hpo_pilot_ranks.start()
    assert Work().wait() == "done"
    for is_last in (False, False, True):
        clock.sleep(16)
        parallel.exchange(is_last)
    hpo_pilot_ranks.stop()
    assert (of_rank(tmp_path)["communication"], of_rank(tmp_path)["compute"]) == (1 + 3 * 4, 3 * 16)
    assert started == ["all ranks"] * 3


def test_a_payload_that_only_starts_the_clock_has_figures(bench):
    """`ranks_timeline.json` as an output has what each rank did when."""
    program = (
        "import sys, time, hpo_pilot_ranks as r\nr.start(int(sys.argv[1]), 2)\n"
        "with r.communicate(): time.sleep(0.01)\nsum(range(100000))\n"
    )
    said = "echo '{\"loss\": 1}' >output.json"
    command = f"python3 train.py 1 & python3 train.py 0 && wait; {said}"
    ended = bench.run(command, files={"train.py": program}, outputs=["ranks_timeline.json"])
    assert ended.verdict["metrics"]["ranks"] == 2 and ended.verdict["metrics"]["compute_seconds"] > 0
    with tarfile.open(ended.folder / "outputs.tar.gz") as packed:
        content = packed.extractfile("ranks_timeline.json")
        assert content is not None
        events = json.loads(content.read().decode().rstrip(",\n") + "]")
    for rank in (0, 1):
        mine = [event for event in events if event["pid"] == rank]
        assert [event["name"] for event in mine] == ["compute", "communication", "compute"]
        assert mine[1]["dur"] >= 10_000 and mine[1]["ts"] >= mine[0]["ts"]


def test_only_the_thread_that_started_is_timed(tmp_path, clock):
    hpo_pilot_ranks.start()

    def elsewhere() -> None:
        with hpo_pilot_ranks.load_input():
            clock.sleep(1)
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
    assert (of_rank(tmp_path)["input"], of_rank(tmp_path)["images"]) == (0, 0)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_SIZE": "6"}, (5, 6)),
        ({"RANK": "", "WORLD_SIZE": "2"}, (0, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # the batch script
    ],
)
def test_the_launcher_says_which_rank_it_is(tmp_path, monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with hpo_pilot_ranks.compute():
        pass
    hpo_pilot_ranks.stop()
    told = of_rank(tmp_path, expected[0])
    assert (told["rank"], told["size"]) == expected


def test_where_no_file_can_be_written_the_training_goes_on(tmp_path, capsys):
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
def test_a_single_process_does_not_meet_others(monkeypatch, environment):
    """One process, a batch script, one rank, a launcher that does not say how many."""
    for name, value in {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    hpo_pilot_ranks.meet(SimpleNamespace(mpi_built=lambda: False))
    assert "HOROVOD_RANK" not in os.environ


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("no-such-node.invalid", r"MASTER_ADDR=no-such-node\.invalid has no address here: .*set MASTER_ADDR"),
        ("127.0.0.1", r"rank 0 is not at 127\.0\.0\.1:1: "),
    ],
)
def test_a_rank_that_does_not_meet_the_first_names_the_address(monkeypatch, address, said):
    told = {"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=said):
        hpo_pilot_ranks.meet(SimpleNamespace(mpi_built=lambda: False), 0.0)
    hpo_pilot_ranks.meet(SimpleNamespace(mpi_built=lambda: True), 0.0)
    assert "HOROVOD_RANK" not in os.environ
