"""The public data sets that `fetch` knows: where they come from, in what form, under what terms."""

from dataclasses import dataclass

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

    name: str  # under which it lies in the cache folder
    urls: tuple[str, ...]  # where it is published; tried in order
    # as published; without one, the SHA-256 of the first download is what later uses must match
    md5: str | None = None
    sums_url: str | None = None  # where the publisher lists MD5 and name of files


@dataclass(frozen=True)
class Source:
    """A public data set."""

    name: str
    files: tuple[RemoteFile, ...]
    form: str  # which parser reads it: "zip", "json", "literal", "pagelinks" or "adjacency"
    licence: str
    member: str = ""  # path of the table in the archive, for form="zip"
    size: tuple[int, int, int] | None = None  # published users, items, interactions; checked


def _file(*urls: str, md5: str | None = None, sums_url: str | None = None) -> tuple[RemoteFile]:
    """The one file of a data set, which keeps its published name."""
    return (RemoteFile(urls[0].rpartition("/")[2], urls, md5, sums_url),)


def _movielens(name: str, member: str, md5: str, size: tuple[int, int, int]) -> Source:
    files = _file(f"https://files.grouplens.org/datasets/movielens/{name}.zip", md5=md5)
    return Source(name, files, "zip", _MOVIELENS, member, size)


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
# Path of the table in the archive, MD5 of that, and users, items and interactions.
_RATINGS = {
    "ml-100k": ("ml-100k/u.data", "0e33842e24a9c977be4e0107933c0723", (943, 1682, 100_000)),
    "ml-1m": ("ml-1m/ratings.dat", "c4d9eecfca2ab87c1945afe126590906", (6040, 3706, 1_000_209)),
    "ml-10m": ("ml-10M100K/ratings.dat", "ce571fd55effeba0271552578f2648bd", (69_878, 10_677, 10_000_054)),
    "ml-20m": ("ml-20m/ratings.csv", "cd245b17a1ae2cc31bb14903e1204af3", (138_493, 26_744, 20_000_263)),
    "ml-25m": ("ml-25m/ratings.csv", "6b51fb2759a8657d3bfcbfc42b592ada", (162_541, 59_047, 25_000_095)),
}
_ALL = (
    *(_movielens(name, *row) for name, row in _RATINGS.items()),
    Source("amazon-electronics", _file(_REVIEWS), "json", _AMAZON, size=(192_403, 63_001, 1_689_188)),
    Source("steam", _file(*_STEAM_PLACES), "literal", _STEAM),
    Source("simplewiki-links", _file(_LINKS, sums_url=_SUMS), "pagelinks", _WIKI),
    _lightgcn("gowalla", "Gowalla check-ins, SNAP", (29_858, 40_981, 1_027_370)),
    _lightgcn("yelp2018", "Yelp Open Dataset", (31_668, 38_048, 1_561_406)),
    _lightgcn("amazon-book", "Amazon product data, UCSD", (52_643, 91_599, 2_984_108)),
)
SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
