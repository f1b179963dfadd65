"""The shards of a matrix: blocks of its rows and of its columns, built on the workers."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from rgals.cluster.graph import Graphs
from rgals.cluster.tasks import task
from rgals.datasets.given import given, wanted_columns
from rgals.datasets.ids import encode, joined
from rgals.losses.base import takes_dislikes
from rgals.matrix.csr import CSR
from rgals.matrix.entries import group
from rgals.matrix.store import DESCRIPTION, Store, open_matrix
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import AUTO, Weighting, half_steps, look_like_stars, spread
from rgals.model.state import check_labels
from rgals.runtime.errors import InputError
from rgals.runtime.lazy import cached_property
from rgals.training.checkpoint import fingerprint
from rgals.training.data import choose_values, read

_ROW_COST = 32  # a row costs as much as so many interactions, beside its own
_BLOCK, _FEWEST, _MOST = 1 << 20, 8, 128  # interactions of a block; blocks, whatever the cluster

Labels = tuple[np.ndarray | None, np.ndarray | None]


class Entries(NamedTuple):
    """Interactions by their numbers, in any order."""

    rows: np.ndarray
    cols: np.ndarray
    values: np.ndarray  # empty: ones


class Part(NamedTuple):
    """A part of a table: interactions by the numbers of its own ids."""

    entries: Entries
    users: np.ndarray
    items: np.ndarray


# ---------------------------------------------------------------- on workers


def _entries(matrix: CSR, first: int = 0) -> Entries:
    return Entries(matrix.rows.astype(np.int32) + np.int32(first), matrix.indices, matrix.values)


@task
def read_part(source: Any, columns: Any, dtype: Any, dislikes: bool) -> Part:
    """A part of a table: a frame, or the file that has it."""
    if isinstance(source, str):
        from rgals.datasets.read import read_interactions

        source = read_interactions(source, **wanted_columns(columns))
    elif not len(source):
        none = np.empty(0, np.int64)
        return Part(Entries(none, none, np.empty(0, dtype)), none, none)
    found = given(source, columns)
    if found.user_ids is None or found.item_ids is None:
        raise InputError(
            "a dask dataframe must have a column of users and one of items; name them in columns="
        )
    matrix = as_csr(found.matrix, dtype=dtype, dislikes=dislikes)
    return Part(_entries(matrix), found.user_ids, found.item_ids)


@task
def read_chunk(chunk: Any, first: int, dtype: Any, dislikes: bool) -> CSR:
    """A chunk of a dask array."""
    return as_csr(chunk, name=f"the chunk of X from row {first} on", dtype=dtype, dislikes=dislikes)


@task
def read_stored(path: Path, start: int, stop: int, dtype: Any) -> CSR:
    """Some users of a store, read by a worker, which reaches its folder by the same path."""
    return open_matrix(path).matrix.slice_rows(start, stop).as_dtype(dtype)


@task
def ids_of(part: Part, side: int) -> np.ndarray:
    """The ids of users (0) or items (1) of a part."""
    return part.items if side else part.users


@task
def all_ids(parts: list[np.ndarray]) -> np.ndarray:
    """The ids of all parts, sorted as a reader sorts them."""
    filled = [part for part in parts if len(part)] or [np.empty(0, np.int64)]
    labels = filled[0]
    for part in filled[1:]:
        labels = encode(joined(labels, part))[1]
    return labels


@task
def place(part: Part, users: np.ndarray, items: np.ndarray) -> Entries:
    """The interactions of a part by the numbers of all ids."""
    (rows, cols, values), *own = part
    places = []
    for ids, labels in zip(own, (users, items), strict=True):
        if labels.dtype == object:
            known = {label: i for i, label in enumerate(labels.tolist())}
            places.append(np.array([known[label] for label in ids.tolist()], np.int32))
        else:
            places.append(np.searchsorted(labels, ids).astype(np.int32))
    return Entries(places[0][rows], places[1][cols], values)


@task
def number(chunk: CSR, first: int) -> Entries:
    """The interactions of a chunk of rows."""
    return _entries(chunk, first)


@task
def count(entries: Entries | CSR, rows: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows or columns that are there, and the interactions of each."""
    if isinstance(entries, CSR):
        index = entries.likes.indices
    else:
        index = entries.rows if rows else entries.cols
    return np.unique(index, return_counts=True)


@task
def add_counts(parts: list[tuple[np.ndarray, np.ndarray]], n: int) -> np.ndarray:
    """Interactions of all rows or columns."""
    out = np.zeros(n, np.int64)
    for at, counts in parts:
        out[at] += counts
    return out


@task
def cut(entries: Entries, cuts: np.ndarray) -> list[Entries]:
    """Interactions by the block of their row."""
    block = np.searchsorted(cuts, entries.rows, side="right") - 1
    order = np.argsort(block, kind="stable")
    ends = np.searchsorted(block[order], np.arange(len(cuts)))
    values = entries.values
    places = [order[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return [
        Entries(entries.rows[at], entries.cols[at], values[at] if len(values) else values) for at in places
    ]


@task
def cut_columns(rows: CSR, first: int, cuts: np.ndarray) -> list[Entries]:
    """Interactions of a block of rows by the block of their column, rows and columns exchanged."""
    turned = rows.transpose()
    found = []
    for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
        entries = _entries(turned.slice_rows(start, stop), start)
        found.append(entries._replace(cols=entries.cols + np.int32(first)))
    return found


@task
def pick(pieces: list[Entries], at: int) -> Entries:
    """One of several pieces."""
    return pieces[at]


@task
def merge(pieces: list[Entries], first: int, shape: tuple[int, int], dtype: Any) -> CSR:
    """The block of a matrix that pieces have in their order; what is there twice is added."""
    rows = np.concatenate([piece.rows for piece in pieces]) - np.int32(first)
    cols = np.concatenate([piece.cols for piece in pieces])
    filled = [piece.values if len(piece.values) else np.ones(len(piece.rows), dtype) for piece in pieces]
    order, counts = group(rows, shape[0]), np.bincount(rows, minlength=shape[0])
    indptr = np.append(0, np.cumsum(counts))
    found = sp.csr_array((np.concatenate(filled)[order], cols[order], indptr), shape=shape)
    return as_csr(found, dtype=dtype, dislikes=True)


@task
def weigh_block(matrix: CSR, weighting: Weighting) -> CSR:
    """A block of users with weights for values."""
    return weighting.rows(matrix)


@task
def total_weight(matrix: CSR, weighting: Weighting) -> float:
    """See `Weighting.total`."""
    return weighting.total(matrix.likes)


@task
def margins(matrix: CSR) -> tuple[np.ndarray, np.ndarray]:
    """Sums and numbers of the likes of every row."""
    likes = matrix.likes
    return likes.row_sums, likes.row_counts


class Values(NamedTuple):
    """What the client asks of the values of the likes of a block."""

    nnz: int
    has_dislikes: bool
    ends: tuple[float, float]
    total: float
    squares: float
    half_steps: np.ndarray
    digest: str  # of all of the block


@task
def values_of(matrix: CSR) -> Values:
    """The values of a block."""
    likes, total = matrix.likes, float(matrix.likes.row_sums.sum())
    ends, steps = (1.0, 1.0), np.zeros(21, np.int64)
    if likes.is_binary:
        steps[2] = likes.nnz
    elif likes.nnz:
        ends, steps = (float(likes.values.min()), float(likes.values.max())), half_steps(likes)
    squares = (spread(likes) ** 2 + 1.0) * total**2 / max(likes.nnz, 1)
    return Values(likes.nnz, matrix.has_dislikes, ends, total, squares, steps, fingerprint(matrix))


@task
def take_rows(matrix: CSR, at: np.ndarray) -> CSR:
    """Some rows of a block, without dislikes."""
    return matrix.likes.take_rows(at)


# ---------------------------------------------------------------- on the client


class Shards:
    """A matrix as blocks on workers; the client holds the margins of users and items.

    To rules and checkpoints it is the matrix: it has what these ask of a `CSR`.
    """

    has_dislikes = False  # margins are those of the likes

    def __init__(
        self,
        graphs: Graphs,
        users: list[Any],
        cuts: np.ndarray,
        shape: tuple[int, int],
        values: list[Values] | None = None,
    ) -> None:
        self.graphs, self.users, self.cuts, self.shape = graphs, users, cuts, shape
        self.n_rows, self.n_cols = shape
        self.items: list[Any] = []
        self.item_cuts, self.margins = cuts[:0], dict[str, list[Any]]()
        self.values = values or graphs.results(graphs.each("users-values", values_of, users))
        self.nnz = sum(part.nnz for part in self.values)
        if not self.nnz:
            raise InputError(f"X has no interactions (shape {shape}); there is nothing to fit")

    @property
    def likes(self) -> "Shards":
        """Margins and samples are those of the likes."""
        return self

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the blocks."""
        return hashlib.sha256("".join(part.digest for part in self.values).encode()).hexdigest()

    @cached_property
    def col_counts(self) -> np.ndarray:
        """Interactions of each item."""
        return column_counts(self.graphs, "items-counts", self.users, self.n_cols)

    def weigh(self, values: str) -> Weighting:
        """The weighting of a fit; what "auto" takes follows from all values."""
        parts, graphs = [part for part in self.values if part.nnz], self.graphs
        if values == AUTO:
            total, squares = sum(part.total for part in parts), sum(part.squares for part in parts)
            stars = look_like_stars(np.sum([part.half_steps for part in parts], axis=0), self.nnz)
            ends = min(part.ends[0] for part in parts), max(part.ends[1] for part in parts)
            found = max(0.0, self.nnz * squares / total**2 - 1.0) ** 0.5
            values = choose_values(
                found if ends != (1.0, 1.0) else 0.0, stars and ends != (1.0, 1.0), ends, 5
            )
        length, counts = sum(part.total for part in parts), self.col_counts if values == "bm25" else None
        made = Weighting.unscaled(values, length, counts, self.n_rows)
        if values in ("raw", "binary"):
            return made
        totals = graphs.results(graphs.each("users-total", total_weight, self.users, always=(made,)))
        return made.scaled(sum(totals), self.nnz)

    def weighted(self, weighting: Weighting, dtype: Any) -> "Shards":
        """The same with weights for values, and with blocks of items."""
        graphs, users = self.graphs, self.users
        if weighting.kind != "raw":
            users = graphs.each("users-weights", weigh_block, users, always=(weighting,))
        found = Shards(graphs, users, self.cuts, self.shape, self.values)
        found.col_counts = self.col_counts
        found.item_cuts = blocks_of(found.col_counts, len(users))
        found.items = regroup(
            graphs,
            "items",
            users,
            cut_columns,
            (self.cuts[:-1].tolist(),),
            found.item_cuts,
            self.n_rows,
            dtype,
        )
        sides = {"users": users, "items": found.items}
        found.margins = {
            which: graphs.each(f"{which}-margins", margins, side) for which, side in sides.items()
        }
        return found

    def take_rows(self, rows: np.ndarray) -> CSR:
        """The matrix of the given users, in the given order."""
        block = np.searchsorted(self.cuts, rows, side="right") - 1
        asked = np.unique(block)
        own = [rows[block == i] - self.cuts[i] for i in asked]
        blocks = [self.users[i] for i in asked]
        found = self.graphs.results(self.graphs.each("users-sample", take_rows, blocks, own))
        order = np.empty(len(rows), np.int64)
        order[np.argsort(block, kind="stable")] = np.arange(len(rows))
        return below(found, self.n_cols).take_rows(order)

    def load(self) -> CSR:
        """The matrix in the client's memory."""
        return below(self.graphs.results(self.users), self.n_cols)


def below(parts: Sequence[CSR], n_cols: int) -> CSR:
    """The matrix of several blocks of rows."""
    ends = np.cumsum([0, *(part.nnz for part in parts)])
    indptr = np.concatenate([[0], *(part.indptr[1:] + end for part, end in zip(parts, ends))]).astype(
        np.int64
    )
    indices = np.concatenate([np.empty(0, np.int32), *(part.indices for part in parts)])
    values = parts[0].values[:0] if parts else np.empty(0, np.float32)
    if not all(part.is_binary or not part.nnz for part in parts):
        ones = (np.ones(part.nnz, values.dtype) if part.is_binary else part.values for part in parts)
        values = np.concatenate(list(ones))
    return CSR(indptr, indices, values, n_cols)


def blocks_of(counts: np.ndarray, n_blocks: int) -> np.ndarray:
    """Rows at which blocks of equal cost begin, and their number."""
    cost = np.append(0, np.cumsum(counts + _ROW_COST))
    return np.unique(np.searchsorted(cost, np.linspace(0, cost[-1], n_blocks + 1)))


def n_blocks_of(asked: int | None, nnz: int, shape: tuple[int, int]) -> int:
    """The number of blocks: it decides the bits of a fit, so that it follows from the data alone."""
    return min(min(max(nnz // _BLOCK, _FEWEST), _MOST) if asked is None else asked, *shape)


def column_counts(graphs: Graphs, what: str, parts: list[Any], n: int, rows: bool = False) -> np.ndarray:
    """Interactions of each row or column."""
    graph: dict[str, tuple] = {
        graphs.key(f"{what}-part", i): (count, part, rows) for i, part in enumerate(parts)
    }
    graph[graphs.key(what)] = add_counts, list(graph), n
    return graphs.results(graphs.submit(graph, [graphs.key(what)]))[0]


def regroup(
    graphs: Graphs,
    what: str,
    parts: list[Any],
    by: Any,
    more: tuple,
    cuts: np.ndarray,
    n_cols: int,
    dtype: Any,
) -> list[Any]:
    """Blocks of rows from parts whose interactions ``by`` cuts into pieces, one for each block."""
    graph: dict[str, tuple] = {}
    for i, part in enumerate(parts):
        graph[graphs.key(f"{what}-cut", i)] = by, part, *(column[i] for column in more), cuts
    for j, (start, stop) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
        pieces = []
        for i in range(len(parts)):
            pieces.append(graphs.key(f"{what}-piece", i, j))
            graph[pieces[-1]] = pick, graphs.key(f"{what}-cut", i), j
        graph[graphs.key(what, j)] = merge, pieces, start, (stop - start, n_cols), dtype
    return graphs.submit(graph, [graphs.key(what, j) for j in range(len(cuts) - 1)])


# ---------------------------------------------------------------- what a fit is given


class Source(NamedTuple):
    """The shards of what a fit was given, futures of the ids where there are some, names of columns."""

    shards: Shards
    labels: tuple[Any, Any]
    names: np.ndarray | None


def shards_of(graphs: Graphs, model: Any, X: Any, dtype: Any, ids: tuple[Any, Any], columns: Any) -> Source:
    """Shards of a matrix, a dask array or dataframe, or files."""
    dislikes = takes_dislikes(model)
    if hasattr(X, "dask") and hasattr(X, "to_delayed"):
        parts = graphs.track(graphs.client.compute([*np.ravel(X.to_delayed())]))
        if hasattr(X, "chunks"):
            return _of_chunks(graphs, model, parts, X.shape, dtype, ids)
        return _of_parts(graphs, model, parts, dtype, columns)
    if isinstance(X, str | os.PathLike) and Path(X, DESCRIPTION).is_file():
        X = open_matrix(X)
    if (files := _files(X)) is not None:
        return _of_parts(graphs, model, files, dtype, columns)
    matrix, labels, names = read(model, X, dtype, *ids, columns)
    cuts = blocks_of(matrix.row_counts, n_blocks_of(model.n_blocks, matrix.nnz, matrix.shape))
    spans = cuts[:-1].tolist(), cuts[1:].tolist()
    if isinstance(X, Store):
        users = graphs.each(
            "users", read_stored, [X.path.absolute()] * len(spans[0]), *spans, always=(dtype,)
        )
    else:
        pieces = [matrix.slice_rows(a, b) for a, b in zip(*spans, strict=True)]
        # In the graph, which the scheduler keeps: what is scattered would be gone with its worker.
        users = graphs.each("users", read_chunk, pieces, spans[0], always=(dtype, dislikes))
    return Source(Shards(graphs, users, cuts, matrix.shape), labels, names)


def _files(X: Any) -> list[str] | None:
    """The files that a path or several stand for, those of folders in the order of their names."""
    paths = [X] if isinstance(X, str | os.PathLike) else X
    if not (
        isinstance(paths, list | tuple) and paths and all(isinstance(p, str | os.PathLike) for p in paths)
    ):
        return None
    found = []
    for path in map(Path, paths):
        found += sorted(p for p in path.iterdir() if p.name[0] not in "._") if path.is_dir() else [path]
    return [os.fspath(path) for path in found]


def _of_chunks(
    graphs: Graphs, model: Any, parts: list[Any], shape: tuple, dtype: Any, ids: tuple[Any, Any]
) -> Source:
    """Of a dask array in chunks of rows."""
    n_cols, dislikes = int(shape[1]), takes_dislikes(model)
    chunks = graphs.each("chunks", read_chunk, parts, [0] * len(parts), always=(dtype, dislikes))
    counts = [m[1] for m in graphs.results(graphs.each("chunks-margins", margins, chunks))]
    firsts = np.cumsum([0, *map(len, counts)])
    whole = np.concatenate(counts)
    sizes = int(firsts[-1]), n_cols
    cuts = blocks_of(whole, n_blocks_of(model.n_blocks, int(whole.sum()), sizes))
    entries = graphs.each("chunks-entries", number, chunks, firsts[:-1].tolist())
    users = regroup(graphs, "users", entries, cut, (), cuts, n_cols, dtype)
    return Source(Shards(graphs, users, cuts, sizes), check_labels(*ids, sizes), None)


def _of_parts(graphs: Graphs, model: Any, sources: list[Any], dtype: Any, columns: Any) -> Source:
    """Of a table in parts, whose ids are numbered on the workers."""
    parts = graphs.each("parts", read_part, sources, always=(columns, dtype, takes_dislikes(model)))
    labels = []
    for side in (0, 1):
        own = graphs.each(("users", "items")[side] + "-ids", ids_of, parts, always=(side,))
        labels.append(graphs.one(all_ids, own, what=("users", "items")[side] + "-all-ids"))
    n_users, n_items = graphs.results(
        [graphs.one(len, of, what="ids-number", number=i) for i, of in enumerate(labels)]
    )
    entries = graphs.each("parts-entries", place, parts, always=tuple(labels))
    counts = column_counts(graphs, "users-counts", entries, n_users, rows=True)
    cuts = blocks_of(counts, n_blocks_of(model.n_blocks, int(counts.sum()), (n_users, n_items)))
    users = regroup(graphs, "users", entries, cut, (), cuts, n_items, dtype)
    return Source(Shards(graphs, users, cuts, (n_users, n_items)), (labels[0], labels[1]), None)
