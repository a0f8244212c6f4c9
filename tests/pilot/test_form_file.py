from __future__ import annotations

import io

import pytest
import requests

from hpo_pilot.pilot.client import FormFile


@pytest.mark.parametrize("size", [-1, 1, 7, 1 << 20])
def test_it_reads_like_one_file(size: int) -> None:
    form = FormFile("5_1", io.BytesIO(b"content" * 10))
    pieces = []
    while piece := form.read(size):
        pieces.append(piece)
    body = b"".join(pieces)
    assert len(body) == len(form)
    boundary = form.content_type.rpartition("=")[2].encode()
    head, _, rest = body.partition(b"\r\n\r\n")
    assert head.startswith(b"--" + boundary + b'\r\nContent-Disposition: form-data; name="file"; filename="5_1"')
    assert rest == b"content" * 10 + b"\r\n--" + boundary + b"--\r\n"


def test_requests_says_how_long_it_is() -> None:
    form = FormFile("5_1", io.BytesIO(b"x" * 100))
    prepared = requests.Request("POST", "http://127.0.0.1/", data=form).prepare()
    assert prepared.headers["Content-Length"] == str(len(form))
    assert "Transfer-Encoding" not in prepared.headers
