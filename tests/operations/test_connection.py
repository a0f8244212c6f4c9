"""What a client does when the service is not what it should be: no token elsewhere, one clear line."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from hpo_pilot import connect
from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from tests.rest_api import start_api

from .conftest import good, problem

# --- errors ---

HTML = {"Content-Type": "text/html"}
WORDS = r"^the very words$"


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (problem(401, "unauthorized", "the very words"), InputError, WORDS),
        (problem(403, "forbidden", "the very words"), InputError, WORDS),
        (problem(404, "not_found", "the very words"), InputError, WORDS),
        (problem(409, "conflict", "the very words"), TryAgainError, WORDS),
        (problem(413, "too_large", "the very words"), InputError, WORDS),
        (problem(422, "input", "the very words"), InputError, WORDS),
        (problem(503, "try_again", "the very words"), TryAgainError, WORDS),
        (problem(500, "give_up", "the very words"), GiveUpError, WORDS),
        (problem(418, "new in a later version", "the very words"), GiveUpError, WORDS),
        (
            problem(422, "input", "\x1b[2Jcleared\nline"),
            InputError,
            r"^\?\[2Jcleared\nline$",
        ),  # cannot steer the terminal
        ((404, HTML, b"<h1>nothing</h1>"), InputError, "there is no hpo-pilot service at http://127"),
        ((200, HTML, b"hello"), InputError, "there is no hpo-pilot service at http://127"),
        ((500, {"Content-Type": "application/problem+json"}, b"[1]"), GiveUpError, "nothing that we understand"),
    ],
)
def test_errors_are_ours_with_the_service_s_words(fake, token_file, answer, kind, message):
    fake.answers = [answer]
    with pytest.raises(kind, match=message):
        connect(fake.url, token_file).status("x")


def test_a_service_that_is_down(token_file):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(TryAgainError, match=f"the service {url} cannot be reached: .*refused"):
        connect(url, token_file).status("x")
    assert [finding["ok"] for finding in connect(url, token_file).doctor()] == [False]


# --- the token ---


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_the_token_goes_nowhere_else(fake, token_file, status):
    fake.answers = [(status, {"Location": f"{fake.url}/elsewhere"}, b"")]
    with pytest.raises(InputError, match="elsewhere, and the token is not sent there"):
        connect(fake.url, token_file).status("x")
    assert len(fake.seen) == 1


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        (["http://hpo.example.org", "http://10.0.0.1:80", "http://localhost.example.org"], "use https://"),
        (["http://127.0.0.1.example.org"], "use https://"),
        (["", "hpo.example.org", "ftp://x", "https://", "https://x?y", "https://x:port", "https://u:p@x"], "--service"),
    ],
    ids=["token in the clear", "a name that begins as an address", "no URL"],
)
def test_urls_that_are_refused(token_file, urls, message):
    for url in urls:
        with pytest.raises(InputError, match=message):
            connect(url, token_file)


@pytest.mark.parametrize("content", [None, "", "two words", "ü", "a\nb"])
def test_a_token_file_that_has_none(tmp_path, content):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=f"token file {path}"):
        connect("https://127.0.0.1:1", path)


def test_the_token_is_read_anew_and_no_login_takes_its_place(fake, token_file, tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password mine\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    fake.answers = [good([])]
    client = connect(fake.url, token_file)
    client.searches()
    token_file.write_text("another.one")
    client.searches()
    assert [seen[2] for seen in fake.seen] == ["Bearer a.secret.token", "Bearer another.one"]


def test_an_unknown_authority_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    with start_api(tmp_path / "api", tls=True) as api:
        token = api.token_file("alice")
        with pytest.raises(InputError, match=r"is not trusted: .*--ca FILE"):
            connect(api.url, token).searches()
        assert connect(api.url, token, ca=api.ca).searches() == []
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(api.ca))
        assert connect(api.url, token).searches() == []
    with pytest.raises(InputError, match="no such file"):
        connect(api.url, token, ca=tmp_path / "none.pem")


def test_a_report_stays_in_its_folder(fake, token_file):
    with pytest.raises(InputError, match="not the name of a search"):
        connect(fake.url, token_file).report_path("../../evil")


# --- light ---


def test_a_client_needs_nothing_of_the_service():
    code = "import sys; import hpo_pilot.operations.client, hpo_pilot.operations.remote; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    names = {name.split(".")[0] for name in loaded.split()}
    assert "requests" in names
    assert not names & {"sqlalchemy", "starlette", "fastapi", "yaml", "pydantic", "numpy", "cryptography", "jwt"}
