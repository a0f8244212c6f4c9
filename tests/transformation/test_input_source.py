"""What an entry of `payload.inputs` means."""

from __future__ import annotations

import pytest

from hpo_pilot.transformation.stage_in import InputKind, parse_source


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("/data/train.h5", InputKind.PATH, "train.h5"),
        ("/data/set/", InputKind.PATH, "set"),
        ("data/train.h5", InputKind.PATH, "train.h5"),
        ("./user.me:odd", InputKind.PATH, "user.me:odd"),
        ("file:///data/train.h5", InputKind.PATH, "train.h5"),
        ("/data/*.h5", InputKind.PATH, None),
        ("http://h/a/b%20c.csv?download=1", InputKind.HTTP, "b c.csv"),
        ("https://h:8443/x.npz", InputKind.HTTP, "x.npz"),
        ("root://eos.example.org//eos/user/x.root", InputKind.ROOT, "x.root"),
        ("user.me:user.me.data.v1", InputKind.RUCIO, None),
        ("data18_13TeV:data18_13TeV.0001.physics/", InputKind.RUCIO, None),
        ("group.phys-x:a/b", InputKind.RUCIO, None),
    ],
)
def test_what_is_understood(text, kind, name):
    source = parse_source(text)
    assert (source.kind, source.name) == (kind, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://bucket/x", "s3:// cannot be fetched: give a path"),
        ("ftp://h/x", "cannot be fetched"),
        ("http://me:secret@h/x", "name or password"),
        ("https://me@h/x", "name or password"),
        ("http://h/", "names no file"),
        ("http://h/..", "names no file"),
        ("http://h/%2e%2e", "names no file"),
        ("http://h/a%2Fb/%00", "names no file"),
        ("http:///x", "is not a URL"),
        ("http://h/x y", "is not a URL"),
        ("http://[bad/x", "is not a URL"),
        ("/", "names no file"),
        ("..", "names no file"),
        ("http://h/-rf", "names no file"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_source(text)
    assert "secret" not in str(caught.value)
