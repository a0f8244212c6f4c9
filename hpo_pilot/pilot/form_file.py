"""A file as the only field of a form, read while it is sent: requests itself would hold it in memory."""

from __future__ import annotations

import os
import secrets
from typing import BinaryIO


class FormFile:
    """The body of a multipart form; what `requests` needs to send it: a length, and reading."""

    def __init__(self, name: str, content: BinaryIO) -> None:
        """Prepares.

        Args:
            name: the file's, without quotes or line ends.
            content: from its beginning to its end.
        """
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        self._head = f"{head}Content-Type: application/octet-stream\r\n\r\n".encode()
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._content = content
        content.seek(0)
        self._length = len(self._head) + content.seek(0, os.SEEK_END) + len(self._tail)
        content.seek(0)
        self._before, self._after = self._head, self._tail

    def __len__(self) -> int:
        return self._length

    def read(self, size: int = -1) -> bytes:
        """The next bytes; none at the end."""
        wanted = self._length if size < 0 else size
        found, self._before = self._before[:wanted], self._before[wanted:]
        if len(found) < wanted:
            found += self._content.read(wanted - len(found))
        if len(found) < wanted:
            more = wanted - len(found)
            found, self._after = found + self._after[:more], self._after[more:]
        return found
