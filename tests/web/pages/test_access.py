"""Who may look, how they sign in and out, and which forms are taken."""

from __future__ import annotations

import asyncio
import json
import re
import stat
import time

import pytest

from hpo_pilot.server.tokens import Authority, Caller, Role, write_private
from hpo_pilot.web.sessions import CODE_SECONDS, Codes, Login, Sessions
from tests.bearer import make_token_folder, token
from tests.web.pages.conftest import form_token


def test_nobody_sees_a_page_without_signing_in(pages):
    pages.submit("secret")
    nobody = pages.browser(None)
    for path in ("/", "/searches/secret", "/searches/secret/trials", "/jobs", "/pilots", "/help", "/nonsense"):
        answer = nobody.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/login")
        assert "secret" not in answer.text
    for path in ("/live", "/jobs/live", "/pilots/live", "/searches/secret/live", "/searches/secret/figures/slices"):
        assert nobody.get(path, headers={"accept": "text/event-stream"}).status_code == 401
    assert nobody.post("/searches/secret/stop").status_code == 401
    assert nobody.get("/login").status_code == 200


def test_a_pasted_token_signs_in_and_is_nowhere_in_the_cookie(pages):
    browser = pages.browser(None)
    answer = browser.post("/login", data={"token": f"  {token('alice', Role.USER)}\n", "next": "/jobs"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "max-age=" in cookie
    assert "secure" not in cookie  # plain HTTP on this machine
    assert token("alice", Role.USER).split(".")[1].lower() not in cookie
    assert "alice" in browser.get("/").text


def test_under_tls_the_cookie_is_for_tls_alone(pages):
    browser = pages.browser(None)
    answer = browser.post("https://testserver/login", data={"token": token("alice", Role.USER)})
    assert "; secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("given", ["", "nonsense", "a.b.c", "x" * 20_000])
def test_what_is_no_token_is_refused_on_the_page(pages, given):
    answer = pages.browser(None).post("/login", data={"token": given})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert 'role="alert"' in answer.text


def test_a_pilots_token_opens_no_page(pages):
    answer = pages.browser(None).post("/login", data={"token": token("p", Role.PILOT)})
    assert answer.status_code == 403
    headers = {"Authorization": f"Bearer {token('p', Role.PILOT)}"}
    assert pages.browser(None).get("/", headers=headers).status_code == 403
    assert pages.browser(None).post("/login/link", headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("wanted", "target"),
    [
        ("/jobs?search=a", "/jobs?search=a"),
        ("//evil.example", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/x\r\nSet-Cookie: a=b", "/"),
        ("//[", "/"),
    ],
)
def test_signing_in_leads_to_our_own_pages_alone(pages, wanted, target):
    answer = pages.browser(None).post("/login", data={"token": token("alice", Role.USER), "next": wanted})
    assert answer.headers["location"] == target


# --- links ---


def test_a_link_signs_in_once(pages):
    headers = {"Authorization": f"Bearer {token('alice', Role.USER)}"}
    answer = pages.browser(None).post("/login/link", headers=headers)
    assert answer.status_code == 200
    path = answer.json()["path"]
    assert pages.browser(None).head(path).status_code == 200  # whoever only looks at it uses nothing up
    first, second = pages.browser(None), pages.browser(None)
    assert first.get(path).status_code == 200
    assert first.get("/").status_code == 200
    again = second.get(path)
    assert again.status_code == 403
    assert "used already" in again.text
    assert second.get("/").status_code == 303


def test_only_a_token_makes_a_link(pages):
    signed_in = pages.browser("alice")
    assert signed_in.post("/login/link").status_code == 401  # the cookie alone must not outlive itself
    assert pages.browser(None).post("/login/link", headers={"Authorization": "Bearer x"}).status_code == 401


def test_codes_end_after_ten_minutes_and_are_few():
    now = [0.0]
    codes = Codes(lambda: now[0])
    login = Login(Caller("alice", Role.USER), 1e12, "t")
    old = codes.make(login)
    now[0] += CODE_SECONDS
    assert codes.take(old) is None
    made = [codes.make(login) for _ in range(25)]
    assert codes.take(made[0]) is None  # the oldest give way
    assert codes.take(made[-1]) == login
    assert codes.take(made[-1]) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_a_link_on_another_site_asks_before_it_signs_in_as_its_owner(pages, site):
    """Else whoever lures somebody to a link of their own sees what that somebody then types."""
    headers = {"Authorization": f"Bearer {token('mallory', Role.USER)}"}
    path = pages.browser(None).post("/login/link", headers=headers).json()["path"] + "&next=%2Fjobs"
    victim = pages.browser("alice")
    answer = victim.get(path, headers={"sec-fetch-site": site})
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert "Sign in as mallory" in answer.text
    assert 'id="user">alice' in victim.get("/").text
    fields = dict(re.findall(r'<input type="hidden" name="(code|next)" value="([^"]*)">', answer.text))
    assert victim.post("/login", data=fields, headers={"sec-fetch-site": site}).status_code == 403
    signed_in = victim.post("/login", data=fields)
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/jobs")
    assert 'id="user">mallory' in victim.get("/").text
    again = victim.post("/login", data=fields)
    assert (again.status_code, "set-cookie" in again.headers) == (403, False)
    assert victim.get(path, headers={"sec-fetch-site": site}).status_code == 403


@pytest.mark.parametrize("site", ["none", "same-origin", None])
def test_a_link_that_was_typed_or_clicked_in_a_terminal_signs_in_at_once(pages, site):
    headers = {"Authorization": f"Bearer {token('alice', Role.USER)}"}
    path = pages.browser(None).post("/login/link", headers=headers).json()["path"]
    browser = pages.browser(None)
    del browser.headers["sec-fetch-site"]
    browser.get(path, headers={"sec-fetch-site": site} if site else {})
    assert 'id="user">alice' in browser.get("/").text


# --- sessions ---


def test_without_tls_a_session_ends_with_its_run_of_the_pages(tmp_path):
    """Somebody else may take the port in between, and is then given the cookie."""
    folder = make_token_folder(tmp_path / "tokens")
    login = Login(Caller("alice", Role.USER), time.time() + 60, "t")
    first = Sessions(folder, run="first")
    cookie, _ = first.begin(login)
    assert first.of_cookie(cookie) is not None
    assert Sessions(folder, run="first").of_cookie(cookie) is not None  # the same run, its process started again
    for later in ("second", ""):
        assert Sessions(folder, run=later).of_cookie(cookie) is None
        assert Sessions(folder, run=later).cookie != first.cookie
    under_tls, _ = Sessions(folder, run="").begin(login)
    assert Sessions(folder, run="").of_cookie(under_tls) is not None
    assert first.of_cookie(under_tls) is None


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: file.write_text("{"), None])
def test_whoever_removes_or_spoils_the_key_ends_every_session_at_once(tmp_path, spoil):
    folder = make_token_folder(tmp_path / "tokens")
    login = Login(Caller("alice", Role.USER), time.time() + 60, "t")
    sessions, other = (Sessions(folder, run="one") for _ in range(2))
    cookie, _ = sessions.begin(login)
    assert other.of_cookie(cookie) is not None
    file = folder / "monitor.json"
    if spoil is None:
        other_key = {"key": "ab" * 32, "ended": {}}
        write_private(file, json.dumps(other_key))
    else:
        spoil(file)
    assert sessions.of_cookie(cookie) is None
    assert other.of_cookie(cookie) is None
    again, _ = sessions.begin(login)
    assert sessions.of_cookie(again) is not None
    assert other.of_cookie(again) is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_session_ends_with_its_token(tmp_path):
    now = [time.time()]
    folder = make_token_folder(tmp_path / "tokens")
    sessions = Sessions(folder, run="one", clock=lambda: now[0])
    cookie, ends = sessions.begin(Login(Caller("alice", Role.USER), now[0] + 60, "t"))
    assert ends == now[0] + 60
    assert sessions.of_cookie(cookie).caller == Caller("alice", Role.USER)
    now[0] += 61
    assert sessions.of_cookie(cookie) is None


def test_a_session_lasts_half_a_day_at_most(tmp_path):
    now = time.time()
    sessions = Sessions(make_token_folder(tmp_path / "tokens"), run="one", clock=lambda: now)
    assert sessions.begin(Login(Caller("alice", Role.USER), now + 1e7, "t"))[1] == now + 12 * 3600


def test_a_session_ends_when_its_token_is_revoked(pages):
    authority = Authority(pages.root / "tokens")
    text, made = authority.issue("alice", Role.USER, 1)
    browser = pages.browser(None)
    browser.post("/login", data={"token": text})
    assert browser.get("/").status_code == 200
    authority.revoke(made.id)
    assert browser.get("/").status_code == 303


def test_signing_out_ends_the_session_for_every_copy_of_its_cookie(pages):
    browser = pages.browser("alice")
    page = browser.get("/").text
    thief = pages.browser(None)
    thief.cookies.update(dict(browser.cookies))
    assert thief.get("/").status_code == 200
    assert browser.post("/logout", data={"form": form_token(page)}).status_code == 303
    assert thief.get("/").status_code == 303
    # Another process of the same folder, or the same one started again, knows as well.
    again = Sessions(pages.root / "tokens", run="one")
    assert again.of_cookie(next(iter(thief.cookies.values()))) is None


def test_the_key_is_for_its_owner_alone_and_cookies_of_others_are_worth_nothing(tmp_path):
    one, other = (make_token_folder(tmp_path / name) for name in ("one", "other"))
    here, there = Sessions(one, run="one"), Sessions(other, run="one")
    assert stat.S_IMODE((one / "monitor.json").stat().st_mode) == 0o600
    cookie, _ = here.begin(Login(Caller("alice", Role.OPERATOR), time.time() + 60, "t"))
    assert there.of_cookie(cookie) is None
    assert here.cookie != there.cookie
    assert Sessions(one, run="one").of_cookie(cookie) is not None
    for wrong in (cookie[:-2] + "AA", "", "x.y.z", cookie.replace(cookie.split(".")[0], "eyJhbGciOiJub25lIn0")):
        assert here.of_cookie(wrong) is None


# --- forms ---


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "http://testserver:8080"},
        {"origin": "null"},
        {},
    ],
)
def test_forms_of_other_pages_are_refused(pages, headers):
    pages.submit(name := f"form{abs(hash(str(headers))) % 10_000}")
    browser = pages.browser("alice")
    token_of_form = form_token(browser.get(f"/searches/{name}").text)
    del browser.headers["sec-fetch-site"]
    answer = browser.post(f"/searches/{name}/pause", data={"form": token_of_form}, headers=headers)
    assert answer.status_code == 403
    assert pages.store.search(name).state == "submitted"
    good = browser.post(
        f"/searches/{name}/pause", data={"form": token_of_form}, headers={"origin": "http://testserver"}
    )
    assert good.status_code == 303
    assert pages.store.search(name).state == "paused"


def test_a_form_needs_its_sessions_token(pages):
    pages.submit("tokens")
    alice, again = pages.browser("alice"), pages.browser("alice")
    theirs = form_token(again.get("/searches/tokens").text)
    for data in ({}, {"form": ""}, {"form": "x"}, {"form": theirs}):
        assert alice.post("/searches/tokens/pause", data=data).status_code == 403
    assert pages.store.search("tokens").state == "submitted"


def test_large_forms_and_odd_methods_are_refused(pages):
    alice = pages.browser("alice")
    assert alice.post("/searches/x/add", data={"p.x": "1" * 70_000}).status_code == 413
    assert alice.put("/searches/x").status_code == 405
    assert alice.delete("/searches/x").status_code == 405

    def endless():
        for _ in range(100):
            yield b"a" * 1000

    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert alice.post("/searches/x/add", content=endless(), headers=headers).status_code == 413


def test_half_a_form_is_no_defect(pages, caplog):
    """Anybody may send one to /login, and each would be a traceback in the log."""
    headers = [(b"sec-fetch-site", b"same-origin"), (b"content-type", b"application/x-www-form-urlencoded")]
    scope = {"type": "http", "method": "POST", "path": "/login", "query_string": b"", "headers": headers}
    coming = [{"type": "http.request", "body": b"token=", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return coming.pop(0)

    async def send(_message):
        return

    asyncio.run(pages.app(scope, receive, send))
    assert coming == []
    assert caplog.text == ""


def test_every_answer_tells_browsers_what_not_to_do(pages):
    for answer in (pages.browser("alice").get("/"), pages.browser(None).get("/login"), pages.browser(None).get("/")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "<script>" not in answer.text
        assert "onclick" not in answer.text
