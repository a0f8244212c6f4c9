"""Opening a database, and how its URL is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from hpo_pilot.errors import InputError
from hpo_pilot.store import SteeringStore, Store
from hpo_pilot.store.database import url_without_password


def test_a_sqlite_path_is_shown_as_it_is_on_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "Für Ada" / "100%"
    store = Store.open(f"sqlite:///{folder}/scan.db")
    try:
        assert url_without_password(store.engine.url) == f"sqlite:///{folder}/scan.db"
        with pytest.raises(InputError, match=r"Für Ada/100%/scan\.db"):
            store.search("nope")
    finally:
        store.close()


def test_others_are_shown_without_their_password() -> None:
    url = "postgresql+psycopg://ada:s3cret@db.example.org:5432/scans"
    for given in (url, make_url(url)):
        assert "s3cret" not in url_without_password(given)
        assert "ada" in url_without_password(given)
        assert "db.example.org:5432/scans" in url_without_password(given)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql+nosuchdriver://ada:s3cret@db/scans", "nosuchdriver"),
        ("nosuch://ada:s3cret@db/scans", "nosuch"),
        ("//ada:s3cret@db/scans", "not a database URL"),
        ("no url", "not a database URL"),
        ("postgresql+psycopg://ada:s3cret@db:port/scans", "not a database URL"),
    ],
)
def test_a_url_that_cannot_be_opened_is_told_without_its_password(url: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        Store.open(url)
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_missing_driver_is_named_with_the_one_that_we_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(InputError, match=r"driver psycopg2 is not installed.*postgresql\+psycopg://"):
        Store.open("postgresql+psycopg2://ada:s3cret@db/scans")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, but long enough to look at" * 20)
    with pytest.raises(InputError, match="not a database"):
        Store.open(f"sqlite:///{path}")


@pytest.mark.parametrize(("kind", "level"), [(Store, 2), (SteeringStore, 1)])
def test_what_a_command_has_told_is_on_the_disk_and_results_can_be_collected_again(kind, level, tmp_path):
    store = kind.open(f"sqlite:///{tmp_path}/scan.db")
    try:
        with store.engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == level
    finally:
        store.close()
