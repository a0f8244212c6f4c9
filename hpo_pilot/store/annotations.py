"""Notes and tags that users write on searches and trials.

Each field of `Annotation` is a column of the table `notes`, with the same name. Code that reads or writes the table
takes the columns from the class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypedDict, Unpack

from sqlalchemy import Engine, Row, select

from hpo_pilot.databases import among
from hpo_pilot.errors import InputError
from hpo_pilot.store.database import reading
from hpo_pilot.store.tables import notes

#: Limits of notes and tags, in characters, and of the number of tags.
_NOTE, _TAG, _TAGS = 2000, 40, 20


class AnnotationChange(TypedDict, total=False):
    """New values of fields of an `Annotation`; None: unchanged."""

    note: str | None
    tags: Sequence[str] | None


@dataclass(frozen=True)
class Annotation:
    """Note and tags of a search or trial."""

    note: str = ""
    tags: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is written."""
        return self != Annotation()

    def contains(self, text: str) -> bool:
        """Returns whether the text is a part of the note or of a tag, in any case."""
        return any(text.casefold() in written.casefold() for written in (self.note, *self.tags))

    def has_tag(self, tag: str) -> bool:
        """Returns whether the tag is one of the tags, in any case."""
        return tag.casefold() in [each.casefold() for each in self.tags]

    def changed(self, **written: Unpack[AnnotationChange]) -> Annotation:
        """Returns the annotation with new values.

        Raises:
            InputError: a value is too long, or has characters that cannot be shown.
        """
        return replace(self, **{name: _CHECKS[name](value) for name, value in written.items() if value is not None})

    def difference(self, before: Annotation) -> str:
        """Describes the change from another annotation, for the log."""
        then = before.to_dict()
        changed = {name: value for name, value in self.to_dict().items() if value != then[name]}
        return "; ".join(f"{key}: {(', '.join(v) if key == 'tags' else v) or 'none'}" for key, v in changed.items())

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


_FIELDS = tuple(field.name for field in fields(Annotation))


def annotation_record(row: Row[Any]) -> Annotation:
    """Returns the annotation in a row of `notes`; its columns are null where nothing was written."""
    found: dict[str, Any] = {name: getattr(row, name) for name in _FIELDS if getattr(row, name) is not None}
    return Annotation(**found | {name: tuple(value) for name, value in found.items() if isinstance(value, list)})


def search_annotations(engine: Engine, numbers: Collection[int]) -> dict[int, Annotation]:
    """Returns the annotation of each of these searches that has one, without those of its trials."""
    with reading(engine) as connection:
        query = select(notes).where(among(notes.c.search_id, numbers), notes.c.trial == 0)
        return {row.search_id: annotation_record(row) for row in connection.execute(query)}


def trial_annotations(engine: Engine, search_id: int, numbers: Collection[int] | None = None) -> dict[int, Annotation]:
    """Returns the annotations of trials by number; `numbers`: of these trials; None: of all of the search."""
    query = select(notes).where(notes.c.search_id == search_id, notes.c.trial > 0)
    if numbers is not None:
        query = query.where(among(notes.c.trial, numbers))
    with reading(engine) as connection:
        return {row.trial: annotation_record(row) for row in connection.execute(query)}


def _checked_note(note: str) -> str:
    note = note.replace("\r\n", "\n").strip()
    if len(note) > _NOTE or not all(line.isprintable() for line in note.split("\n")):
        raise InputError(f"note: at most {_NOTE} printable characters")
    return note


def _checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    wrong = [tag for tag in tags if len(tag) > _TAG or "," in tag or not tag.isprintable()]
    if wrong or len(tags) > _TAGS:
        what = f"{wrong[0][:_NOTE]!r} is no tag" if wrong else f"these are {len(tags)}"
        raise InputError(f"tags: {what}; at most {_TAGS}, each of at most {_TAG} printable characters without commas")
    return tags


_CHECKS: Mapping[str, Callable[[Any], Any]] = {"note": _checked_note, "tags": _checked_tags}
