"""Damaged and hostile model files, and what loading them does."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tempfile
import zipfile

import numpy as np

from rgals import RGALS
from rgals.files import archive as store
from rgals.model.file import SPEC
from rgals.runtime.errors import ModelFileError

try:
    import resource
except ImportError:  # Windows, where nothing that needs it runs
    resource = None

MEMORY = 512 << 20  # what loading a file of a few KiB may take beside what the process has


def good() -> bytes:
    rng = np.random.default_rng(2)
    X = (rng.random((12, 8)) < 0.5) * rng.integers(1, 6, (12, 8))
    model = RGALS(K=3, n_iter=2, random_state=0)
    model.fit(X, user_ids=[f"u{i}" for i in range(12)], item_ids=np.arange(8) * 10)
    with tempfile.TemporaryDirectory() as folder:
        model.save(os.path.join(folder, "m"))
        with open(os.path.join(folder, "m"), "rb") as file:
            return file.read()


def contents(model: RGALS) -> tuple:
    state = model._state()
    return (
        repr(sorted(model.get_params().items(), key=str)),
        model.n_iter_,
        repr(model.history_),
        model.solver_,
        model.n_features_in_,
        repr(state.loss),
        state.reg,
        state.reg_exponent,
        *[array.tobytes() for array in (state.user_factors, state.item_factors)],
        *[array.tobytes() for array in (state.seen.indptr, state.seen.indices, state.seen.values)],
        repr(state.user_ids),
        repr(state.item_ids),
        *[getattr(state.degrees, name).tobytes() for name in ("user_sum", "item_sum", "user_count")],
        state.degrees.item_count.tobytes(),
    )


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    size = len(content)
    kind = int(rng.integers(9))
    if kind <= 1:  # bits
        out = bytearray(content)
        for at in rng.integers(size, size=1 if kind == 0 else rng.integers(2, 6)):
            out[at] ^= 1 << rng.integers(8)
        return bytes(out)
    if kind == 2:
        return content[: rng.integers(size)]
    if kind == 3:
        a, b, c = sorted(rng.integers(size, size=3))
        return [content[:a] + content[b:], content[:b] + content[a:],
                content[:a] + content[b:c] + content[a:b] + content[c:]][rng.integers(3)]  # fmt: skip
    if kind == 4:  # sizes and offsets of the directory
        out = bytearray(content)
        at = int(rng.integers(content.rindex(b"PK\1\2"), size - 4))
        out[at : at + 4] = struct.pack("<I", rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF]))
        return bytes(out)
    if kind == 5:  # the description, where one byte changes much
        out = bytearray(content)
        first, last = content.index(b'{"format"'), content.index(b"}}", content.index(b'"content"')) + 2
        for at in rng.integers(first, last, size=rng.integers(1, 4)):
            out[at] = rng.choice(list(b'0123456789"{}[],:eE-+.tfn'))
        return bytes(out)
    if kind == 6:  # array headers
        out = bytearray(content)
        spots = [at for at in range(size) if content.startswith(b"\x93NUMPY", at)]
        at = spots[rng.integers(len(spots))] + int(rng.integers(0, 90))
        out[min(at, size - 1)] = rng.integers(256)
        return bytes(out)
    if kind == 7:
        out = bytearray(content)
        at = int(rng.integers(size))
        n = int(rng.integers(1, 64))
        out[at : at + n] = rng.bytes(min(n, size - at))
        return bytes(out)
    return (b"PK\3\4" if rng.random() < 0.5 else b"") + rng.bytes(int(rng.integers(1, 2000)))


def limit_memory() -> None:
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))


def trusting(path: str) -> tuple:
    """The naive version: numpy reads, nobody checks."""
    with np.load(path, allow_pickle=True) as file:
        head = json.loads(file["meta"].tobytes())["content"]
        model = RGALS(**{**head["params"], "loss": "rg2"})
        return model.K, file["user_factors"].tobytes(), file["item_factors"].tobytes(), repr(head)


def batch(content: bytes, start: int, stop: int, naive: bool = False) -> list[str]:
    """Faults of so many damaged files."""
    limit_memory()
    if naive:  # nor does it look at the checksums of the archive
        zipfile.ZipExtFile._update_crc = lambda self, data: None
    faults = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = os.path.join(folder, "model.npz")
        with open(path, "wb") as file:
            file.write(content)
        wanted = trusting(path) if naive else contents(RGALS.load(path))
        for seed in range(start, stop):
            with open(path, "wb") as file:
                file.write(damage(content, np.random.default_rng(seed)))
            try:
                found = trusting(path) if naive else contents(RGALS.load(path))
            except ModelFileError as error:
                if "model.npz" not in str(error):
                    faults.append(f"seed {seed}: the message names no file: {error}")
                continue
            except Exception as error:
                faults.append(f"seed {seed}: untyped {error!r}")
                continue
            if found != wanted:
                faults.append(f"seed {seed}: silently wrong")
    return faults


# ------------------------------------------------------------------ crafted


def npy(array: np.ndarray, header: str | None = None) -> bytes:
    out = io.BytesIO()
    if header is None:
        np.lib.format.write_array_header_1_0(out, np.lib.format.header_data_from_array_1_0(array))
        return out.getvalue() + array.tobytes()
    text = header.encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + array.tobytes()


def rebuilt(
    content: bytes, arrays=None, change=None, members=(), raw=None, compress=(), head_change=None
) -> bytes:
    """The good file with changes; checksums are right however wrong the rest is."""
    got, meta = store._read(io.BytesIO(content), len(content), "m", SPEC)
    got = {**got, **(arrays or {})}
    got = {name: array for name, array in got.items() if array is not None}
    meta = json.loads(json.dumps(meta))
    if change is not None:
        change(meta)
    head = {
        "format": SPEC.format,
        "format_version": 1,
        "rgals_version": "0",
        "checksums": {name: store._digest(np.ascontiguousarray(array)) for name, array in got.items()},
        "content": meta,
    }
    if head_change is not None:
        head_change(head)
    parts = {"meta.npy": npy(np.frombuffer(json.dumps(head).encode(), np.uint8))}
    parts |= {f"{name}.npy": npy(np.ascontiguousarray(array)) for name, array in got.items()}
    parts |= raw or {}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, part in [*parts.items(), *members]:
            kind = zipfile.ZIP_DEFLATED if name in compress else zipfile.ZIP_STORED
            archive.writestr(name, part, compress_type=kind)
    return out.getvalue()


def sets(*keys, value):
    def change(meta):
        for key in keys[:-1]:
            meta = meta[key]
        meta[keys[-1]] = value

    return change


def crafted(content: bytes) -> list[tuple[str, bytes]]:
    got, _ = store._read(io.BytesIO(content), len(content), "m", SPEC)
    users, indices, indptr = got["user_factors"], got["seen_indices"], got["seen_indptr"]
    swapped = indices.copy()
    swapped[:2] = swapped[1::-1]
    assert indptr[1] >= 2
    far, negative = indices.copy(), indices.copy()
    far[0], negative[0] = 8, -1
    falling = indptr.copy()
    falling[1], falling[2] = falling[2] + 1, falling[1]
    nan = users.copy()
    nan[3, 1] = np.nan
    bomb = npy(np.zeros(200_000_000, np.uint8))
    out = [
        ("wrong K", {"arrays": {"user_factors": users[:, :2]}}),
        ("users missing", {"arrays": {"user_factors": users[:-1]}}),
        ("items missing", {"arrays": {"item_factors": got["item_factors"][:-1]}}),
        ("no factors", {"arrays": {"user_factors": None}}),
        ("integer factors", {"arrays": {"user_factors": users.astype(np.int32)}}),
        ("NaN in the factors", {"arrays": {"user_factors": nan}}),
        ("infinite sums", {"arrays": {"degrees_user_sum": np.full(12, np.inf)}}),
        ("negative counts", {"arrays": {"degrees_item_count": np.full(8, -1)}}),
        ("item out of range", {"arrays": {"seen_indices": far}}),
        ("negative item", {"arrays": {"seen_indices": negative}}),
        ("unsorted items", {"arrays": {"seen_indices": swapped}}),
        ("falling indptr", {"arrays": {"seen_indptr": falling}}),
        ("indptr beyond the items", {"arrays": {"seen_indptr": indptr + np.arange(13) * (1 << 40)}}),
        ("values too few", {"arrays": {"seen_values": got["seen_values"][:-1]}}),
        ("negative values", {"arrays": {"seen_values": -got["seen_values"]}}),
        ("ids too few", {"arrays": {"item_ids_labels": got["item_ids_labels"][:-1]}}),
        ("ids twice", {"arrays": {"item_ids_labels": np.zeros(8, np.int64)}}),
        ("id offsets that fall", {"arrays": {"user_ids_offsets": got["user_ids_offsets"][::-1].copy()}}),
        ("ids that are no text", {"arrays": {"user_ids_text": got["user_ids_text"] | 128}}),
        ("extra array", {"members": [("extra.npy", npy(users))]}),
        ("an array named like a method", {"members": [("recommend.npy", npy(users))]}),
        ("path traversal", {"members": [("../../evil.npy", npy(users))]}),
        ("absolute path", {"members": [("/tmp/evil.npy", npy(users))]}),
        ("code", {"members": [("__init__.py", b"raise SystemExit")]}),
        ("array twice", {"members": [("user_factors.npy", npy(users))]}),
        ("bomb", {"members": [("extra.npy", bomb)], "compress": ("extra.npy",)}),
        ("bomb as factors", {"raw": {"user_factors.npy": bomb}, "compress": ("user_factors.npy",)}),
        ("compressed", {"compress": ("user_factors.npy",)}),
        (
            "objects",
            {"raw": {"user_factors.npy": npy(
                np.frombuffer(pickle.dumps(print), np.uint8),
                "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
            )}},
        ),
        (
            "a shape of 10^12",
            {"raw": {"user_factors.npy": npy(
                users, "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 3), }"
            )}},
        ),
        (
            "code as shape",
            {"raw": {"user_factors.npy": npy(
                users, "{'descr': '<f4', 'fortran_order': False, 'shape': (exit(),), }"
            )}},
        ),
        ("a parameter named like a method", {"change": sets("params", "fit", value=1)}),
        ("a class as parameter", {"change": sets("params", "__class__", value="x")}),
        ("parameters that are a list", {"change": sets("params", value=[1])}),
        ("an unknown loss", {"change": sets("loss", "name", value="os.system")}),
        ("a loss with NaN", {"change": sets("loss", "params", "alpha", value=float("nan"))}),
        ("a loss with code", {"change": sets("loss", "params", value={"__init__": 1})}),
        ("negative reg", {"change": sets("reg", value=-1.0)}),
        ("reg as text", {"change": sets("reg", value="0.1")}),
        ("infinite reg_exponent", {"change": sets("reg_exponent", value=float("inf"))}),
        ("a fitted attribute named like a method", {"change": sets("fitted", "save", value=1)}),
        ("history that is text", {"change": sets("fitted", "history_", value="x")}),
        ("history of numbers", {"change": sets("fitted", "history_", value=[1, 2])}),
        ("n_iter_ that is true", {"change": sets("fitted", "n_iter_", value=True)}),
        ("n_features_in_ of another model", {"change": sets("fitted", "n_features_in_", value=9)}),
        ("another estimator", {"change": sets("estimator", value="SGDRanker")}),
        ("another format", {"head_change": sets("format", value="rgals-sgd-model")}),
        ("a newer version", {"head_change": sets("format_version", value=2)}),
        ("version 0", {"head_change": sets("format_version", value=0)}),
        ("no checksums", {"head_change": sets("checksums", value={})}),
        ("a wrong checksum", {"head_change": sets("checksums", "user_factors", value="0" * 64)}),
    ]  # fmt: skip
    files = [(name, rebuilt(content, **changes)) for name, changes in out]
    files += [
        ("a renamed pickle", pickle.dumps({"user_factors": users})),
        ("an empty file", b""),
        ("text", b"user,item\n1,2\n"),
        ("nested 100,000 deep", nested(content)),
    ]
    return files


def nested(content: bytes) -> bytes:
    """Metadata that a recursive parser chokes on."""
    text = b'{"format":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return rebuilt(content, raw={"meta.npy": npy(np.frombuffer(text, np.uint8))})


def load_crafted(files: list[bytes]) -> list[str]:
    """What loading each of some files ended with: "loaded", or the type of an error."""
    limit_memory()
    answers = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = os.path.join(folder, "model.npz")
        for content in files:
            with open(path, "wb") as file:
                file.write(content)
            try:
                RGALS.load(path)
            except Exception as error:
                answers.append(type(error).__name__)
            else:
                answers.append("loaded")
    return answers
