"""Fetching: true formats, a misbehaving server on 127.0.0.1, the cache, and the paper's preparation."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import re
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from rgals.datasets import available, fetch, fetching, make_implicit, paper, prepare_paper
from rgals.datasets.fetching import _NoDowngrade, download, published_md5
from rgals.datasets.interactions import Interactions, Rules, build
from rgals.datasets.sources import SOURCES, RemoteFile
from rgals.files.atomic import locked
from rgals.model_selection import Protocol
from rgals.runtime.errors import DownloadError, FileFormatError, InputError, InputTypeError, ParameterError

# --------------------------------------------------------------------------------- a server


class Site:
    """Files by path, and how each request for a path is to be answered (the last way is kept up)."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.ways: dict[str, list[str]] = {}
        self.tags: dict[str, str] = {}
        self.seen: list[tuple[str, str | None]] = []

    def put(self, path: str, content: bytes, *ways: str, tag: str | None = "") -> str:
        self.files[path] = content
        self.ways[path] = list(ways) or ["whole"]
        self.tags[path] = f'"{hashlib.md5(content).hexdigest()}"' if tag == "" else tag
        return self.url(path)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def handler_of(site: Site):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def answer(self, status, body, **headers):
            self.send_response(status)
            headers.setdefault("Content-Length", str(len(body)))
            for key, value in headers.items():
                if value is not None:
                    self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def do_GET(self):
            asked = self.headers.get("Range")
            site.seen.append((self.path, asked))
            if self.path not in site.files:
                return self.answer(404, b"no")
            ways = site.ways[self.path]
            way = ways.pop(0) if len(ways) > 1 else ways[0]
            body, tag = site.files[self.path], site.tags[self.path]
            status, start = 200, 0
            if asked and way != "no ranges" and self.headers.get("If-Range", tag) == tag:
                start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
                if start >= len(body):
                    return self.answer(416, b"", Content_Range=f"bytes */{len(body)}")
                status = 206
            span = f"bytes {start}-{len(body) - 1}/{len(body)}" if status == 206 else None
            full = {"Content-Length": str(len(body) - start), "ETag": tag, "Content-Range": span}
            rest = body[start:]
            if way.startswith("cut"):
                self.answer(status, rest[: len(rest) // 2], **full)
                self.close_connection = True
            elif way.startswith("error"):
                self.answer(int(way.split()[1]), b"out of order")
            elif way.startswith("redirect"):
                self.answer(302, b"", Location=way.split()[1])
            elif way == "page":
                self.answer(200, b"<!DOCTYPE html><html>Please log in</html>", ETag=tag)
            elif way == "damaged":
                self.answer(status, rest[:-1] + bytes([rest[-1] ^ 1]), **full)
            elif way == "wrong place":
                full["Content-Range"] = f"bytes 0-{len(body) - 1}/{len(body)}"
                self.answer(206 if asked else 200, rest, **full)
            elif way == "no length":
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True
            elif way == "hang up":
                self.close_connection = True
            else:
                self.answer(status, rest, **full)

    return Handler


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):  # clients hang up here on purpose
            super().handle_error(request, client_address)


@pytest.fixture
def site():
    served = Site()
    server = QuietServer(("127.0.0.1", 0), handler_of(served))
    served.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def payload(rng):
    return b"PK\x03\x04" + rng.integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def get(urls, target, md5=None, attempts=3):
    urls = (urls,) if isinstance(urls, str) else urls
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "_PAUSES", (0.01,) * attempts)
        download(urls, target, md5=md5, progress=False)


def leftovers(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("way", ["whole", "no length", "no ranges"])
def test_a_file_arrives_whole(site, payload, tmp_path, way):
    get(site.put("/a.zip", payload, way), tmp_path / "sub" / "a.zip", md5=md5(payload))
    assert (tmp_path / "sub" / "a.zip").read_bytes() == payload
    assert leftovers(tmp_path / "sub") == ["a.zip"]


def test_a_cut_download_is_continued_not_repeated(site, payload, tmp_path):
    get(site.put("/a.zip", payload, "cut 1", "cut 2", "whole"), tmp_path / "a.zip", md5=md5(payload))
    assert (tmp_path / "a.zip").read_bytes() == payload
    asked = [span for _, span in site.seen]
    assert asked[0] is None and all(asked[1:]) and len(asked) == 3
    starts = [int(span[6:-1]) for span in asked[1:]]
    assert 0 < starts[0] < starts[1] < len(payload)


def test_a_later_call_continues_an_interrupted_download(site, payload, tmp_path):
    url = site.put("/a.zip", payload, "cut")
    with pytest.raises(DownloadError, match=r"ended after \d+ of 3000004 bytes"):
        get(url, tmp_path / "a.zip", attempts=1)
    assert not (tmp_path / "a.zip").exists()
    held = (tmp_path / "a.zip.part").stat().st_size
    assert held == len(payload) // 2
    site.ways["/a.zip"] = ["whole"]
    get(url, tmp_path / "a.zip", attempts=1)
    assert (tmp_path / "a.zip").read_bytes() == payload
    assert site.seen[-1] == ("/a.zip", f"bytes={held}-")
    assert leftovers(tmp_path) == ["a.zip"]


def test_a_file_that_changed_meanwhile_is_not_glued_together(site, payload, tmp_path, monkeypatch):
    url = site.put("/a.zip", payload, "cut")
    with pytest.raises(DownloadError):
        get(url, tmp_path / "a.zip", attempts=1)
    other = payload[:100] + payload[:99:-1]
    site.put("/a.zip", other)
    with monkeypatch.context() as patch, pytest.raises(PermissionError):
        patch.setattr(fetching, "open", Mock(side_effect=PermissionError), raising=False)
        get(url, tmp_path / "a.zip", attempts=1)
    get(url, tmp_path / "a.zip", attempts=1)
    assert (tmp_path / "a.zip").read_bytes() == other


def test_without_a_tag_nothing_is_continued(site, payload, tmp_path):
    get(site.put("/a.zip", payload, "cut", "whole", tag=None), tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == payload
    assert [span for _, span in site.seen] == [None, None]


def test_a_server_that_continues_at_the_wrong_place_is_noticed(site, payload, tmp_path):
    url = site.put("/a.zip", payload, "cut", "wrong place")
    with pytest.raises(DownloadError, match="another place"):
        get(url, tmp_path / "a.zip", attempts=3)
    assert not (tmp_path / "a.zip").exists()


def test_a_part_longer_than_the_file_is_begun_anew(site, payload, tmp_path):
    url = site.put("/a.zip", payload)
    (tmp_path / "a.zip.part").write_bytes(payload + b"more")
    (tmp_path / "a.zip.part.json").write_text(json.dumps({"url": url, "tag": site.tags["/a.zip"]}))
    get(url, tmp_path / "a.zip", md5=md5(payload))
    assert (tmp_path / "a.zip").read_bytes() == payload


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("damaged", "MD5 is .* published: the file is damaged"),
        ("page", "sent a web page, not the file"),
        ("error 404", "HTTP 404"),
        ("error 503", "HTTP 503"),
        ("hang up", "127.0.0.1"),
        ("redirect /loop.zip", "redirect"),
    ],
)
def test_what_is_not_the_file_is_refused(site, payload, tmp_path, way, message):
    url = site.put("/loop.zip", payload, way)
    with pytest.raises(DownloadError, match=message) as caught:
        get(url, tmp_path / "a.zip", md5=md5(payload), attempts=2)
    assert f"put it at {tmp_path / 'a.zip'}" in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "a.zip").exists()
    assert sum(path == "/loop.zip" for path, _ in site.seen) >= (1 if way == "error 404" else 2)


def test_a_damaged_transfer_is_tried_again_from_the_start(site, payload, tmp_path):
    get(site.put("/a.zip", payload, "damaged", "whole"), tmp_path / "a.zip", md5=md5(payload))
    assert (tmp_path / "a.zip").read_bytes() == payload
    assert [span for _, span in site.seen] == [None, None]


def test_redirects_and_mirrors(site, payload, tmp_path):
    site.put("/real.zip", payload)
    get(site.put("/old.zip", b"", "redirect /real.zip"), tmp_path / "a.zip", md5=md5(payload))
    assert (tmp_path / "a.zip").read_bytes() == payload
    mirrors = (site.url("/gone.zip"), site.put("/bad.zip", payload, "damaged"), site.url("/real.zip"))
    get(mirrors, tmp_path / "b.zip", md5=md5(payload), attempts=1)
    assert (tmp_path / "b.zip").read_bytes() == payload


def test_redirects_do_not_leave_https():
    request = urllib.request.Request("https://example.org/a.zip")
    with pytest.raises(urllib.error.URLError, match="from https to http:"):
        _NoDowngrade().redirect_request(request, None, 302, "", {}, "http://example.org/a.zip")
    with pytest.raises(urllib.error.HTTPError):  # urllib itself follows to http, https and ftp only
        _NoDowngrade().http_error_302(request, io.BytesIO(), 302, "", {"location": "file:///etc/passwd"})


def test_nobody_listens(tmp_path):
    with pytest.raises(DownloadError, match=r"a\.zip cannot be fetched .*[Rr]efused.*put it at"):
        get("http://127.0.0.1:9/a.zip", tmp_path / "a.zip")


def test_two_downloads_at_once_do_not_mix(site, payload, tmp_path):
    url = site.put("/a.zip", payload)
    failures = []

    def work():
        try:
            get(url, tmp_path / "a.zip", md5=md5(payload))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (tmp_path / "a.zip").read_bytes() == payload
    assert leftovers(tmp_path) == ["a.zip"]


def test_whoever_comes_late_finds_the_file_and_leaves_nothing(site, payload, tmp_path):
    (tmp_path / "a.zip").write_bytes(payload)
    get(site.put("/a.zip", b"another"), tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == payload
    assert not site.seen
    assert leftovers(tmp_path) == ["a.zip"]


def test_one_at_a_time_has_the_lock_though_its_file_comes_and_goes(tmp_path):
    inside, together = [], []

    def work():
        for _ in range(100):
            with locked(tmp_path / "lock"):
                inside.append(1)
                time.sleep(0)  # lets another one in, if it can come in
                together.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [1] * 600
    assert not leftovers(tmp_path)


def test_published_sums(site):
    url = site.put("/d/a.sql.gz", b"")
    sums = site.put("/sums.txt", f"{'0' * 32}  b.sql.gz\n{'a' * 32}  a.sql.gz\n".encode())
    assert published_md5(sums, url) == "a" * 32
    assert published_md5(sums, site.url("/d/c.sql.gz")) is None
    assert published_md5(site.url("/none"), url) is None


# ------------------------------------------------------------------- the true formats, small


@pytest.fixture(scope="module")
def ratings():
    """Ratings as the public sets have them: every user and item id from 1, stars, seconds."""
    made = make_implicit(60, 40, mean_interactions=12, timestamps=True, labels="int", random_state=0)
    coo = made.matrix.tocoo()
    user, item = coo.coords
    stars = np.random.default_rng(0).integers(1, 6, len(user))
    assert len(np.unique(stars)) == 5
    return list(
        zip((user + 1).tolist(), (item + 1).tolist(), stars.tolist(), made.timestamp.tolist(), strict=True)
    )


def zipped(member: str, text: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in ((member.split("/")[0] + "/README", "terms"), (member, text)):
            # Of one time: the same bytes, and so the same MD5, whenever they are made.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def lines(rows, form):
    return "".join(form.format(*row) + "\n" for row in rows)


def amazon(rows) -> bytes:
    records = (
        {
            "reviewerID": f"A{u:05d}", "asin": f"B{i:06d}", "reviewerName": 'J. "Q" {x}', "helpful": [0, 1],
            "reviewText": "it's 5\u20ac\nfine, u'product_id': u'1'", "overall": float(v), "unixReviewTime": t,
        }
        for u, i, v, t in rows
    )  # fmt: skip
    return gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode())


def steam(rows) -> bytes:
    """As Python 2 printed its dictionaries."""
    text = "".join(
        f"{{u'username': u'us\\xe9r {u}', u'hours': 0.1, u'product_id': u'{i}', u'page_order': 0, "
        f"u'date': u'{np.datetime64(t, 's').astype('datetime64[D]')}', "
        "u'text': u\"it's u'product_id': u'9'\", u'early_access': False, u'page': 1}\n"
        for u, i, _, t in rows
    )
    return gzip.compress(text.encode())


NEW = ("pl_from` int(8) unsigned", "pl_from_namespace` int(11)", "pl_target_id` bigint(20) unsigned")
OLD = (
    "pl_from` int(8) unsigned",
    "pl_namespace` int(11)",
    "pl_title` varbinary(255)",
    "pl_from_namespace` int(11)",
)


def dump(columns, statements) -> bytes:
    text = "-- MySQL dump 10.19\n\nDROP TABLE IF EXISTS `pagelinks`;\nCREATE TABLE `pagelinks` (\n"
    text += "".join(f"  `{column} NOT NULL DEFAULT 0,\n" for column in columns)
    text += (
        "  PRIMARY KEY (`pl_from`),\n  KEY `pl_x` (`pl_from`)\n) ENGINE=InnoDB DEFAULT CHARSET=binary;\n\n"
    )
    text += "/*!40000 ALTER TABLE `pagelinks` DISABLE KEYS */;\n"
    text += "".join(f"INSERT INTO `pagelinks` VALUES {statement};\n" for statement in statements)
    return gzip.compress((text + "UNLOCK TABLES;\n-- Dump completed\n").encode())


def links(rows, old: bool) -> bytes:
    form = "({0},0,'Page_{1}\\'s_(x),_\\\\y\u20ac',0)" if old else "({0},0,{1})"
    rows = [form.format(*row) for row in rows]
    return dump(OLD if old else NEW, [",".join(rows[k : k + 100]) for k in range(0, len(rows), 100)])


def expected(rows, user="{}", item="{}", rated=True, timed=True):
    return {
        (user.format(u), item.format(i)): (float(v) if rated else 1.0, t if timed else None)
        for u, i, v, t in rows
    }


def content_of(data):
    coo = data.matrix.tocoo()
    times = [None] * data.nnz if data.timestamp is None else data.timestamp.tolist()
    return {
        (str(data.user_ids[r]), str(data.item_ids[c])): (float(v), t)
        for r, c, v, t in zip(*coo.coords, coo.data, times, strict=True)
    }


def served(site, monkeypatch, name, *contents, size=None):
    """Register the source with its real form but files of this test."""
    source = SOURCES[name]
    files = tuple(
        RemoteFile(file.name, (site.put("/" + file.name, content),), md5(content) if file.md5 else None)
        for file, content in zip(source.files, contents, strict=True)
    )
    monkeypatch.setitem(SOURCES, name, replace(source, files=files, size=size))


def movielens(name, rows):
    form = {"ml-100k": "{}\t{}\t{}\t{}", "ml-1m": "{}::{}::{}::{}", "ml-10m": "{}::{}::{}.5::{}"}.get(name)
    if form is None:
        return zipped(
            f"{name}/ratings.csv", "userId,movieId,rating,timestamp\n" + lines(rows, "{},{},{}.0,{}")
        )
    return zipped(SOURCES[name].member, lines(rows, form))


@pytest.mark.parametrize("name", ["ml-100k", "ml-1m", "ml-10m", "ml-20m", "ml-25m"])
def test_movielens(site, monkeypatch, tmp_path, ratings, name, capsys):
    served(site, monkeypatch, name, movielens(name, ratings), size=(60, 40, len(ratings)))
    data = fetch(name, folder=tmp_path)
    half = 0.5 if name == "ml-10m" else 0.0
    assert content_of(data) == {k: (v + half, t) for k, (v, t) in expected(ratings).items()}
    assert data.user_ids.dtype == np.int64
    err = capsys.readouterr().err
    assert "research use only" in err
    fetch(name, folder=tmp_path)
    assert len(site.seen) == 1 and "research" not in capsys.readouterr().err


def test_amazon(site, monkeypatch, tmp_path, ratings):
    served(site, monkeypatch, "amazon-electronics", amazon(ratings))
    data = fetch("amazon-electronics", folder=tmp_path, progress=False)
    assert content_of(data) == expected(ratings, "A{:05d}", "B{:06d}")


def test_steam(site, monkeypatch, tmp_path, ratings):
    again = [(*row[:3], row[3] + 10 * 86_400) for row in ratings[:20]]  # reviewed a second time, later
    served(site, monkeypatch, "steam", steam(ratings + again))
    data = fetch("steam", folder=tmp_path, progress=False)
    want = expected(ratings, "us\xe9r {}", rated=False) | expected(again, "us\xe9r {}", rated=False)
    day = 86_400 * 10**9
    assert content_of(data) == {pair: (v, t // 86_400 * day) for pair, (v, t) in want.items()}


@pytest.mark.parametrize("old", [False, True])
def test_pagelinks(site, monkeypatch, tmp_path, ratings, old):
    served(site, monkeypatch, "simplewiki-links", links(ratings, old))
    data = fetch("simplewiki-links", folder=tmp_path, progress=False)
    item = "0:Page_{}'s_(x),_\\y\u20ac" if old else "{}"
    assert content_of(data) == expected(ratings, item=item, rated=False, timed=False)


def test_lightgcn_files(site, monkeypatch, tmp_path, ratings):
    def adjacency(rows):
        users = sorted({row[0] for row in ratings})
        return "".join(f"{u} {' '.join(str(r[1]) for r in rows if r[0] == u)}\n" for u in users).encode()

    train, test = ratings[::2] + ratings[1::4], ratings[3::4]
    served(site, monkeypatch, "gowalla", adjacency(train), adjacency(test), size=(60, 40, len(ratings)))
    data = fetch("gowalla", folder=tmp_path, progress=False)
    assert content_of(data) == expected(ratings, rated=False, timed=False)
    assert content_of(data.replace(matrix=data.test, split=None)) == expected(test, rated=False, timed=False)
    assert data.train.nnz == len(train)


def sql(values: str, columns=NEW) -> str:
    return gzip.decompress(dump(columns, [values])).decode()


LINE = '{"reviewerID": "a", "asin": "b", "overall": 5, "unixReviewTime": 3}\n'
FAULTS = {
    "json": ("json", LINE + "{'reviewerID': 'a'}\n", r"line 2: this is no JSON object \(JSONDec"),
    "json list": ("json", "[1]\n", r"line 1: this is no JSON object: '\[1\]'"),
    "json key": ("json", LINE + '{"asin": "b"}\n', r"line 2: the user \('reviewerID'\) is missing"),
    "json value": ("json", LINE.replace("5", '"5"'), r"line 1: the value must be a number"),
    "json null": ("json", LINE.replace('"b"', "null"), r"line 1: the item \('asin'\) is missing"),
    "json NaN": ("json", LINE.replace("5", "NaN"), r"line 1: the value is NaN"),
    "json deep": ("json", "[" * 100_000 + "\n", r"line 1: this is no JSON object"),
    "json empty": ("json", "\n", "holds no interactions"),
    "json latin": ("json", LINE.replace('"b"', '"\udce9"'), r"line 1: byte 0xe9 is not utf-8"),
    "code": ("literal", "__import__('os').abort()\n", r"line 1: this is no Python dictionary \(V"),
    "code inside": ("literal", "{'username': open('/etc/passwd')}\n", r"line 1: this is no Python dict"),
    "nested": ("literal", "(" * 10_000 + "\n", r"line 1: this is no Python dictionary"),
    "cut": ("literal", "{u'username': u'a', u'produ\n", r"line 1: this is no Python dictionary \(Syntax"),
    "sql cut": ("pagelinks", sql("(1,0,2),")[:-60] + "\n", "cut off|no rows"),
    "sql row": ("pagelinks", sql("(1,0,2),(1,0)"), r"line \d+: no row of 3 values"),
    "sql split": ("pagelinks", sql("(1,0),(5,1,0,6)"), r"no row of 3 values"),
    "sql text": ("pagelinks", sql("(1,0,'x')"), r"no row of 3 values"),
    "sql comma": ("pagelinks", sql("(1,0,2)(3,0,4)"), "no comma between rows"),
    "sql null": ("pagelinks", sql("(1,0,NULL)"), "a link without an end"),
    "sql columns": ("pagelinks", sql("(1,0)", NEW[:2]), "needs pl_from and pl_target_id"),
    "sql head": ("pagelinks", "INSERT INTO `pagelinks` VALUES (1,0,2);\n", "INSERT before CREATE TABLE"),
    "sql none": ("pagelinks", "-- nothing\n", "holds no rows of a table pagelinks"),
    "adjacency": ("adjacency", "0 1 2\n1 x\n", r"line 2: expected a user and items"),
    "adjacency negative": ("adjacency", "0 -1\n", r"line 1: expected a user .* integers from 0"),
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_the_formats_name_the_line(tmp_path, fault, packed):
    form, text, message = FAULTS[fault]
    path = tmp_path / "file"
    raw = text.encode("utf-8", "surrogateescape")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    source = next(source for source in SOURCES.values() if source.form == form)
    with pytest.raises(InputError, match=message) as caught:
        columns = fetching.parse(source, [path, path])
        build(columns, Rules(duplicates="last"))
    assert str(path) in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("form", ["json", "literal", "pagelinks"])
def test_cut_gzip_files_are_noticed(tmp_path, ratings, form):
    whole = {"json": amazon(ratings), "literal": steam(ratings), "pagelinks": links(ratings, True)}[form]
    path = tmp_path / "a.gz"
    path.write_bytes(whole[: len(whole) // 2])
    source = next(source for source in SOURCES.values() if source.form == form)
    with pytest.raises(FileFormatError, match="cut off or damaged"):
        fetching.parse(source, [path])


def test_faults_in_archives(tmp_path, ratings):
    path = tmp_path / "ml.zip"
    path.write_bytes(zipped("other/ratings.dat", "1::2::3::4\n"))
    with pytest.raises(FileFormatError, match=r"does not hold ml-1m/ratings\.dat; it holds other/README"):
        fetching.parse(SOURCES["ml-1m"], [path])
    path.write_bytes(zipped("ml-1m/ratings.dat", lines(ratings, "{}::{}::{}::{}") + "7::8::many::9\n"))
    with pytest.raises(
        FileFormatError, match=rf"ml\.zip/ml-1m/ratings\.dat, line {len(ratings) + 1}: the value 'many'"
    ):
        fetching.parse(SOURCES["ml-1m"], [path])
    damaged = bytearray(movielens("ml-1m", ratings))
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(FileFormatError, match="no readable zip archive|cut off or damaged"):
        fetching.parse(SOURCES["ml-1m"], [path])
    assert leftovers(tmp_path) == ["ml.zip"]


# ----------------------------------------------------------------------------------- the cache


def test_a_file_put_by_hand_needs_no_connection(monkeypatch, tmp_path, ratings):
    content = movielens("ml-1m", ratings)
    file = RemoteFile("ml-1m.zip", ("http://127.0.0.1:9/ml-1m.zip",), md5(content))
    monkeypatch.setitem(SOURCES, "ml-1m", replace(SOURCES["ml-1m"], files=(file,), size=None))
    monkeypatch.setattr(fetching, "_PAUSES", (0.0,))
    monkeypatch.setenv("RGALS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        DownloadError, match=rf"ml-1m\.zip cannot be fetched.*put it at {tmp_path}/cache/ml-1m\.zip"
    ):
        fetch("ml-1m", progress=False)
    (tmp_path / "cache" / "ml-1m.zip").write_bytes(content)
    assert content_of(fetch("ml-1m", progress=False)) == expected(ratings)


def test_a_file_that_is_not_the_published_one_is_refused(site, monkeypatch, tmp_path, ratings):
    served(site, monkeypatch, "ml-1m", movielens("ml-1m", ratings))
    (tmp_path / "ml-1m.zip").write_bytes(movielens("ml-1m", ratings[1:]))
    with pytest.raises(FileFormatError, match=r"has the MD5 \w+, but \w+ is published.*verify=False"):
        fetch("ml-1m", folder=tmp_path, progress=False)
    assert fetch("ml-1m", folder=tmp_path, progress=False, verify=False).nnz == len(ratings) - 1
    assert not site.seen


def test_without_a_published_sum_the_first_download_is_recorded(site, monkeypatch, tmp_path, ratings):
    served(site, monkeypatch, "steam", steam(ratings))
    fetch("steam", folder=tmp_path, progress=False)
    record = (tmp_path / "steam_reviews.json.gz.sha256").read_text().split()
    assert record == [
        hashlib.sha256(site.files["/steam_reviews.json.gz"]).hexdigest(),
        "steam_reviews.json.gz",
    ]
    (tmp_path / "steam_reviews.json.gz").write_bytes(steam(ratings[1:]))
    with pytest.raises(FileFormatError, match="was recorded at its first use"):
        fetch("steam", folder=tmp_path, progress=False)


def test_published_numbers_are_checked(site, monkeypatch, tmp_path, ratings):
    served(site, monkeypatch, "amazon-electronics", amazon(ratings), size=(60, 40, 7))
    with pytest.raises(
        FileFormatError, match=f"60 users, 40 items and {len(ratings)} interactions, but .* 7 inter"
    ):
        fetch("amazon-electronics", folder=tmp_path, progress=False)
    assert fetch("amazon-electronics", folder=tmp_path, progress=False, verify=False).n_users == 60


def test_a_cache_that_cannot_be_written_is_read(monkeypatch, tmp_path, ratings):
    content = movielens("ml-1m", ratings)
    file = RemoteFile("ml-1m.zip", ("http://127.0.0.1:9/ml-1m.zip",), md5(content))
    monkeypatch.setitem(SOURCES, "ml-1m", replace(SOURCES["ml-1m"], files=(file,), size=None))
    (tmp_path / "ml-1m.zip").write_bytes(content)

    def refuse(data, path):
        raise OSError(errno.EROFS, "Read-only file system", path)

    monkeypatch.setattr(Interactions, "save", refuse)
    with pytest.warns(UserWarning, match="is not written, so that ml-1m is parsed again.*Read-only"):
        assert content_of(fetch("ml-1m", folder=tmp_path, progress=False)) == expected(ratings)


def test_the_parsed_copy_follows_its_source(site, monkeypatch, tmp_path, ratings):
    served(site, monkeypatch, "ml-1m", movielens("ml-1m", ratings))
    first = fetch("ml-1m", folder=tmp_path, progress=False)
    kept = next(tmp_path.glob("ml-1m.*.npz"))
    monkeypatch.setattr(fetching, "parse", lambda *a: pytest.fail("parsed again"))
    assert content_of(fetch("ml-1m", folder=tmp_path, progress=False)) == content_of(first)
    monkeypatch.undo()
    served(site, monkeypatch, "ml-1m", movielens("ml-1m", ratings))
    kept.write_bytes(kept.read_bytes()[:100])  # a damaged copy is made again
    assert content_of(fetch("ml-1m", folder=tmp_path, progress=False)) == content_of(first)
    (tmp_path / "ml-1m.zip").write_bytes(movielens("ml-1m", ratings[5:]))
    assert fetch("ml-1m", folder=tmp_path, progress=False, verify=False).nnz == len(ratings) - 5


def test_another_address(site, tmp_path, ratings, monkeypatch):
    content = movielens("ml-1m", ratings)
    url = site.put("/mirror/ml-1m.zip", content)
    with pytest.raises(DownloadError, match="MD5"):  # the real published sum
        monkeypatch.setattr(fetching, "_PAUSES", (0.0,))
        fetch("ml-1m", folder=tmp_path, url=url, progress=False)
    assert fetch("ml-1m", folder=tmp_path, url=url, verify=False, progress=False).nnz == len(ratings)
    for bad in ("file:///etc/passwd", "ftp://x/y", (url, url)):
        with pytest.raises(ParameterError, match="url="):
            fetch("ml-1m", folder=tmp_path / "x", url=bad)


def test_the_registry_is_complete():
    assert set(available()) == {
        "ml-100k", "ml-1m", "ml-10m", "ml-20m", "ml-25m", "amazon-electronics", "steam", "simplewiki-links",
        "gowalla", "yelp2018", "amazon-book",
    }  # fmt: skip
    for source in SOURCES.values():
        assert source.licence and source.files
        for file in source.files:
            assert all(url.startswith(("https://", "http://")) for url in file.urls)
            assert file.md5 is None or re.fullmatch("[0-9a-f]{32}", file.md5)
    with pytest.raises(ParameterError, match="'ml-1m'"):
        fetch("netflix")


# --------------------------------------------------------------------- the paper's preparation


def test_preparation_is_threshold_core_and_split(site, monkeypatch, tmp_path, ratings):
    served(site, monkeypatch, "ml-10m", movielens("ml-10m", ratings))
    monkeypatch.setitem(paper.RECIPES, "ml-10m", (3.0, 5, None))
    ready = prepare_paper("ml-10m", folder=tmp_path, progress=False, random_state=3)
    raw = fetch("ml-10m", folder=tmp_path, progress=False)
    assert ready.n_users < raw.n_users or ready.nnz < raw.nnz
    dense = raw.matrix.toarray() >= 3
    while True:  # the k-core, once more and differently
        users, items = dense.sum(1) >= 5, dense.sum(0) >= 5
        peeled = dense & users[:, None] & items
        if (peeled == dense).all():
            break
        dense = peeled
    users, items = np.flatnonzero(dense.any(1)), np.flatnonzero(dense.any(0))
    assert ready.user_ids.tolist() == raw.user_ids[users].tolist()
    np.testing.assert_array_equal(ready.matrix.toarray(), dense[np.ix_(users, items)])
    times = content_of(raw)
    assert all(times[pair][1] == t for pair, (_, t) in content_of(ready).items())
    # The same parts as the protocol of that description makes.
    parts = Protocol(min_value=3, core=5, seed=3).apply(raw)
    for mine, theirs in (
        (ready.train, parts.train),
        (ready.validation, parts.validation),
        (ready.test, parts.test),
    ):
        assert (mine != theirs).nnz == 0


@pytest.mark.parametrize("name", ["amazon-electronics", "steam", "simplewiki-links"])
def test_other_recipes_keep_every_value(name):
    raw = make_implicit(150, 100, mean_interactions=45, valued=True, random_state=0)
    ready = prepare_paper(name, raw)
    k = 20 if name == "simplewiki-links" else 5
    counts = np.diff(ready.matrix.indptr), np.bincount(ready.matrix.indices)
    assert min(map(min, counts)) >= k and set(ready.matrix.data) == {1.0}
    assert (
        ready.nnz
        == (raw.matrix[np.isin(raw.user_ids, ready.user_ids)][:, np.isin(raw.item_ids, ready.item_ids)]).nnz
    )


def test_raw_data_may_come_in_any_form():
    """As a table of users, items and values, or as a matrix, whose rows and columns are the ids."""
    raw = make_implicit(60, 40, mean_interactions=12, valued=True, labels="int", random_state=0)
    coo = raw.matrix.tocoo()
    user, item = (ids[k] for ids, k in zip((raw.user_ids, raw.item_ids), coo.coords, strict=True))
    frame = pd.DataFrame({"user": user, "item": item, "rating": coo.data})
    found = [prepare_paper("steam", data) for data in (raw, frame, raw.matrix)]
    assert set(found[0].split) == {0, 1, 2}
    for one in found[1:]:
        assert content_of(one) == content_of(found[0])
        np.testing.assert_array_equal(one.split, found[0].split)
    with pytest.raises(InputTypeError, match="give a path, a DataFrame"):
        prepare_paper("steam", {"user": user, "item": item})
    prepare_paper("steam", raw, progress=False)  # an option of `fetch`, which has nothing to do
    with pytest.raises(TypeError, match="unexpected keyword argument 'chek'"):  # passed over in silence
        prepare_paper("steam", raw, chek=False)


def test_table_5_is_asserted(site, monkeypatch, tmp_path, ratings):
    served(site, monkeypatch, "ml-10m", movielens("ml-10m", ratings))
    with pytest.raises(InputError, match=r"Table 5 states \(69815, 9888, 8240192\).*check=False"):
        prepare_paper("ml-10m", folder=tmp_path, progress=False)
    assert prepare_paper("ml-10m", folder=tmp_path, progress=False, check=False).nnz > 0
    with pytest.raises(InputError, match="nothing is left"):
        prepare_paper("simplewiki-links", make_implicit(30, 30, mean_interactions=5, random_state=0))
    with pytest.raises(ParameterError, match="name='gowalla'"):
        prepare_paper("gowalla")
