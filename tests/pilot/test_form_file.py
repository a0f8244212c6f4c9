from __future__ import annotations

import io

import requests

from hpo_pilot.pilot.client import FormFile


def test_a_form_with_one_file():
    form = FormFile("5_1", io.BytesIO(b"content" * 1_000_000))  # several blocks
    for _ in range(2):  # a call may be repeated
        body = b"".join(form)
        assert len(body) == len(form)
        boundary = form.content_type.rpartition("=")[2].encode()
        head, _, rest = body.partition(b"\r\n\r\n")
        assert head.startswith(b"--" + boundary + b'\r\nContent-Disposition: form-data; name="file"; filename="5_1"')
        assert rest == b"content" * 1_000_000 + b"\r\n--" + boundary + b"--\r\n"
    prepared = requests.Request("POST", "http://127.0.0.1/", data=form).prepare()
    assert prepared.headers["Content-Length"] == str(len(form))
    assert "Transfer-Encoding" not in prepared.headers
