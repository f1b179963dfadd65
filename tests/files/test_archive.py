"""What is saved comes back exactly; what is damaged, hostile or from the future is refused before its use."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from instruments.harness import POSIX

from rgals.files import archive as store
from rgals.files.archive import ArraySpec, FileSpec, load_npz, save_npz
from rgals.runtime.errors import InputError, InputTypeError, ModelFileError, RgalsError

SPEC = FileSpec(
    "test-model",
    2,
    {
        "users": ArraySpec(("f4", "f8"), ("n_users", "K")),
        "items": ArraySpec(("f4", "f8"), ("n_items", "K")),
        "indptr": ArraySpec(("i8",), ("n_users+1",), required=False),
        "indices": ArraySpec(("i4",), ("nnz",), required=False),
        "pair": ArraySpec(("i8",), ("n_pair",), required=False),
        "scale": ArraySpec(("f8",), (), required=False),
        "ids": ArraySpec(("u1",), ("n_text",), required=False),
    },
)
META = {"class": "Test", "params": {"K": 3, "reg": 0.1, "loss": None}, "history": [1.5, 2.5]}


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(5)
    return {
        "users": rng.normal(size=(4, 3)).astype(np.float32),
        "items": rng.normal(size=(5, 3)).astype(np.float32),
        "indptr": np.array([0, 2, 2, 3, 4]),
        "indices": np.array([0, 4, 1, 2], np.int32),
        "scale": np.array(0.5),
        "ids": np.frombuffer("aä日本 long name".encode(), np.uint8),
    }


@pytest.fixture(scope="module")
def saved(arrays, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.npz"
    save_npz(path, arrays, META, spec=SPEC)
    return path.read_bytes()


def read(content: bytes):
    return store._read(io.BytesIO(content), len(content), "model.npz", SPEC)


def same(found, arrays) -> bool:
    got, meta = found
    return (
        meta == META
        and got.keys() == arrays.keys()
        and all(got[k].dtype == v.dtype and got[k].shape == v.shape for k, v in arrays.items())
        and all(got[k].tobytes() == v.tobytes() for k, v in arrays.items())
    )


# ---------------------------------------------------------------------------------------------- round trip


def test_everything_comes_back(arrays, saved):
    assert same(read(saved), arrays)


def test_numpy_reads_the_file_too(arrays, saved):
    with np.load(io.BytesIO(saved), allow_pickle=False) as file:
        assert set(file.files) == {*arrays, "meta"}
        np.testing.assert_array_equal(file["users"], arrays["users"])


def test_same_content_same_bytes(arrays, saved, tmp_path):
    save_npz(tmp_path / "again", arrays, META, spec=SPEC)
    assert (tmp_path / "again").read_bytes() == saved
    assert os.listdir(tmp_path) == ["again"]


def test_awkward_arrays_come_back(tmp_path):
    rng = np.random.default_rng(0)
    awkward = {
        "users": np.asfortranarray(rng.normal(size=(7, 6)))[::2, 1::2],  # strided
        "items": np.empty((0, 3), ">f4"),  # empty and big-endian
        "ids": np.array([], np.uint8),
        "scale": np.array(-1e300),
    }
    awkward["users"].flags.writeable = False
    save_npz(tmp_path / "m", awkward, {"n": np.int64(3), "x": np.float32(0.5)}, spec=SPEC)
    got, meta = load_npz(tmp_path / "m", expected=SPEC)
    np.testing.assert_array_equal(got["users"], awkward["users"])
    assert got["users"].flags.c_contiguous
    assert got["users"].flags.writeable
    assert got["items"].shape == (0, 3)
    assert got["items"].dtype == np.dtype("<f4")
    assert got["ids"].shape == (0,)
    assert got["scale"] == -1e300
    assert meta == {"n": 3, "x": 0.5}


def test_large_arrays_are_streamed(tmp_path):
    large = {"users": np.random.default_rng(1).normal(size=(40_000, 25)), "items": np.zeros((1, 25))}
    size = large["users"].nbytes
    assert size > 4 * store._CHUNK
    tracemalloc.start()
    save_npz(tmp_path / "m", large, {}, spec=SPEC)
    assert tracemalloc.get_traced_memory()[1] < size / 2
    tracemalloc.reset_peak()
    got, _ = load_npz(tmp_path / "m", expected=SPEC)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size < peak < 1.5 * size
    np.testing.assert_array_equal(got["users"], large["users"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"users": np.zeros((4, 2), np.float32)}, "'items' has shape .* with K = 2 as in 'users'"),
        ({"indptr": np.zeros(9, np.int64)}, r"'indptr' has shape \(9,\).*n_users = 4"),
        ({"indptr": np.zeros(0, np.int64)}, "'indptr' has shape"),
        ({"users": np.zeros(3)}, "expected \\(n_users, K\\)"),
        ({"scale": np.array(-np.inf)}, r"'scale' holds a value that is not finite at \(\)"),
        ({"users": np.zeros((4, 3), np.int32)}, "holds int32 values, not f4 or f8"),
        ({"users": np.array([[np.nan] * 3] * 4)}, r"not finite at \(0, 0\)"),
        ({"users": np.array([["a"] * 3] * 4, object)}, "object values"),
        ({"users": np.zeros((4, 3), "M8[s]")}, "datetime64"),
        ({"users": np.zeros((4, 3), [("a", "f4")])}, r"holds \[\('a', '<f4'\)\] values, not f4"),
        ({"ids": np.array(["a"])}, "'ids' holds <U1 values, not u1"),
        ({"extra": np.zeros(3)}, "'extra' is not an array of a test-model file"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(arrays, tmp_path, change, message):
    (tmp_path / "m").write_bytes(b"old")
    with pytest.raises(RgalsError, match=message):
        save_npz(tmp_path / "m", {**arrays, **change}, META, spec=SPEC)
    assert (tmp_path / "m").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m"]


def test_metadata_that_json_cannot_express_are_refused(arrays, tmp_path):
    circle: dict = {}
    circle["self"] = circle
    for meta in ({"loss": object()}, {"random_state": np.random.RandomState(0)}, circle):
        with pytest.raises(RgalsError, match="metadata"):
            save_npz(tmp_path / "m", arrays, meta, spec=SPEC)
    with pytest.raises(InputError, match="at most"):
        save_npz(tmp_path / "m", arrays, {"x": "y" * store.MAX_META_BYTES}, spec=SPEC)
    assert os.listdir(tmp_path) == []


def test_a_missing_array_is_not_saved(arrays, tmp_path):
    with pytest.raises(InputError, match="'items' is missing"):
        save_npz(tmp_path / "m", {"users": arrays["users"]}, META, spec=SPEC)


# ------------------------------------------------------------------------------------------ damaged files


def mutations(content: bytes, rng: np.random.Generator):
    """Seeded damage of many kinds; some of it changes nothing that matters."""
    size = len(content)
    for at in range(0, size, max(1, size // 1500)):  # one bit
        flipped = bytearray(content)
        flipped[at] ^= 1 << rng.integers(8)
        yield bytes(flipped)
    for length in range(0, size, max(1, size // 400)):  # truncated
        yield content[:length]
    for _ in range(400):  # some bytes
        damaged = bytearray(content)
        for at in rng.integers(size, size=rng.integers(1, 9)):
            damaged[at] = rng.integers(256)
        yield bytes(damaged)
    for _ in range(300):  # a piece cut out, doubled or moved
        a, b, c = sorted(rng.integers(size, size=3))
        yield content[:a] + content[b:]
        yield content[:b] + content[a:]
        yield content[:a] + content[b:c] + content[a:b] + content[c:]
    for _ in range(300):  # the directory at the end, where sizes and offsets stand
        damaged = bytearray(content)
        at = int(rng.integers(content.rindex(b"PK\1\2"), size - 4))
        damaged[at : at + 4] = struct.pack("<I", rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF]))
        yield bytes(damaged)
    for _ in range(100):  # anything
        yield rng.bytes(rng.integers(1, 3000))
        yield b"PK\3\4" + rng.bytes(rng.integers(1, 3000))


def silently_wrong(loader, content, arrays) -> tuple[int, int, int]:
    """(tried, wrong content returned, failed with an error that does not say what is the matter)."""
    tried = wrong = untyped = 0
    for damaged in mutations(content, np.random.default_rng(77)):
        tried += 1
        try:
            found = loader(damaged)
        except ModelFileError as error:
            assert str(error).startswith("model.npz: ")
            continue
        except Exception:
            untyped += 1
            continue
        wrong += not same(found, arrays)
    return tried, wrong, untyped


def test_damaged_files_are_refused_or_harmless(arrays, saved):
    tried, wrong, untyped = silently_wrong(read, saved, arrays)
    assert tried >= 3000
    assert (wrong, untyped) == (0, 0)


def test_the_damage_is_real(arrays, saved):
    """A loader that trusts the file returns wrong content or dies of untyped errors on the same damage."""

    def trusting(content):
        with np.load(io.BytesIO(content), allow_pickle=True) as file:
            got = {key: file[key] for key in file.files}
        return got, json.loads(got.pop("meta").tobytes())["content"]

    tried, wrong, untyped = silently_wrong(trusting, saved, arrays)
    assert wrong >= 5
    assert untyped > tried / 2


# ------------------------------------------------------------------------------------------ hostile files


def npy(array, header: bytes | None = None) -> bytes:
    """An .npy member; ``header`` replaces the description of the array."""
    if header is None:
        out = io.BytesIO()
        np.lib.format.write_array_header_1_0(out, np.lib.format.header_data_from_array_1_0(array))
        return out.getvalue() + array.tobytes()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + array.tobytes()


def header(descr="<f4", shape="(4, 3)", order="False") -> bytes:
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()


def craft(arrays, *, members=(), fields=None, compress=None, meta=None, drop=()) -> bytes:
    """A file whose checksums are right, however wrong the rest of it is."""
    head = {
        "format": "test-model",
        "format_version": 2,
        "rgals_version": "9.9.9",
        "checksums": {name: store._digest(array) for name, array in arrays.items()},
        "content": META,
        **(fields or {}),
    }
    text = json.dumps(head).encode() if meta is None else meta
    content = {"meta.npy": npy(np.frombuffer(text, np.uint8))}
    content |= {f"{name}.npy": npy(array) for name, array in arrays.items()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, member in [*content.items(), *members]:
            if name not in drop:
                kind = zipfile.ZIP_DEFLATED if name == compress else zipfile.ZIP_STORED
                archive.writestr(name, member, compress_type=kind)
    return out.getvalue()


def hostile(arrays):
    """(name, file, what the message must say) of every crafted file."""
    users = arrays["users"]
    rest = {name: array for name, array in arrays.items() if name != "users"}

    def with_users(member):
        fields = {"checksums": {name: store._digest(array) for name, array in arrays.items()}}
        return craft(rest, members=[("users.npy", member)], fields=fields)

    wrong = {**arrays, "users": np.zeros((4, 2), np.float32)}
    yield "K differs", craft(wrong), "with K ="
    wrong = {**arrays, "users": np.zeros((9, 3), np.float32)}
    yield "rows differ", craft(wrong), "n_users"
    yield "wrong type", craft({**arrays, "users": users.astype(np.int64)}), "holds int64"
    yield "NaN", craft({**arrays, "users": np.full((4, 3), np.nan)}), "not finite"
    late = np.zeros((4, 3))
    late[3, 2] = np.inf
    yield "one infinity", craft({**arrays, "users": late}), r"\(3, 2\)"
    yield "array missing", craft(rest), "'users' is missing"
    yield "no arrays", craft({}), "is missing"

    for extra in (
        "extra.npy",
        "fit.npy",
        "__class__.npy",
        "__init__.py",
        "users",
        "../../evil.npy",
        "/etc/x.npy",
    ):
        yield f"member {extra}", craft(arrays, members=[(extra, npy(users))]), "unexpected|not an array of"
    yield "folder", craft(arrays, members=[("folder/", b"")]), "unexpected"
    yield "name twice", craft(arrays, members=[("users.npy", npy(users))]), "unexpected"
    yield "10,000 members", craft(arrays, members=[(f"m{i}.npy", b"") for i in range(10_000)]), "directory"
    yield "compressed", craft(arrays, compress="users.npy"), "compressed"
    bomb = np.zeros(20_000_000, np.uint8)
    yield "bomb", craft(arrays, members=[("pair.npy", npy(bomb))], compress="pair.npy"), "compressed"
    yield "compressed metadata", craft(arrays, compress="meta.npy"), "compressed"

    pickled = npy(np.frombuffer(pickle.dumps([1, 2]), np.uint8), header("|O", "(2,)"))
    yield "object array", with_users(pickled), "another size|declares"
    yield "bytes", with_users(b"garbage"), "not an array"
    yield "empty member", with_users(b""), "not an array"
    yield "Fortran order", with_users(npy(users, header(order="True"))), "of a kind"
    yield "big-endian", with_users(npy(users, header(">f4"))), "of a kind"
    yield "huge shape", with_users(npy(users, header(shape="(4000000000, 3)"))), "another size"
    yield (
        "overflowing shape",
        with_users(npy(users, header(shape="(4294967296, 4294967296)"))),
        "another size",
    )
    yield "negative shape", with_users(npy(users, header(shape="(-4, -3)"))), "of a kind"
    yield "shorter shape", with_users(npy(users, header(shape="(3, 3)"))), "another size"
    yield "odd numbers", with_users(npy(users, header(shape="(4 4, 3)"))), "damaged"
    yield "code as shape", with_users(npy(users, header(shape="(__import__('os'),)"))), "of a kind"
    yield "unknown type", with_users(npy(users, header("<q7"))), "unknown type"
    yield "text of width 0", with_users(npy(users[:0], header("<U0", "(900000000000,)"))), "holds <U0"
    yield "object pointers", with_users(npy(users, header("<O8", "(3, 2)"))), "holds object"
    yield "empty but huge", with_users(npy(users[:0], header(shape="(900000000000, 0)"))), "n_users"
    empty = {
        "users": npy(users[:0], header(shape="(0, 0)")),
        "items": npy(users[:0], header(shape="(99999999, 0)")),
    }
    sums = {"checksums": dict.fromkeys(empty, store._digest(users[:0]))}
    both = [(f"{name}.npy", member) for name, member in empty.items()]
    yield "empty arrays of huge width", craft({}, members=both, fields=sums), "larger than"
    yield (
        "structured",
        with_users(npy(users, b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (12,), }")),
        ("of a kind"),
    )
    nested = b"{'descr': " + b"(" * 5000 + b"}"
    yield "nested header", with_users(npy(users, nested)), "of a kind"
    version3 = b"\x93NUMPY\x03\x00" + npy(users)[8:]
    yield "npy version 3", with_users(version3), "not an array"

    yield "other format", craft(arrays, fields={"format": "other"}), "not a test-model file but 'other'"
    newer = craft({**arrays, "users": np.zeros(2)}, fields={"format_version": 3}, members=[("new.npy", b"")])
    yield "newer", newer, r"written by rgals 9\.9\.9 in format version 3.*upgrade"
    for version in (0, -1, 1.5, "2", None, True, [2], 10**400):
        yield (
            f"version {str(version)[:9]}",
            craft(arrays, fields={"format_version": version}),
            "version|damaged",
        )
    yield "no checksums", craft(arrays, fields={"checksums": None}), "checksums"
    yield "checksums of others", craft(arrays, fields={"checksums": {"users": "0"}}), "checksums"
    one_wrong = {name: store._digest(array) for name, array in rest.items()} | {"users": "0" * 64}
    yield (
        "wrong checksum",
        craft(arrays, fields={"checksums": one_wrong}),
        "'users' does not match its checksum",
    )
    yield "content is a list", craft(arrays, fields={"content": [1]}), "another kind"
    for text in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 200_000, b'{"format": ' + b"9" * 5000 + b"}"):
        yield f"metadata {text[:9]!r}", craft(arrays, meta=text), "damaged|another kind"
    yield "metadata too long", craft(arrays, meta=b" " * (store.MAX_META_BYTES + 999)), "metadata"
    yield "no metadata", craft(arrays, drop=("meta.npy",)), "no metadata"
    numbers = io.BytesIO()
    np.savez(numbers, meta=np.zeros(4))
    yield "metadata are numbers", numbers.getvalue(), "not bytes"

    good = craft(arrays)
    yield "renamed pickle", pickle.dumps({"users": users.tolist()}), "not an npz"
    yield "npy instead of npz", npy(users), "not an npz"
    yield "text", b"user,item\n1,2\n", "not an npz"
    yield "nothing", b"", "empty"
    yield "zip without content", b"PK\5\6" + bytes(18), "not an npz"
    yield "appended bytes", good + b"\0" * 100, "end of the file"
    yield "prepended bytes", b"PK\3\4" + good, "directory"
    yield "zip comment", good[:-2] + b"\3\0abc", "end of the file"
    start = struct.unpack("<I", good[-6:-2])[0]
    entries = good[start:-22]
    yield "twice the same bytes", overlapping(good, start, entries), "overlaps|unexpected|damaged|directory"
    encrypted = bytearray(good)
    for at in (start + 8, 6):
        encrypted[at] |= 1
    yield "encrypted", bytes(encrypted), "encrypted"


def overlapping(good: bytes, start: int, entries: bytes) -> bytes:
    """The last member reaches back over the one before it."""
    last = entries.rindex(b"PK\1\2")
    before = entries.rindex(b"PK\1\2", 0, last)
    offset = entries[before + 42 : before + 46]
    entries = entries[: last + 42] + offset + entries[last + 46 :]
    return good[:start] + entries + good[-22:]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_files_are_refused_within_their_size(arrays):
    cases = list(hostile(arrays))
    assert len(cases) >= 60
    assert len({name for name, _, _ in cases}) == len(cases)
    problems = []
    for name, content, message in cases:
        tracemalloc.start()
        try:
            with pytest.raises(ModelFileError, match=message):
                read(content)
        except (Exception, pytest.fail.Exception) as error:
            problems.append(f"{name}: {type(error).__name__} {str(error)[:300]}")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # A directory entry or a level of JSON takes some hundred bytes of memory for each byte of the file.
        if peak > 4_000_000 + 3 * min(len(content), store.MAX_META_BYTES):
            problems.append(f"{name}: {peak} bytes of memory for a file of {len(content)}")
    assert not problems, "\n".join(problems)


def test_the_crafted_files_differ_from_a_good_one_only_where_they_should(arrays):
    assert same(read(craft(arrays)), arrays)


def test_large_files_use_the_long_form_of_zip(arrays, saved, monkeypatch):
    """Files beyond 4 GiB end in other records; the limit is lowered to write one without 4 GiB."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            with new.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                member.write(old.read(name))
    monkeypatch.undo()
    content = out.getvalue()
    assert b"PK\6\7" in content[-100:]
    assert same(read(content), arrays)
    rng = np.random.default_rng(3)
    end = content.index(b"PK\1\2")
    for _ in range(500):
        damaged = bytearray(content)
        damaged[int(rng.integers(end, len(content)))] = rng.integers(256)
        try:
            found = read(bytes(damaged))
        except ModelFileError:
            continue
        assert same(found, arrays)


def test_the_message_names_the_file(tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"abc")
    with pytest.raises(ModelFileError, match=r"broken\.npz: not an npz file"):
        load_npz(tmp_path / "broken.npz", expected=SPEC)


@pytest.mark.parametrize("path", [None, 3, 1.5])
def test_what_is_no_path_is_an_error_of_rgals(arrays, path):
    with pytest.raises(InputTypeError, match=f"give the path of a file, .*, not {path}"):
        save_npz(path, arrays, {}, spec=SPEC)
    with pytest.raises(InputTypeError, match=f"give the path of a file, .*, not {path}"):
        load_npz(path, expected=SPEC)


@POSIX
def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_npz(tmp_path / "absent.npz", expected=SPEC)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ModelFileError, match="is not a file"):
            load_npz(path, expected=SPEC)


def test_swapped_arrays_are_noticed(tmp_path):
    """Same type, same shape, right CRC: only the checksum under the name tells them apart."""
    a, b = np.zeros((4, 3)), np.ones((4, 3))
    save_npz(tmp_path / "m", {"users": a, "items": b}, META, spec=SPEC)
    content = (tmp_path / "m").read_bytes()
    swapped = bytearray(content)
    places = [(name, at) for name in (b"users.npy", b"items.npy") for at in occurrences(content, name)]
    assert len(places) == 4
    for name, at in places:
        swapped[at : at + 9] = b"items.npy" if name == b"users.npy" else b"users.npy"
    with pytest.raises(ModelFileError, match="does not match its checksum"):
        read(bytes(swapped))


def occurrences(content: bytes, piece: bytes) -> list[int]:
    starts = itertools.accumulate(len(part) + len(piece) for part in content.split(piece)[:-1])
    return [start - len(piece) for start in starts]
