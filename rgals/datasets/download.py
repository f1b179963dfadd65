"""Fetching one file over HTTP: resumed, verified, and in place only when it is whole."""

import hashlib
import json
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rgals.files.atomic import locked
from rgals.runtime.bars import Bar
from rgals.runtime.errors import DownloadError

_CHUNK = 1 << 18
_TIMEOUT = 30.0  # seconds
_PAUSES = (0.0, 1.0, 2.0)  # seconds before every attempt at an address
_AGENT = "Mozilla/5.0 (compatible; rgals data set loader)"
_MAGIC = {".zip": b"PK\x03\x04", ".gz": b"\x1f\x8b"}


class _AttemptError(Exception):
    """One attempt failed; another may succeed."""


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> Any:
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise urllib.error.URLError(f"it redirects from https to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def file_digest(path: Path, kind: str) -> str:
    """Hexadecimal digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, partial(hashlib.new, kind, usedforsecurity=False)).hexdigest()


def _ask(url: str, headers: dict[str, str]) -> Any:
    request = urllib.request.Request(url, headers={"User-Agent": _AGENT, **headers})
    return urllib.request.build_opener(_NoDowngrade).open(request, timeout=_TIMEOUT)


def _attempt(url: str, part: Path, meta: Path, progress: bool, label: str) -> None:
    """Bring ``part`` to its full length or raise."""
    try:
        found = json.loads(meta.read_text())
        tag = found["tag"] if found["url"] == url else ""
    except (OSError, ValueError, LookupError, TypeError):
        tag = ""  # without one, nothing says that the rest would belong to what is there
    done = part.stat().st_size if tag and part.exists() else 0
    headers = {"Range": f"bytes={done}-", "If-Range": tag} if done else {}
    with _ask(url, headers) as answer:
        if answer.status != 206:
            done = 0
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            raise _AttemptError("the server continued at another place than asked for")
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        if tag.startswith("W/"):  # a weak tag does not promise equal bytes
            tag = answer.headers.get("Last-Modified") or ""
        meta.write_text(json.dumps({"url": url, "tag": tag}))
        length = answer.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        bar = {"total": total, "initial": done, "desc": label, "disable": not progress, "leave": False}
        with open(part, "ab" if done else "wb") as file, Bar.wrapattr(file, "write", **bar) as shown:
            shutil.copyfileobj(answer, shown, _CHUNK)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and part.stat().st_size != total:
        raise _AttemptError(f"the connection ended after {part.stat().st_size} of {total} bytes")


def _check(part: Path, target: Path, md5: str | None) -> None:
    """Raise `_AttemptError` if the finished file is not what was asked for; it is removed then."""
    magic = _MAGIC.get(target.suffix, b"")
    with open(part, "rb") as file:
        start = file.read(512)
    page = start.lstrip().lower().startswith((b"<!doctype", b"<html"))
    problem = ""
    if not start:
        problem = "the server sent nothing"
    elif page or not start.startswith(magic):
        problem = f"the server sent {'a web page' if page else 'something else'}, not the file"
    elif md5 is not None and (got := file_digest(part, "md5")) != md5:
        problem = f"the MD5 is {got}, but {md5} is published: the file is damaged or was changed"
    if problem:
        part.unlink()
        raise _AttemptError(problem)


def download(urls: tuple[str, ...], target: Path, *, md5: str | None = None, progress: bool = True) -> None:
    """Fetch a file from the first of ``urls`` that gives it; then it is whole and verified at ``target``."""
    # An interrupted download leaves `target.part`, and the next call continues there if the server allows and
    # says (by ETag or date) that the file is still the same. A `DownloadError` says why, and where to put the
    # file by hand.
    target.parent.mkdir(parents=True, exist_ok=True)
    part, meta = (target.with_name(target.name + suffix) for suffix in (".part", ".part.json"))
    faults = []
    with locked(target.with_name(target.name + ".lock")):
        if target.exists():  # another process was faster
            return
        for url in urls:
            for pause in _PAUSES:
                time.sleep(pause)
                try:
                    _attempt(url, part, meta, progress, target.name)
                    _check(part, target, md5)
                except urllib.error.HTTPError as error:
                    if error.code == 416:  # the rest asked for does not exist: begin anew
                        part.unlink(missing_ok=True)
                        fault = "the server does not continue the unfinished file"
                        continue
                    fault = " ".join(f"HTTP {error.code} {error.reason}".split())
                    if error.code < 500:
                        break
                except urllib.error.URLError as error:
                    fault = str(error.reason)
                    if isinstance(error.reason, ssl.SSLCertVerificationError):
                        break
                except (_AttemptError, TimeoutError, ConnectionError, HTTPException) as error:
                    fault = str(error) or type(error).__name__
                else:
                    os.replace(part, target)
                    meta.unlink(missing_ok=True)
                    return
            faults.append(f"{url}: {fault}")
    advice = f"Without a connection, get the file elsewhere, put it at {target} and call again"
    raise DownloadError(f"{target.name} cannot be fetched ({'; '.join(faults)}). {advice}")


def published_md5(sums_url: str, url: str) -> str | None:
    """MD5 of a file from the list (as md5sum writes it) that its publisher keeps; None without one."""
    name = urlsplit(url).path.rsplit("/", 1)[-1]
    try:
        with _ask(sums_url, {}) as answer:
            text = answer.read(1 << 20).decode("utf-8", "replace")
    except (urllib.error.URLError, TimeoutError, ConnectionError, HTTPException):
        return None
    found = re.search(rf"^([0-9a-f]{{32}})\s+\*?{re.escape(name)}\s*$", text, re.MULTILINE)
    return None if found is None else found[1]
