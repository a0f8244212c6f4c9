from __future__ import annotations

import subprocess

import pytest

from hpo_pilot.transformation.job import Arguments, make_executable, payload_argv, shell_command, without_secrets

RUNNER = "python3 -I -S hpo_pilot_runner.py --task eJw_-= --number 3"


def test_our_own_jobs_need_no_shell():
    assert payload_argv(Arguments(RUNNER), {}) == RUNNER.split()


@pytest.mark.parametrize("command", ["ls", RUNNER + "; rm x", RUNNER + " $HOME", "x " + RUNNER, RUNNER + " `ls`"])
def test_other_commands_run_in_a_shell(command):
    argv = payload_argv(Arguments(command), {})
    assert argv[:2] == ["/bin/sh", "-c"] and argv[2].endswith("; " + command)


def test_scripts_are_found_by_their_bare_names(tmp_path):
    (tmp_path / "go").write_text("#!/bin/sh\necho $1\n")
    make_executable("go 1", str(tmp_path))
    argv = payload_argv(Arguments("go 1 | tr 1 2 && (exit 4)"), {})
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "2\n")


def test_only_what_is_in_the_folder_is_made_executable(tmp_path):
    (tmp_path / "out").write_text("")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "link").symlink_to(tmp_path / "out")
    for command in ("../out", str(tmp_path / "out"), "link", "", "missing"):
        make_executable(command, str(tmp_path / "job"))
    assert not (tmp_path / "out").stat().st_mode & 0o100


def test_names_are_filled_in():
    command = "run %IN %IN2 %INDS '%IN' 100%"
    assert shell_command(Arguments(command), {"IN": r"a\1,b", "IN2": "c"}) == r"run a\1,b c %INDS 'a\1,b' 100%"


def test_outputs_by_their_real_names():
    arguments = Arguments(
        "run > out.txt; cp out.txt my.out.txt", outputs={"out.txt": "user.1.out.txt"}, real_names=True
    )
    assert shell_command(arguments, {}) == "run > user.1.out.txt; cp user.1.out.txt my.out.txt"
    assert shell_command(arguments._replace(real_names=False), {}) == arguments.command


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HPO_PILOT_STORE", "postgresql+psycopg://hpo-pilot@/hpo?host=/run/postgresql"),
        ("HPO_PILOT_SERVER_DATABASE", "postgresql+psycopg://hpo-pilot@/panda?host=/run/postgresql"),
        ("DATABASE_URL", "mysql://:open-sesame@db"),
        ("PGPASSWORD", "x"),
        ("OIDC_AUTH_ID_TOKEN", "x"),
        ("HPO_PILOT_TOKEN_FILE", "x"),
        ("X509_USER_PROXY", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("db_passwd", "x"),
        ("GH_TOKEN", "g"),
    ],
)
def test_credentials_stay_with_the_pilot(name, value):
    assert without_secrets({name: value, "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("http_proxy", "http://me:pass@proxy:3128"),
        ("SERVER", "https://example.org:8443/a@b"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("PASSAGE", "x"),
        ("OMP_NUM_THREADS", "1"),
    ],
)
def test_other_variables_are_passed_on(name, value):
    assert without_secrets({name: value}) == {name: value}
