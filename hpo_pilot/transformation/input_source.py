"""What an entry of a payload's inputs names: a path, a web or root URL, or a Rucio dataset."""

import glob
import os
import re
from enum import Enum
from typing import NamedTuple, Optional
from urllib.parse import unquote, urlsplit

#: scope:name, as Rucio writes its data identifiers.
_DID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,29}:[A-Za-z0-9][A-Za-z0-9._:+/-]{0,249}")
_FILE_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,250}")
_PATH_STARTS = ("/", "./", "../", "~")


class InputKind(Enum):
    """How an input comes to a job."""

    PATH = "path"  #: it is on the worker's file system
    HTTP = "http"  #: by download
    ROOT = "root"  #: with xrdcp
    RUCIO = "rucio"  #: with rucio download


class InputSource(NamedTuple):
    """One entry of a payload's inputs, understood.

    Attributes:
        where: path, URL or data identifier.
        name: of the file in the job's folder; None: nobody knows before it is there, for it may be several.
    """

    kind: InputKind
    where: str
    name: Optional[str]


def parse_source(text: str) -> InputSource:
    """What an entry means.

    Raises:
        ValueError: nothing that could be fetched; the message says what is wrong and what to do.
    """
    scheme, separator, rest = text.partition("://")
    if separator and re.match(r"[A-Za-z][A-Za-z0-9+.-]*$", scheme):
        return _url(text, scheme.lower(), rest)
    if not text.startswith(_PATH_STARTS) and _DID.fullmatch(text.rstrip("/")):
        return InputSource(InputKind.RUCIO, text.rstrip("/"), None)
    return _path(text)


def _url(text: str, scheme: str, rest: str) -> InputSource:
    if scheme == "file":
        return _path("/" + rest.lstrip("/"))
    if scheme not in ("http", "https", "root", "roots", "xroot"):
        raise ValueError(
            "%s:// cannot be fetched: give a path, an http, https or root URL, or a Rucio dataset (scope:name)" % scheme
        )
    try:
        parts = urlsplit(text)
        host, secret = parts.hostname, parts.password
    except ValueError as error:
        raise ValueError("is no URL: %s" % error) from error
    if not host or any(ord(sign) <= 32 or sign == "\x7f" for sign in text):
        raise ValueError("is no URL: it names no server, or has blanks in it")
    if secret is not None or (parts.username is not None and scheme in ("http", "https")):
        raise ValueError(
            "holds a user's name or password: whoever may see the search would; put the file where none is needed"
        )
    name = unquote(parts.path).rstrip("/").rpartition("/")[2]
    _check_name(name)
    return InputSource(InputKind.HTTP if scheme in ("http", "https") else InputKind.ROOT, text, name)


def _path(text: str) -> InputSource:
    if glob.has_magic(text):
        return InputSource(InputKind.PATH, text, None)
    name = os.path.basename(os.path.normpath(text))
    _check_name(name)
    return InputSource(InputKind.PATH, text, name)


def _check_name(name: str) -> None:
    if name in ("", ".", "..") or not _FILE_NAME.match(name) or name.startswith("-"):
        raise ValueError("names no file")
