"""`fetch`: a public data set by name, from the cache or by HTTP; downloads are resumed and verified."""

import hashlib
import json
import os
import re
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rgals.datasets.interactions import Interactions, Rules, build
from rgals.datasets.read import read_interactions
from rgals.datasets.sources import SOURCES, RemoteFile, Source, parse
from rgals.files.atomic import locked
from rgals.runtime.bars import Bar
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import DownloadError, FileFormatError, ParameterError, warn

_CHUNK = 1 << 18  # bytes
_TIMEOUT = 30.0  # seconds
_PAUSES = (0.0, 1.0, 2.0)  # seconds before each attempt at an address
_AGENT = "Mozilla/5.0 (compatible; rgals data set loader)"
_MAGIC = {".zip": b"PK\x03\x04", ".gz": b"\x1f\x8b"}
_SIZE = "{} users, {} items and {} interactions".format


def cache_folder(folder: str | os.PathLike | None = None) -> Path:
    """Where data sets are kept.

    Parameters
    ----------
    folder : path-like, optional
        Default: the environment's ``RGALS_CACHE``, else ``$XDG_CACHE_HOME/rgals`` or ``~/.cache/rgals``.

    Returns
    -------
    Path

    Examples
    --------
    >>> from rgals.datasets import cache_folder
    >>> cache_folder("data").as_posix()
    'data'
    """
    if folder is None:
        folder = os.environ.get("RGALS_CACHE")
    return Path(folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rgals")


def available() -> tuple[str, ...]:
    """Names that `fetch` knows.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> from rgals.datasets import available
    >>> "ml-100k" in available()
    True
    """
    return tuple(SOURCES)


def fetch(
    name: str,
    *,
    folder: str | os.PathLike | None = None,
    url: str | tuple[str, ...] | None = None,
    verify: bool = True,
    progress: bool = True,
) -> Interactions:
    """A public data set by name.

    The file is downloaded on first use, verified, parsed and kept; later calls read the kept result and need
    no connection. None of these sets may be redistributed freely: the terms are printed with the download.

    Parameters
    ----------
    name : str
        "ml-100k", "ml-1m", "ml-10m", "ml-20m", "ml-25m" (ratings with timestamps), "amazon-electronics"
        (5-core, ratings with timestamps), "steam" (reviews with dates), "simplewiki-links" (pages x link
        targets), "gowalla", "yelp2018", "amazon-book" (pairs with the split of NGCF and LightGCN).
    folder : path-like, optional
        Where files are kept; see `cache_folder`.
    url : str or tuple of str, optional
        Another address, one for each file of the set (training and test of gowalla, yelp2018, amazon-book).
    verify : bool, default True
        Compare the published MD5 where there is one, and the published numbers of users, items and
        interactions. Without a published MD5 the SHA-256 of the first download is recorded beside the
        file, and later uses must match it.
    progress : bool, default True
        Show progress bars and the terms.

    Returns
    -------
    Interactions
        Values are the ratings, or 1. Of several reviews of one item by one user the last counts.

    Raises
    ------
    DownloadError
        No connection, or no address gave the right file: the message says where to put the file by hand.
    FileFormatError
        The file is damaged, has changed since it was recorded, or does not have the published numbers.
    ParameterError
        The name is unknown.

    Examples
    --------
    >>> from rgals.datasets import fetch
    >>> ratings = fetch("ml-100k").matrix                                    # doctest: +SKIP
    """
    source = SOURCES[check_choice("name", name, available())]
    place = cache_folder(folder)
    files = source.files
    if url is not None:
        urls = (url,) if isinstance(url, str) else tuple(url)
        if len(urls) != len(files):
            raise ParameterError("url", url, f"{name} has {len(files)} file(s); give one for each")
        for one in urls:
            if urlsplit(one).scheme not in ("http", "https"):
                raise ParameterError("url", one, "give an http or https address")
        files = tuple(replace(file, urls=(one,)) for file, one in zip(files, urls, strict=True))
    digests = dict(_obtain(source, file, place, verify, progress) for file in files)
    kept = place / f"{source.name}.{'-'.join(digest[:12] for digest in digests.values())}.npz"
    if kept.exists():
        try:
            return read_interactions(kept)
        except FileFormatError:
            kept.unlink()  # damaged: it is made again from the source
    data = build(parse(source, list(digests), progress), Rules(duplicates="last"))
    got = (data.n_users, data.n_items, data.nnz)
    if verify and source.size is not None and got != source.size:
        problem = f"{name} has {_SIZE(*source.size)}; remove the file to fetch it again, or give verify=False"
        raise FileFormatError(f"{', '.join(map(str, digests))}: {_SIZE(*got)}, but {problem}")
    try:
        data.save(kept)
    except OSError as error:  # a full disk, or a folder that only others may fill
        warn(f"{kept} is not written, so that {name} is parsed again: {error}")
    return data


def _obtain(source: Source, file: RemoteFile, place: Path, verify: bool, progress: bool) -> tuple[Path, str]:
    """Path and digest of one verified file of a data set, downloaded if it is not there."""
    path = place / file.name
    record = path.with_name(path.name + ".sha256")
    if not path.exists():
        if progress:
            print(f"{source.name}: {source.licence}", file=sys.stderr)
        md5 = file.md5 if verify else None
        if verify and md5 is None and file.sums_url is not None:
            md5 = published_md5(file.sums_url, file.urls[0])
        download(file.urls, path, md5=md5, progress=progress)
        record.unlink(missing_ok=True)
    kind, wanted, why = "MD5", file.md5, "is published"
    if wanted is None:
        recorded = record.read_text().split() if record.exists() else []
        kind, wanted, why = "SHA256", next(iter(recorded), None), f"was recorded at its first use in {record}"
    got = file_digest(path, kind)
    if verify and wanted is None:
        record.write_text(f"{got}  {path.name}\n")
    elif verify and got != wanted:
        problem = "it is damaged or another version; remove it to fetch it again, or give verify=False"
        raise FileFormatError(f"{path} has the {kind} {got}, but {wanted} {why}: {problem}")
    return path, got


# ------------------------------------------------------------------ one file over HTTP


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
    """Download an address to ``part``, from where an earlier attempt ended; raise if it is not complete."""
    try:
        found = json.loads(meta.read_text())
        tag = found["tag"] if found["url"] == url else ""
    except (OSError, ValueError, LookupError, TypeError):
        tag = ""  # without a tag, the file may have changed since: download all of it
    done = part.stat().st_size if tag and part.exists() else 0
    with _ask(url, {"Range": f"bytes={done}-", "If-Range": tag} if done else {}) as answer:
        if answer.status != 206:
            done = 0
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            raise ConnectionError("the server continued at another place than asked for")
        tags = [answer.headers.get("ETag", ""), answer.headers.get("Last-Modified", "")]
        tag = next((tag for tag in tags if tag and not tag.startswith("W/")), "")  # W/: bytes may differ
        length = answer.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        bar = {"total": total, "initial": done, "desc": label, "disable": not progress, "leave": False}
        with open(part, "ab" if done else "wb") as file, Bar.wrapattr(file, "write", **bar) as shown:
            meta.write_text(json.dumps({"url": url, "tag": tag}))  # `part` has no other version's bytes now
            shutil.copyfileobj(answer, shown, _CHUNK)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and part.stat().st_size != total:
        raise ConnectionError(f"the connection ended after {part.stat().st_size} of {total} bytes")


def _check(part: Path, target: Path, md5: str | None) -> None:
    """Remove a complete file that is not the one asked for, and raise a `ConnectionError`."""
    with open(part, "rb") as file:
        start = file.read(512)
    page = start.lstrip().lower().startswith((b"<!doctype", b"<html"))
    problem = ""
    if not start:
        problem = "the server sent nothing"
    elif page or not start.startswith(_MAGIC.get(target.suffix, b"")):
        problem = f"the server sent {'a web page' if page else 'something else'}, not the file"
    elif md5 is not None and (got := file_digest(part, "md5")) != md5:
        problem = f"the MD5 is {got}, but {md5} is published: the file is damaged or was changed"
    if problem:
        part.unlink()
        raise ConnectionError(problem)


def download(urls: tuple[str, ...], target: Path, *, md5: str | None = None, progress: bool = True) -> None:
    """Download a file from the first of ``urls`` that works; ``target`` appears complete and verified."""
    # An interrupted download leaves `target.part`. The next call continues it if the server allows that, and
    # says by ETag or date that the file is unchanged. A `DownloadError` says what failed, and where to put
    # the file by hand.
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"{target.parent} cannot be made ({error}); give another folder=") from error
    part, meta = (target.with_name(target.name + suffix) for suffix in (".part", ".part.json"))
    faults = []
    with locked(target.with_name(target.name + ".lock")):
        if target.exists():  # another process has downloaded it meanwhile
            return
        for url in urls:
            for pause in _PAUSES:
                time.sleep(pause)
                try:
                    _attempt(url, part, meta, progress, target.name)
                    _check(part, target, md5)
                except urllib.error.HTTPError as error:
                    fault = " ".join(f"HTTP {error.code} {error.reason}".split())
                    if error.code == 416:  # `part` has no such range: start again
                        part.unlink(missing_ok=True)
                    elif error.code < 500:
                        break
                except urllib.error.URLError as error:
                    fault = str(error.reason)
                    if isinstance(error.reason, ssl.SSLCertVerificationError):
                        break
                except (TimeoutError, ConnectionError, HTTPException) as error:
                    fault = str(error) or type(error).__name__
                else:
                    os.replace(part, target)
                    meta.unlink(missing_ok=True)
                    return
            faults.append(f"{url}: {fault}")
    advice = f"Without a connection, get the file elsewhere, put it at {target} and call again"
    raise DownloadError(f"{target.name} cannot be fetched ({'; '.join(faults)}). {advice}")


def published_md5(sums_url: str, url: str) -> str | None:
    """MD5 of a file in its publisher's list, which has the form of md5sum; None if it is not there."""
    name = urlsplit(url).path.rsplit("/", 1)[-1]
    with suppress(OSError, HTTPException), _ask(sums_url, {}) as answer:
        text = answer.read(1 << 20).decode("utf-8", "replace")
        found = re.search(rf"^([0-9a-f]{{32}})\s+\*?{re.escape(name)}\s*$", text, re.MULTILINE)
        return None if found is None else found[1]
    return None
