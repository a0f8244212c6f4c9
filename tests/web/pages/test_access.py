"""Who may look, how they sign in and out, and which forms are taken."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import math
import re
import stat
import time
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa

from hpo_pilot.server.issuers import Issuers
from hpo_pilot.server.tokens import Authority, Caller, Role, write_private
from hpo_pilot.web.sessions import CODE_SECONDS, Codes, Login, Sessions
from tests.bearer import make_token_folder, token
from tests.operations.conftest import http_service
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


def test_clients_find_the_issuer_at_which_to_sign_in(pages, tmp_path, monkeypatch):
    nobody = pages.browser(None)
    assert nobody.get("/login/issuer.json").status_code == 404
    settings = {"audience": "panda", "roles": {"atlas": "user"}, "keys": "https://iam.example.org/jwk"}
    issuers = {
        f"https://{vo}.example.org/": {**settings, "vo": vo, "client": {"client_id": vo}} for vo in ("cms", "atlas")
    }
    (tmp_path / "issuers.json").write_text(json.dumps(issuers))
    monkeypatch.setattr(pages.monitor._parts.gate, "others", Issuers(tmp_path / "issuers.json"))
    for query, vo in (("", "cms"), ("?vo=atlas", "atlas")):
        found = nobody.get(f"/login/issuer.json{query}").json()
        assert found == {"vo": vo, "audience": "panda", "client_id": vo}
    assert nobody.get("/login/issuer.json?vo=other").status_code == 404


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

    under_tls = browser.post("https://testserver/login", data={"token": token("alice", Role.USER)})
    assert "; secure" in under_tls.headers["set-cookie"].lower()


@pytest.mark.parametrize("given", ["", "nonsense", "a.b.c", "x" * 20_000, token("p", Role.PILOT)])
def test_what_is_no_users_token_is_refused_on_the_page(pages, given):
    nobody = pages.browser(None)
    answer = nobody.post("/login", data={"token": given})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert 'role="alert"' in answer.text
    headers = {"Authorization": f"Bearer {given}"}
    status = 403 if given == token("p", Role.PILOT) else 401
    assert nobody.post("/login/link", headers=headers).status_code == status
    assert nobody.get("/", headers={**headers, "accept": "text/event-stream"}).status_code == status


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


@pytest.fixture
def link(pages):
    """Makes a link that signs somebody in, once."""

    def made(name: str = "alice") -> str:
        headers = {"Authorization": f"Bearer {token(name, Role.USER)}"}
        answer = pages.browser(None).post("/login/link", headers=headers)
        assert answer.status_code == 200
        return answer.json()["path"]

    return made


def test_a_link_signs_in_once(pages, link):
    path = link()
    assert pages.browser(None).head(path).status_code == 200  # whoever only looks at it uses nothing up
    first, second = pages.browser(None), pages.browser(None)
    assert first.get(path).status_code == 200
    assert first.get("/").status_code == 200
    again = second.get(path)
    assert again.status_code == 403
    assert "used already" in again.text
    assert second.get("/").status_code == 303
    assert pages.browser("alice").post("/login/link").status_code == 401  # the cookie alone must not outlive itself


def test_codes_end_after_ten_minutes_and_are_few():
    now = [0.0]
    codes, login = Codes(lambda: now[0]), login_of(1e12)
    old = codes.make(login)
    now[0] += CODE_SECONDS
    assert codes.take(old) is None
    made = [codes.make(login) for _ in range(25)]
    assert codes.take(made[0]) is None  # the oldest give way
    assert codes.take(made[-1]) == login
    assert codes.take(made[-1]) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_a_link_on_another_site_asks_before_it_signs_in_as_its_owner(pages, link, site):
    """Else whoever lures somebody to a link of their own sees what that somebody then types."""
    path = link("mallory") + "&next=%2Fjobs"
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
def test_a_link_that_was_typed_or_clicked_in_a_terminal_signs_in_at_once(pages, link, site):
    browser = pages.browser(None)
    del browser.headers["sec-fetch-site"]
    browser.get(link(), headers={"sec-fetch-site": site} if site else {})
    assert 'id="user">alice' in browser.get("/").text


# --- issuers ---


class Issuer:
    """An issuer whose only user signs in at once; it checks what RFC 6749 and RFC 7636 want checked."""

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def __init__(self):
        self.url, self.codes, self.claims, self.signs = "", {}, {}, self.key

    def answer(self, _method, path, _headers, body):
        parts, form = urlsplit(path), dict(parse_qsl(body.decode()))
        if parts.path == "/known":
            found = {f"{name}_endpoint": f"{self.url}/{name}" for name in ("authorization", "token")}
            return 200, {}, json.dumps(found).encode()
        if parts.path == "/authorization":
            asked = dict(parse_qsl(parts.query))
            assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
            self.codes[code := f"code{len(self.codes)}"] = asked
            back = urlencode({"code": code, "state": asked["state"]})
            return 302, {"Location": f"{asked['redirect_uri']}?{back}"}, b""
        asked = self.codes.pop(form["code"], {"code_challenge": ""})
        digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().strip("=")
        if digest != asked["code_challenge"] or any(
            form[name] != asked[name] for name in ("client_id", "redirect_uri")
        ):
            return 400, {}, json.dumps({"error": "invalid_grant", "error_description": "<b>wrong code"}).encode()
        now = int(time.time())
        claims = {"iss": self.url, "sub": "1", "preferred_username": "jane", "aud": asked["audience"], "iat": now}
        claims |= {"exp": now + 600, "nonce": asked["nonce"], "groups": ["/atlas"]} | self.claims
        return 200, {}, json.dumps({"id_token": jwt.encode(claims, self.signs, "RS256", {"kid": "k"})}).encode()


@pytest.fixture
def issuer(pages, tmp_path, monkeypatch):
    """An issuer that the pages trust."""
    made = Issuer()
    public = jwt.algorithms.RSAAlgorithm.to_jwk(made.key.public_key(), as_dict=True) | {"kid": "k"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [public]}))
    with http_service(made.answer) as made.url:
        client = {"client_id": "hpo", "oidc_config_url": f"{made.url}/known"}
        settings = {"keys": "keys.json", "audience": "panda", "vo": "atlas", "client": client}
        settings |= {
            "roles": {"atlas/pilot": "pilot", "atlas": "user"},
            "redirect_uri": "https://testserver/login/return",
        }
        (tmp_path / "issuers.json").write_text(json.dumps({made.url: settings}))
        monkeypatch.setattr(pages.monitor._parts.gate, "others", Issuers(tmp_path / "issuers.json"))
        yield made


def begun(browser, wanted="/jobs"):
    """Clicks the issuer's link; returns the answer, and where the issuer sends the browser."""
    found = re.search(r'href="(https://testserver/login/issuer[^"]*)"', browser.get(f"/login?next={wanted}").text)
    answer = browser.get(html.unescape(found[1]))
    assert answer.status_code == 303
    return answer, requests.get(answer.headers["location"], allow_redirects=False, timeout=600).headers["location"]


def test_an_issuer_signs_a_browser_in(pages, issuer):
    browser = pages.browser(None)
    first, back = begun(browser)
    assert first.headers["location"].startswith(f"{issuer.url}/authorization?")
    cookie = first.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("; httponly", "; secure", "; samesite=lax", "; path=/login/return"))
    answer = browser.get(back, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 200 and "url=/jobs" in answer.text
    assert (
        "; secure" in answer.headers["set-cookie"].lower() and "samesite=strict" in answer.headers["set-cookie"].lower()
    )
    assert 'id="user">jane' in browser.get("https://testserver/").text
    assert browser.get(back).status_code == 403  # once
    assert 'content="0;url=/"' in browser.get(begun(browser, "//evil.example")[1]).text


@pytest.mark.parametrize(
    ("claims", "changes"),
    [
        ({}, {"state": "other"}),
        ({}, {"code": "code9"}),
        ({}, {"code": None, "error": "access_denied", "error_description": "<b>no"}),
        ({"nonce": "other"}, {}),
        ({"iss": "https://other.example.org/"}, {}),
        ({"aud": "other"}, {}),
        ({"exp": 1}, {}),
        ({"groups": ["/cms"]}, {}),
        ({"groups": ["/atlas/pilot"]}, {}),
        ({"signed": "by another"}, {}),
    ],
)
def test_a_wrong_return_from_an_issuer_signs_nobody_in(pages, issuer, claims, changes):
    issuer.claims = claims
    if "signed" in claims:
        issuer.signs = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    browser = pages.browser(None)
    address, _, query = begun(browser)[1].partition("?")
    given = {name: value for name, value in (dict(parse_qsl(query)) | changes).items() if value is not None}
    answer = browser.get(f"{address}?{urlencode(given)}")
    assert answer.status_code == 403 and 'role="alert"' in answer.text and "<b>" not in answer.text
    assert "set-cookie" not in answer.headers
    assert browser.get("https://testserver/").status_code == 303


def test_a_return_belongs_to_the_browser_that_began(pages, issuer, monkeypatch):
    """Else a link signs its reader in as its author, or a stolen code signs a thief in."""
    victim, mallory = pages.browser(None), pages.browser(None)
    (_, back), (_, other) = begun(victim), begun(mallory)
    assert pages.browser(None).get(back).status_code == mallory.get(back).status_code == 403
    stolen = dict(parse_qsl(urlsplit(back).query)) | {"state": dict(parse_qsl(urlsplit(other).query))["state"]}
    assert "wrong code" in mallory.get(f"https://testserver/login/return?{urlencode(stolen)}").text
    _, back = begun(victim)
    monkeypatch.setattr(pages.sessions, "_clock", lambda: time.time() + CODE_SECONDS)
    assert victim.get(back).status_code == 403
    assert pages.sessions.of_cookie(pages.sessions.sealed({"state": "x"})) is None
    assert pages.sessions.unsealed(pages.sessions.begin(login_of())[0]) == {}


# --- sessions ---


def login_of(ends: float = math.inf, role: Role = Role.USER) -> Login:
    return Login(Caller("alice", role), ends, "t")


@pytest.fixture
def folder(tmp_path):
    return make_token_folder(tmp_path / "tokens")


def test_without_tls_a_session_ends_with_its_run_of_the_pages(folder):
    """Somebody else may take the port in between, and is then given the cookie."""
    first = Sessions(folder, run="first")
    cookie, _ = first.begin(login_of())
    assert first.of_cookie(cookie) is not None
    assert Sessions(folder, run="first").of_cookie(cookie) is not None  # the same run, its process started again
    for later in ("second", ""):
        assert Sessions(folder, run=later).of_cookie(cookie) is None
        assert Sessions(folder, run=later).cookie != first.cookie
    under_tls, _ = Sessions(folder, run="").begin(login_of())
    assert Sessions(folder, run="").of_cookie(under_tls) is not None
    assert first.of_cookie(under_tls) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.unlink(),
        lambda file: file.write_text("{"),
        lambda file: write_private(file, json.dumps({"key": "ab" * 32, "ended": {}})),
    ],
    ids=["removed", "spoilt", "another key"],
)
def test_removing_or_spoiling_the_key_ends_every_session(folder, spoil):
    sessions, other = (Sessions(folder, run="one") for _ in range(2))
    cookie, _ = sessions.begin(login_of())
    assert other.of_cookie(cookie) is not None
    spoil(folder / "monitor.json")
    assert sessions.of_cookie(cookie) is None
    assert other.of_cookie(cookie) is None
    again, _ = sessions.begin(login_of())
    assert sessions.of_cookie(again) is not None
    assert other.of_cookie(again) is not None
    assert stat.S_IMODE((folder / "monitor.json").stat().st_mode) == 0o600


def test_a_session_ends_with_its_token_and_after_half_a_day(folder):
    now = [time.time()]
    sessions = Sessions(folder, run="one", clock=lambda: now[0])
    cookie, ends = sessions.begin(login_of(now[0] + 60))
    assert ends == now[0] + 60
    assert sessions.of_cookie(cookie).caller == Caller("alice", Role.USER)
    assert sessions.begin(login_of(now[0] + 1e7))[1] == now[0] + 12 * 3600
    now[0] += 61
    assert sessions.of_cookie(cookie) is None


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


def test_the_key_is_for_its_owner_alone_and_cookies_of_others_are_worth_nothing(folder, tmp_path):
    here, there = Sessions(folder, run="one"), Sessions(make_token_folder(tmp_path / "other"), run="one")
    assert stat.S_IMODE((folder / "monitor.json").stat().st_mode) == 0o600
    cookie, _ = here.begin(login_of(role=Role.OPERATOR))
    assert there.of_cookie(cookie) is None
    assert here.cookie != there.cookie
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
    form = {"form": form_token(browser.get(f"/searches/{name}").text)}
    del browser.headers["sec-fetch-site"]
    assert browser.post(f"/searches/{name}/pause", data=form, headers=headers).status_code == 403
    assert pages.store.search(name).state == "submitted"
    good = browser.post(f"/searches/{name}/pause", data=form, headers={"origin": "http://testserver"})
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
    assert alice.post("/searches/x/add", data={"p.x": "1" * 260_000}).status_code == 413
    assert alice.put("/searches/x").status_code == 405
    assert alice.delete("/searches/x").status_code == 405

    def endless():
        for _ in range(300):
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
