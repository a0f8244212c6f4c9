"""What a payload can do wrong, and right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.runner.conftest import RUNNER, encoded


def write(text: str) -> str:
    return f"printf '%s' '{text}' > output.json"


GOOD = write('{"status": 0, "loss": 0.5, "message": ""}')


def test_a_good_payload(bench):
    ended = bench.run(
        write('{"status": 0, "loss": 0.5, "message": "", "metrics": {"auc": 0.9, "name": "x", "bad": NaN}}')
    )
    assert ended.code == 0
    verdict = ended.verdict
    assert (verdict["status"], verdict["value"], verdict["message"]) == (0, 0.5, "")
    assert verdict["metrics"] == {"auc": 0.9}
    identity = {"search": "digits", "uid": "1a2b3c4d", "generation": 2, "trial": 8, "fold": 1, "number": 2}
    assert (identity | {"attempt": 1, "version": 1}).items() <= verdict.items()
    assert verdict["log_tail"] == "" and verdict["outputs"] == [] and verdict["progress"] == []
    assert 0 < verdict["ended"] - verdict["started"] < 30
    assert not list(bench.checkpoints.glob("1a2b3c4d/t*/"))


def test_the_end_of_a_good_payloads_log_is_kept(bench):
    verdict = bench.run("seq 1 9999; " + GOOD).verdict
    assert verdict["value"] == 0.5
    assert verdict["log_tail"].endswith("9998\n9999\n") and len(verdict["log_tail"]) == 2000


@pytest.mark.parametrize(
    ("command", "value"),
    [
        (write('{"status": 0, "loss": 0}'), 0.0),
        (write('{"status": 0, "loss": -1e-300}'), -1e-300),
        (write('{"status": 0, "metrics": {"loss": 0.75}}'), 0.75),
        (write(" 1e-3"), 0.001),
        (write('{"loss": 2}'), 2.0),
        (r"""printf '\357\273\277{"status": 0, "loss": 2}' > output.json""", 2.0),  # a byte order mark
    ],
)
def test_values_that_count(judged, command, value):
    assert judged(command)[0] == [value]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("true", "no usable output.json: none was written"),
        (write("hello"), "no usable output.json: Expecting value"),
        (write(""), "no usable output.json: Expecting value"),
        (write('{"status": 0, "loss": 1} x'), "no usable output.json: Extra data"),
        ("printf '\\377\\376' > output.json", "no usable output.json: 'utf-8' codec"),
        ("mkfifo output.json", "no plain file"),
        ("mkdir output.json", "no plain file"),
        ("head -c 10500000 /dev/zero > output.json", "no plain file of at most 10 MB"),
        ("ln -s nowhere output.json", "no plain file"),
        (write("[1]"), "not an object"),
        ("head -c 100000 /dev/zero | tr '\\0' '[' > output.json", "no usable output.json"),
        (write('{"status": 0}'), "output.json has no key 'loss'; it has 'status'"),
        (write('{"status": 0, "los": 1}'), "output.json has no key 'loss'; it has 'status', 'los'"),
        (write("{}"), "output.json has no key 'loss'; it has none"),
        (write('{"status": 0, "loss": NaN}'), "'loss' in output.json is no finite number but NaN"),
        (write('{"status": 0, "loss": -Infinity}'), "no finite number but -Infinity"),
        (write('{"status": 0, "loss": 1e400}'), "no finite number but Infinity"),
        (write('{"status": 0, "loss": 1' + "0" * 400 + "}"), "no finite number but 1000" + "0" * 56 + "..."),
        (write('{"status": 0, "loss": "0.5"}'), 'no finite number but "0.5"'),
        (write('{"status": 0, "loss": true}'), "no finite number but true"),
        (write('{"status": 0, "loss": null}'), "no finite number but null"),
        (write('{"status": 0, "loss": [1]}'), "no finite number but [1]"),
        (write('{"status": 3, "loss": 1, "message": "no data"}'), "the payload reported status 3: no data"),
        (write('{"status": "0", "loss": 1}'), 'the payload reported status "0"'),
        (write('{"status": false, "loss": 1}'), "the payload reported status false"),
        (write('{"status": null, "loss": 1}'), "the payload reported status null"),
    ],
)
def test_results_that_do_not_count(judged, command, message):
    values, _, why = judged(command)
    assert values == [None] and message in why


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("true", "no usable output.json: none was written"),
        ("echo one; echo two >&2; exit 3", "the payload ended with exit code 3: two"),
        ("exit 137", "exit code 137 (SIGKILL), as the system does when memory runs out"),
        ("kill -SEGV $$", "the payload was ended by signal 11 (SIGSEGV)"),
        ("no-such-program --x", "the payload ended with exit code 127: sh: 1: no-such-program: not found"),
        (GOOD + "; exit 1", "the payload ended with exit code 1"),
        (write('{"status": 1, "message": "bad"}') + "; exit 2", "status 1: bad; it ended with exit code 2"),
    ],
)
def test_wrong_payloads_get_a_verdict(bench, command, message):
    ended = bench.run(command)
    assert ended.code == 0, ended.said
    assert ended.verdict["status"] == 1 and ended.verdict["value"] is None
    assert message in ended.message


def test_a_result_that_was_packed_along_is_not_taken_for_one(bench):
    ended = bench.run(
        "true", files={"output.json": '{"status": 0, "loss": 1}', "progress.jsonl": '{"step": 1, "value": 2}'}
    )
    assert "none was written" in ended.message and ended.verdict["progress"] == []


@pytest.mark.parametrize(("env", "threads"), [({}, "3"), ({"OMP_NUM_THREADS": "7"}, "7")])
def test_numerical_libraries_use_the_cores_of_the_job(bench, env, threads):
    ended = bench.run(f"[ $OMP_NUM_THREADS = {threads} ] && {GOOD}", env=env, cores=3)
    assert ended.verdict["value"] == 0.5


def test_what_the_payload_is_told(bench):
    code = (
        "import json, os; e = os.environ; json.dump({'status': 0, 'loss': json.load(open('input.json'))['x'],"
        " 'metrics': {'trial': int(e['HPO_PILOT_TRIAL']),"
        " 'fold': int(e['HPO_PILOT_FOLD']), 'folds': int(e['HPO_PILOT_FOLDS']),"
        " 'seed': int(e['HPO_PILOT_SEED']), 'attempt': int(e['HPO_PILOT_ATTEMPT']), 'nodes': int(e['HPO_PILOT_NODES']),"
        " 'gpus': int(e['HPO_PILOT_GPUS'])}}, open('output.json', 'w'))"
    )
    ended = bench.run(
        f'{sys.executable} -c "{code}"; echo %FOLD of %FOLDS > folds; env > env; pwd > $HPO_PILOT_CHECKPOINT_DIR/here',
        env={"PANDA_ATTEMPTNR": "2", "MY_TOKEN": "geheim", "X509_USER_PROXY": "/p", "TOKENIZERS_PARALLELISM": "0"},
        inputs=["a.h5", "b.h5"],
        nodes=2,
        gpus_per_node=4,
    )
    assert ended.verdict["value"] == 0.25
    told = {"trial": 8, "fold": 1, "folds": 3, "seed": 12, "attempt": 2, "nodes": 2, "gpus": 4}
    assert ended.verdict["metrics"] == told
    assert (ended.folder / "folds").read_text() == "1 of 3\n"
    assert json.loads((ended.folder / "input.json").read_text()) == {"x": 0.25, "name": "é"}
    assert json.loads((ended.folder / "input_ds.json").read_text()) == ["a.h5", "b.h5"]
    about = json.loads((ended.folder / "job.json").read_text())
    assert told.items() <= about.items() and about["search"] == "digits"
    assert about["checkpoint_dir"] == str(bench.checkpoints / "1a2b3c4d" / "t8f1")
    env = (ended.folder / "env").read_text()
    assert "OMP_NUM_THREADS" not in env, "nothing is said of cores"
    assert "HPO_PILOT_SEARCH=digits" in env and "TOKENIZERS_PARALLELISM=0" in env
    assert "geheim" not in env and "X509" not in env
    assert not (bench.checkpoints / "1a2b3c4d" / "t8f1").exists()  # it succeeded: nobody goes on from there


def test_the_memory_of_the_largest_process_is_measured_if_it_has_a_limit(bench):
    taken = f"{sys.executable} -c 'x = bytearray(300 << 20)'; " + GOOD
    assert 300 < bench.run(taken, measured=["memory_mb"]).verdict["metrics"]["memory_mb"] < 400
    assert bench.run(GOOD).verdict["metrics"] == {}


def test_the_payload_is_told_its_level(bench):
    task = encoded([[8, 1, 12]], {"8": {"x": 0.25, "epochs": 9}}, levels={"8": {"level": 9, "chain": 5}})
    ended = bench.run(f"echo $HPO_PILOT_LEVEL > level; {GOOD}", number=1, task=task)
    assert (ended.folder / "level").read_text() == "9\n"
    assert {"level": 9, "chain": 5}.items() <= json.loads((ended.folder / "job.json").read_text()).items()


def test_a_command_without_shell_signs_has_no_shell_above_it(bench):
    script = "import os, json\njson.dump({'status': 0, 'loss': os.getpid() - os.getpgrp()}, open('output.json', 'w'))\n"
    assert bench.run(f"{sys.executable} train.py", files={"train.py": script}).verdict["value"] == 0


def test_progress_is_thinned_and_broken_lines_are_passed_over(bench):
    script = (
        "import json\nwith open('progress.jsonl', 'w') as f:\n"
        "    for i in range(5000): f.write(json.dumps({'step': i, 'value': i / 2, 'lr': 1}) + '\\n')\n"
        "    f.write('garbage\\n{\"step\": 1}\\n{\"step\": 5000, \"value\": {}}\\n[1]\\n\\n' + 'x' * 100000 + '\\n')\n"
        '    f.write(\'{"step": 5001, "value": 7}\\n{"step": 5002, "val\')\n'
    )
    ended = bench.run(f"{sys.executable} train.py", files={"train.py": script})
    progress = ended.verdict["progress"]
    assert 100 <= len(progress) <= 200
    assert progress[0] == [0, 0.0] and progress[-1] == [5001, 7.0]
    assert all(a[0] < b[0] for a, b in pairwise(progress))
    assert ended.verdict["last_progress"] == {"step": 5001, "value": 7.0}
    bench.run("mkfifo progress.jsonl")


def test_a_curve_that_was_no_number_for_a_while_is_told_as_that(bench):
    lines = ['{"step": 1, "loss": NaN}', '{"step": 2, "loss": -Infinity}', '{"step": 3, "loss": 4}']
    ended = bench.run("printf '%s\\n' " + " ".join(f"'{line}'" for line in lines) + " > progress.jsonl; " + GOOD)
    assert ended.verdict["progress"] == [[1, None], [2, None], [3, 4.0]]


def test_outputs_are_packed_for_good_results_alone(bench):
    make = (
        "echo m > model.npz; mkdir -p d/e; echo a > d/e/a; ln -s /etc/passwd d/p; ln -s e/a d/inside; ln -s /etc out; "
    )
    declared = ["model.npz", "d", "out", "missing", "../../input.json", "/etc/hostname"]
    good = bench.run(make + GOOD, outputs=declared)
    assert good.verdict["value"] == 0.5 and good.verdict["outputs"] == ["model.npz", "d"]
    assert good.message == "declared outputs not found: out, missing, ../../input.json, /etc/hostname"
    listed = subprocess.run(
        ["tar", "tvzf", good.folder / "outputs.tar.gz"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert sorted(line.split()[-1] for line in listed) == ["d/e/a", "d/inside", "model.npz"]
    assert all(line.startswith("-") for line in listed)
    bad = bench.run(make + "exit 1", outputs=declared)
    assert bad.verdict["outputs"] == [] and not (bad.folder / "outputs.tar.gz").exists()


def test_a_flood_of_log_keeps_head_and_tail(bench):
    ended = bench.run("echo first; seq 1 200000; printf 'last \\033[31m\\000caf\\303\\251\\n'; exit 1")  # 1.29 MB
    assert ended.message.endswith("exit code 1: last \ufffd[31m\ufffdcafé")
    assert len(ended.verdict["log_tail"].encode()) <= 65536 and "\ufffd[31m" in ended.verdict["log_tail"]
    text = (ended.folder / "payload.log").read_bytes()
    head, note, tail = re.split(rb"\n\.\.\. (\d+) bytes are left out here \.\.\.\n", text)
    whole = b"first\n" + b"".join(b"%d\n" % number for number in range(1, 200001)) + b"last \033[31m\0caf\303\251\n"
    assert (whole[: 512 * 1024], whole[-512 * 1024 :]) == (head, tail)
    assert int(note) == len(whole) - 2 * 512 * 1024


def test_metadata_stays_small_whatever_comes(bench):
    script = (
        "import json\n"
        "much = {'é' * 500 + str(i): i for i in range(900)}\n"
        "json.dump({'status': 0, 'loss': 1, 'message': 'm' * 10**6, 'metrics': much}, open('output.json', 'w'))\n"
    )
    ended = bench.run(f"{sys.executable} train.py", files={"train.py": script})
    assert ended.verdict["value"] == 1
    script = script.replace("'status': 0", "'status': 'x' * 3000000")
    ended = bench.run(f"{sys.executable} train.py; head -c 100000 /dev/zero", files={"train.py": script})
    assert ended.verdict["value"] is None and len(ended.message) <= 2000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"number": 3}, "KeyError(3)"),
        ({"number": 0}, "KeyError(0)"),
        ({"task": "!!"}, "--task"),
        ({"command": None}, "--task"),
    ],
)
def test_a_broken_task_is_for_the_infrastructure(bench, options, said):
    ended = bench.run(options.pop("command", "true"), **options)
    assert ended.code != 0 and ended.verdict is None
    assert said in ended.said and ended.said.count("\n") == 1


@pytest.mark.skipif(not __import__("os").path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_for_the_infrastructure(bench):
    ended = bench.run("ln -s /dev/full userJobMetadata.json.new; " + GOOD)
    assert ended.code != 0 and ended.verdict is None
    assert "No space left on device" in ended.said and ended.said.count("\n") == 1


def test_it_imports_little(bench):
    """It starts once for each point: each import costs all of them."""
    lines = RUNNER.read_text().splitlines()
    names = ("binascii", "fcntl", "json", "os", "select", "signal", "sys", "time", "zlib")
    assert {line for line in lines if line.startswith("import ")} == {f"import {name}" for name in names}
