"""`fetch`: a public data set by name, from its official place or from the cache."""

import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from rgals.datasets.download import download, file_digest, published_md5
from rgals.datasets.interactions import Interactions, build
from rgals.datasets.read import read_interactions
from rgals.datasets.sources import SOURCES, RemoteFile, Source, parse
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import DownloadError, FileFormatError, ParameterError

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
        Another place, one for each file of the set (training and test of gowalla, yelp2018, amazon-book).
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
        No connection, or no place gave the right file: the message names the file and where to put it.
    FileFormatError
        The file is damaged, was changed since it was recorded, or does not have the published numbers.
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
    paths = [_obtain(source, file, place, verify, progress) for file in files]
    digest = "-".join(file_digest(path, "sha256")[:12] for path in paths)
    kept = place / f"{source.name}.{digest}.npz"
    if kept.exists():
        try:
            return read_interactions(kept)
        except FileFormatError:
            kept.unlink()  # a damaged copy is made again from the source
    data = build(parse(source, paths, progress), min_value=None, binarize=None, duplicates="last")
    got = (data.n_users, data.n_items, data.nnz)
    if verify and source.size is not None and got != source.size:
        problem = f"{name} has {_SIZE(*source.size)}; remove the file to fetch it again, or give verify=False"
        raise FileFormatError(f"{', '.join(map(str, paths))}: {_SIZE(*got)}, but {problem}")
    try:
        data.save(kept)
    except OSError as error:  # a full disk, or a folder that only others may fill
        warnings.warn(f"{kept} is not written, so that {name} is parsed again: {error}", stacklevel=2)
    return data


def _obtain(source: Source, file: RemoteFile, place: Path, verify: bool, progress: bool) -> Path:
    """Path of one verified file of a data set, downloaded if it is not there."""
    path = place / file.name
    record = path.with_name(path.name + ".sha256")
    if not path.exists():
        if progress:
            print(f"{source.name}: {source.licence}", file=sys.stderr)
        md5 = file.md5 if verify else None
        if verify and md5 is None and file.sums_url is not None:
            md5 = published_md5(file.sums_url, file.urls[0])
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DownloadError(f"{place} cannot be made ({error}); give another folder=") from error
        download(file.urls, path, md5=md5, progress=progress)
        record.unlink(missing_ok=True)
    if not verify:
        return path
    kind, wanted, why = "MD5", file.md5, "is published"
    if wanted is None:
        recorded = record.read_text().split() if record.exists() else []
        kind, wanted, why = "SHA256", next(iter(recorded), None), f"was recorded at its first use in {record}"
    got = file_digest(path, kind)
    if wanted is None:
        record.write_text(f"{got}  {path.name}\n")
    elif got != wanted:
        problem = "it is damaged or another version; remove it to fetch it again, or give verify=False"
        raise FileFormatError(f"{path} has the {kind} {got}, but {wanted} {why}: {problem}")
    return path
