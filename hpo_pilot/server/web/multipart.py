"""Receiving a file that comes as multipart/form-data, straight into its place.

panda-client sends sandboxes so, up to 768 MB: they are neither kept in memory nor written twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hpo_pilot.server.data.file_store import FileRefused, Upload

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_HEADER_LIMIT = 16 * 1024


class _File:
    """Collects the parser's events for the part named ``file``."""

    def __init__(self, upload: Upload, limit: Callable[[str], int]) -> None:
        self.name: str | None = None
        self.complete = False
        self._upload = upload
        self._limit_of = limit
        self._limit = 0
        self._field = b""
        self._value = b""
        self._disposition = b""
        self._wanted = False

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
        }

    def _part_begin(self) -> None:
        self._field = self._value = self._disposition = b""
        self._wanted = False

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]
        self._check(self._field)

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check(self._value)

    def _check(self, header: bytes) -> None:
        if len(header) > _HEADER_LIMIT:
            raise FileRefused("a part's header is too long")

    def _header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if options.get(b"name") != b"file" or b"filename" not in options or self.name is not None:
            return
        self.name = options[b"filename"].decode("utf-8", "replace")
        self._limit = self._limit_of(self.name)
        self._wanted = True

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._wanted:
            self._upload.write(data[start:end], self._limit)

    def _part_end(self) -> None:
        self.complete = self.complete or self._wanted


async def receive_form_file(
    content_type: str, chunks: AsyncIterator[bytes], upload: Upload, limit: Callable[[str], int]
) -> str:
    """Writes the form's ``file`` into `upload`.

    Args:
        content_type: of the request.
        chunks: its body.
        upload: where to write.
        limit: bytes that a file of a given name may have; may refuse the name.

    Returns:
        The file's name as it was sent, with its folders; the caller decides whether it is safe.

    Raises:
        FileRefused: the form is malformed or has no such file, or the file is too large.
    """
    kind, options = parse_options_header(content_type.encode("latin-1", "replace"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise FileRefused("Argument error: missing a required argument: 'file'")
    file = _File(upload, limit)
    try:
        parser = MultipartParser(boundary, file.callbacks())
        async for chunk in chunks:
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise FileRefused(f"malformed upload: {error}") from error
    if file.name is None or not file.complete:
        raise FileRefused("Argument error: missing a required argument: 'file'")
    return file.name
