from __future__ import annotations

import random
import threading
import time

from hpo_pilot.pilot.staging import NodeCopies, Pair
from tests.pilot.conftest import in_background


def never() -> bool:
    return False


def test_each_pair_is_in_one_hand():
    book = NodeCopies()
    a, b = ("n1", "k"), ("n2", "k")
    assert book.take([a, b]) == {a, b} and book.take([a, b]) == set()
    book.settle([a, b], {a: "/x", b: "/x"})
    assert book.take([a, b]) == set()
    assert book.paths(["n1", "n2"], "k") == {"/x"} and book.nodes() == {"n1", "n2"}


def test_all_nodes_must_have_it():
    book = NodeCopies()
    a, b = ("n1", "k"), ("n2", "k")
    book.take([a, b])
    book.settle([a, b], {a: "/x"})
    assert book.paths(["n1"], "k") == {"/x"} and book.paths(["n1", "n2"], "k") == set()
    book.take([b])
    book.settle([b], {b: "/y"})
    assert book.paths(["n1", "n2"], "k") == {"/x", "/y"}, "a scratch whose path differs"


def test_what_failed_is_tried_twice_and_what_is_hopeless_once():
    book = NodeCopies()
    lost, full = ("n1", "k"), ("n2", "k")
    assert book.take([lost, full]) == {lost, full}
    book.settle([lost, full], {}, hopeless=[full])
    assert book.take([lost, full]) == {lost}
    book.settle([lost], {})
    assert book.take([lost, full]) == set()


def test_others_wait_for_whoever_copies():
    """Many jobs with overlapping wants: each pair is copied once, and nobody waits for ever."""
    book, chance = NodeCopies(), random.Random(3)
    copied: list[Pair] = []
    lock, late = threading.Lock(), []

    def job(pairs: list[Pair], seconds: float) -> None:
        mine = book.take(pairs)
        time.sleep(seconds)
        with lock:
            copied.extend(mine)
        book.settle(mine, dict.fromkeys(mine, "/x"))
        book.wait(pairs, never)
        late.extend(pair for pair in pairs if book.paths([pair[0]], pair[1]) != {"/x"})

    wants = [[(f"n{chance.randrange(4)}", f"k{chance.randrange(4)}") for _ in range(5)] for _ in range(30)]
    for one in [in_background(job, pairs, chance.random() / 50) for pairs in wants]:
        one.result(60)
    assert not late
    assert sorted(copied) == sorted({pair for pairs in wants for pair in pairs})
