"""Sandboxes in a server's file cache."""

from __future__ import annotations

import contextlib
import gzip

import pytest

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.panda.client_process import MissingCallError
from hpo_pilot.panda.manager import SandboxUploads


class Server:
    """What a server has of one user's files, as panda-client tells it, and what was asked.

    It writes a file, then registers it under its name, and never overwrites a file, as panda-server 1.0.4.
    """

    def __init__(self, *there):
        self.asked = []
        self.files = set(there)
        self.registered = dict.fromkeys(there)
        self.trouble = ""  # with the registration
        self.refuses = ""
        self.knows = True

    def one_process(self):
        return contextlib.nullcontext()

    def call(self, name, *arguments, deadline=60.0):
        self.asked.append(name)
        return getattr(self, f"_{name}")(*arguments)

    def _registeredFile(self, _path):
        if not self.knows:
            raise MissingCallError("the server has no such call")
        return next(iter(self.registered), "")

    def _touchFile(self, name, _use_cache_server):
        if not self.knows:
            raise MissingCallError("the server has no such call")
        return name in self.files

    def _putFile(self, _path, name, _use_cache_server):
        if self.refuses or name in self.files:
            return [0, self.refuses or "ERROR: cannot overwrite file"]
        self.files.add(name)
        trouble = self.trouble or ("WARNING: file exist" if name in self.registered else "")
        if trouble:
            return [0, f"ERROR : failed to register sandbox to DB with {trouble}"]
        self.registered[name] = None
        return [0, "True"]

    def _sourceURL(self, _use_cache_server):
        return "https://cache:25443"


@pytest.fixture
def sandbox(tmp_path):
    path = tmp_path / "sources.abc.tar.gz"
    path.write_bytes(gzip.compress(b"x"))
    return path


def cache_at(server, now=lambda: 0.0):
    return SandboxUploads(server, use_cache_server=False, clock=now)


def test_a_file_that_is_there_is_touched_twice_a_day(sandbox):
    server, now = Server(sandbox.name), [0.0]
    cache = cache_at(server, lambda: now[0])
    for hours in (0, 1, 11, 13, 14):
        now[0] = hours * 3600.0
        kept = cache.keep(sandbox)
        assert (kept.source, kept.name) == ("https://cache:25443", sandbox.name)
    assert server.asked.count("touchFile") == 2
    assert "putFile" not in server.asked


@pytest.mark.parametrize(("there", "registered"), [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("knows", [True, False])
def test_a_file_is_in_the_cache_under_its_plain_name(sandbox, knows, there, registered):
    """New, there already, or forgotten by the cache while the database still has its name; also on an old server."""
    server = Server(*[sandbox.name] * registered)
    server.knows = knows
    if not there:
        server.files.clear()
    assert cache_at(server).keep(sandbox).name == sandbox.name
    assert server.files == {sandbox.name}


@pytest.mark.parametrize("restarted", [True, False])
def test_a_file_that_could_not_be_registered_is_sent_again(sandbox, restarted):
    """The file is there, can be touched and not be overwritten: only under another name is it ever registered."""
    server = Server()
    server.trouble = "ERROR: DB failure"
    cache = cache_at(server)
    with pytest.raises(TryAgainError, match="failed to register"):
        cache.keep(sandbox)
    server.trouble = ""
    cache = cache_at(server) if restarted else cache
    name = cache.keep(sandbox).name
    assert name in server.registered
    assert name in server.files
    assert cache_at(server).keep(sandbox).name == name, "and later it is found there"
    assert len(server.files) == 2


def test_failing_registrations_do_not_fill_the_cache(sandbox):
    server = Server()
    server.trouble = "ERROR: DB failure"
    cache = cache_at(server)
    for _ in range(30):
        with pytest.raises(TryAgainError):
            cache.keep(sandbox)
    assert len(server.files) <= 10


def test_a_file_that_was_registered_by_its_path_goes_up_once_more(sandbox):
    server = Server()
    server.files.add(sandbox.name)
    for registered in ({}, {str(sandbox): None}):  # another user sent it; this user did, by a path
        server.registered = registered
        name = cache_at(server).keep(sandbox).name
        assert "/" not in name and name != sandbox.name
        assert name in server.registered
    assert cache_at(server).keep(sandbox, again=True).name in server.registered


def test_a_server_that_takes_none_now_is_asked_again(sandbox):
    server = Server()
    server.refuses = "disk is full"
    with pytest.raises(TryAgainError, match="disk is full"):
        cache_at(server).keep(sandbox)


def test_a_file_that_is_missing_here_is_used_from_the_cache(sandbox):
    sandbox.unlink()
    assert cache_at(Server(sandbox.name)).keep(sandbox).name == sandbox.name


def test_a_file_that_is_missing_everywhere_ends_the_search(sandbox):
    sandbox.unlink()
    with pytest.raises(GiveUpError, match="--new-payload"):
        cache_at(Server()).keep(sandbox)


def test_a_sandbox_of_several_searches_is_sent_once_and_none_waits_for_it(sandbox):
    class Slow(Server):
        def _putFile(self, *arguments):
            with pytest.raises(TryAgainError, match="is being sent"):
                cache.keep(sandbox)
            return super()._putFile(*arguments)

    server = Slow()
    cache = SandboxUploads(server, use_cache_server=False)
    assert cache.keep(sandbox) == cache.keep(sandbox)
    assert server.asked.count("putFile") == 1
