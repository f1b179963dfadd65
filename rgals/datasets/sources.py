"""The public data sets that `fetch` knows: their addresses, terms and parsers."""

# `parse` returns `Columns`; what it cannot read is a `FileFormatError` that names the line.

import ast
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rgals.datasets.columns import AUTOMATIC
from rgals.datasets.ids import sort_codes, text_to_labels
from rgals.datasets.interactions import Columns
from rgals.datasets.layout import bad, numbered
from rgals.datasets.text import Pair, gathered, lists, read_text, records
from rgals.runtime.errors import FileFormatError

_MOVIELENS = (
    "GroupLens MovieLens: research use only, no redistribution and no commercial use without permission, no "
    "endorsement. Cite Harper & Konstan, The MovieLens Datasets: History and Context, ACM TiiS 5(4), 2015."
)
_AMAZON = (
    "Amazon product data 2014, J. McAuley, UCSD: academic use. Cite He & McAuley, WWW 2016, and McAuley et "
    "al., SIGIR 2015."
)
_STEAM = (
    "Steam reviews, W.-C. Kang & J. McAuley, UCSD: academic use. Cite Kang & McAuley, Self-Attentive "
    "Sequential Recommendation, ICDM 2018."
)
_WIKI = "Wikimedia dumps: text under CC BY-SA 4.0 and GFDL; link tables are metadata of it."
_NGCF = (
    "Processed and split by the authors of NGCF (Wang et al., SIGIR 2019) and LightGCN (He et al., SIGIR "
    "2020); the terms of the original data ({}) apply."
)
_LIGHTGCN = (
    "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/master/data/",
    "https://raw.githubusercontent.com/kuandeng/LightGCN/master/Data/",
)


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set."""

    name: str  # in the cache folder
    urls: tuple[str, ...]  # tried in this order
    md5: str | None = None  # as published; else later uses must match the SHA-256 of the first download
    sums_url: str | None = None  # address of the publisher's list of MD5 sums


@dataclass(frozen=True)
class Source:
    """A public data set."""

    name: str
    files: tuple[RemoteFile, ...]
    form: str  # "zip", or the parser of `_READERS`
    licence: str
    member: str = ""  # path of the table in the archive, if form="zip"
    size: tuple[int, int, int] | None = None  # published numbers of users, items and interactions


def _file(*urls: str, md5: str | None = None, sums_url: str | None = None) -> tuple[RemoteFile]:
    """The single file of a data set, which keeps its published name."""
    return (RemoteFile(urls[0].rpartition("/")[2], urls, md5, sums_url),)


def _lightgcn(name: str, origin: str, size: tuple[int, int, int]) -> Source:
    files = tuple(
        RemoteFile(f"{name}-{part}.txt", tuple(f"{base}{name}/{part}.txt" for base in _LIGHTGCN))
        for part in ("train", "test")
    )
    return Source(name, files, "adjacency", _NGCF.format(origin), size=size)


_REVIEWS = "http://snap.stanford.edu/data/amazon/productGraph/categoryFiles/reviews_Electronics_5.json.gz"
_STEAM_PLACES = (
    "https://mcauleylab.ucsd.edu/public_datasets/data/steam/steam_reviews.json.gz",
    "http://cseweb.ucsd.edu/~wckang/steam_reviews.json.gz",
)
_DUMP = "https://dumps.wikimedia.org/simplewiki/20250101/simplewiki-20250101-"
_LINKS, _SUMS = f"{_DUMP}pagelinks.sql.gz", f"{_DUMP}md5sums.txt"
_GROUPLENS = "https://files.grouplens.org/datasets/movielens/"
# Path of the table in the archive, MD5 of the archive, and numbers of users, items and interactions.
_RATINGS = {
    "ml-100k": ("ml-100k/u.data", "0e33842e24a9c977be4e0107933c0723", (943, 1682, 100_000)),
    "ml-1m": ("ml-1m/ratings.dat", "c4d9eecfca2ab87c1945afe126590906", (6040, 3706, 1_000_209)),
    "ml-10m": ("ml-10M100K/ratings.dat", "ce571fd55effeba0271552578f2648bd", (69_878, 10_677, 10_000_054)),
    "ml-20m": ("ml-20m/ratings.csv", "cd245b17a1ae2cc31bb14903e1204af3", (138_493, 26_744, 20_000_263)),
    "ml-25m": ("ml-25m/ratings.csv", "6b51fb2759a8657d3bfcbfc42b592ada", (162_541, 59_047, 25_000_095)),
}
_ALL = (
    *(
        Source(name, _file(f"{_GROUPLENS}{name}.zip", md5=md5), "zip", _MOVIELENS, member, size)
        for name, (member, md5, size) in _RATINGS.items()
    ),
    Source("amazon-electronics", _file(_REVIEWS), "json", _AMAZON, size=(192_403, 63_001, 1_689_188)),
    Source("steam", _file(*_STEAM_PLACES), "literal", _STEAM),
    Source("simplewiki-links", _file(_LINKS, sums_url=_SUMS), "pagelinks", _WIKI),
    _lightgcn("gowalla", "Gowalla check-ins, SNAP", (29_858, 40_981, 1_027_370)),
    _lightgcn("yelp2018", "Yelp Open Dataset", (31_668, 38_048, 1_561_406)),
    _lightgcn("amazon-book", "Amazon product data, UCSD", (52_643, 91_599, 2_984_108)),
)
SOURCES = {source.name: source for source in _ALL}


# ------------------------------------------------------------------------ parsers

# Links of MediaWiki, a table in a MySQL dump.
_NUMBER = r"-?[0-9]+"
_TEXT = r"'(?:[^'\\]|\\.|'')*'"
_COLUMN = re.compile(r"\s*`(\w+)`\s+(\w+)")
_ESCAPE = re.compile(r"\\(.)|('')", re.DOTALL)
_CONTROL = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


def _unescape(text: str) -> str:
    """The text of a quoted string of MySQL; bytes that are not UTF-8 are written as escapes."""
    plain = _ESCAPE.sub(lambda m: "'" if m[2] else _CONTROL.get(m[1], m[1]), text[1:-1])
    return plain.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _link(kinds: dict[str, str], path: Path) -> tuple[re.Pattern[str], list[int]]:
    """The pattern of a row with columns of these types, and its groups for page and target."""
    with_title = {"pl_title", "pl_namespace"} <= kinds.keys()
    wanted = ("pl_from", "pl_namespace", "pl_title") if with_title else ("pl_from", "pl_target_id")
    if not kinds.keys() >= set(wanted):
        needed = "pl_from and pl_target_id (or pl_namespace and pl_title)"
        raise FileFormatError(f"{path}: the table pagelinks needs {needed}; it has {', '.join(kinds)}")
    fields = [f"({_NUMBER if 'int' in kind else _TEXT}|NULL)" for kind in kinds.values()]
    row = re.compile(rf"\s*\({','.join(fields)}\)\s*")
    return row, [1 + list(kinds).index(name) for name in wanted]


def _pagelinks(path: Path, progress: bool) -> Iterator[Pair]:
    """Links of a ``pagelinks`` dump of MediaWiki, of all namespaces; the linking pages are the users."""
    # The items are `pl_target_id` in dumps since 2024, before that namespace and title ("0:Moon").
    row: re.Pattern[str] | None = None
    kinds: dict[str, str] | None = None  # types of the columns, while CREATE TABLE is read
    at = 0  # position in the statement behind the last row
    for number, line in numbered(path, progress=progress, errors="surrogateescape"):
        start = line[:40].upper()
        if start.startswith("CREATE TABLE") and "PAGELINKS" in start:
            kinds = {}
        elif kinds is not None:
            if column := _COLUMN.match(line):
                kinds[column[1]] = column[2].lower()
            elif start.startswith(")"):
                row, groups = _link(kinds, path)
                kinds = None
        elif start.startswith("INSERT INTO") and "PAGELINKS" in start:
            if row is None:
                raise bad(path, number, "INSERT before CREATE TABLE; the columns are unknown", line)
            values = line.partition("VALUES")[2]
            if not values.endswith(";"):
                problem = "the statement does not end with a semicolon; the dump is cut off"
                raise bad(path, number, problem, line)
            values = values[:-1].strip() + ","
            at = 0
            while at < len(values):
                match = row.match(values, at)
                if match is None:
                    raise bad(path, number, f"no row of {row.groups} values", values[at : at + 200])
                source, *target = match.group(*groups)
                if "NULL" in (source, *target):
                    raise bad(path, number, "a link without an end", match[0])
                page = target[0] if len(target) == 1 else f"{int(target[0])}:{_unescape(target[1])}"
                yield number, {"user": source, "item": page}
                at = match.end() + 1
                if values[at - 1 : at] != ",":
                    raise bad(path, number, "no comma between rows", values[at - 1 : at + 199])
    if at == 0:
        raise FileFormatError(f"{path} holds no rows of a table pagelinks")


_AMAZON_KEYS = {"user": "reviewerID", "item": "asin", "value": "overall", "timestamp": "unixReviewTime"}
_STEAM_KEYS = {"user": "username", "item": "product_id", "value": None, "timestamp": "date", "split": None}
_READERS: dict[str, Callable[..., Iterator[Pair]]] = {
    "json": partial(records, wanted=_AMAZON_KEYS | {"split": None}),
    # `literal_eval` reads literals and runs no code.
    "literal": partial(records, wanted=_STEAM_KEYS, parse=ast.literal_eval, form="Python dictionary"),
    "pagelinks": _pagelinks,
    "adjacency": partial(lists, whole=True),
}


def parse(source: Source, paths: list[Path], progress: bool = False) -> Columns:
    """The columns of a data set from its published files."""
    if source.form != "zip":
        read = partial(_READERS[source.form], progress=progress)
        # Ids of reviews are texts, even if all look like numbers.
        labels = sort_codes if source.form in ("json", "literal") else text_to_labels
        return gathered(read, paths, labels)
    try:
        with zipfile.ZipFile(paths[0]) as archive:
            if source.member not in archive.namelist():
                inside = ", ".join(archive.namelist()[:8])
                raise FileFormatError(f"{paths[0]} does not hold {source.member}; it holds {inside}")
            return read_text(zipfile.Path(archive, source.member), AUTOMATIC | {"split": None}, "auto")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise FileFormatError(f"{paths[0]} is no readable zip archive: {error}") from error
