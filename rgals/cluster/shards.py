"""The shards of a matrix: blocks of its rows and of its columns, built on the workers."""

import hashlib
import os
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from rgals.cluster.graph import Graphs
from rgals.cluster.tasks import task
from rgals.datasets.batches import files_of
from rgals.datasets.given import given, wanted_columns, warn_of_marks
from rgals.datasets.ids import IdMap, encode, joined
from rgals.datasets.layout import NoRowsError
from rgals.datasets.read import read_interactions
from rgals.losses.base import takes_dislikes
from rgals.matrix.cohesion import cohesion
from rgals.matrix.csr import CSR
from rgals.matrix.digest import fingerprint
from rgals.matrix.store import DESCRIPTION, Store, open_matrix
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import AUTO, Values, Weighting
from rgals.model.state import check_labels
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, hear, warn
from rgals.runtime.lazy import cached_property
from rgals.solvers.plan import pieces
from rgals.training.data import choose_values, read

_ROW_COST = 32  # a row costs as much as so many interactions, beside its own
_BLOCK, _FEWEST, _MOST = 1 << 20, 8, 128  # interactions of a block; blocks, whatever the cluster


class Part(NamedTuple):
    """Some rows, with their numbers, which ascend; or a table, with its own ids."""

    matrix: CSR
    rows: np.ndarray
    cols: np.ndarray | None = None  # None: the matrix has all columns
    told: tuple[int, list[str]] = 0, []  # of a table: interactions that are marked as a test, and warnings


@task
def read_table(source: Any, number: int, columns: Any, dtype: Any, dislikes: bool) -> Part:
    """A part of a table: a frame, or the file that has it."""
    with hear() as said:
        if isinstance(source, str):
            try:
                source = read_interactions(source, **wanted_columns(columns))
            except NoRowsError:  # as of the parquet files that Spark writes
                source = ()
        if hasattr(source, "__len__") and not len(source):
            return Part(CSR.empty(0, 0), np.empty(0, np.int64), np.empty(0, np.int64))
        found = _given(source, columns, f"part {number} of X")
    if found.user_ids is None or found.item_ids is None:
        raise InputError("a dask dataframe needs a column of users and one of items; name them in columns=")
    matrix = as_csr(found.matrix, dtype=dtype, dislikes=dislikes)
    return Part(matrix, found.user_ids, found.item_ids, (found.n_marked, said))


def _given(source: Any, columns: Any, what: str) -> Any:
    try:
        return given(source, columns)
    except ParameterError:
        raise
    except (InputError, InputTypeError) as error:
        raise type(error)(f"{what}: {error}") from error


@task
def read_chunk(chunk: Any, number: int, columns: Any, dtype: Any, dislikes: bool) -> CSR:
    """A chunk of a dask array."""
    name = f"chunk {number} of X"
    return as_csr(_given(chunk, columns, name).matrix, name=name, dtype=dtype, dislikes=dislikes)


@task
def read_stored(path: Path, start: int, stop: int, dtype: Any) -> CSR:
    """Some users of a store, read by a worker, which reaches its folder by the same path."""
    return open_matrix(path).matrix.slice_rows(start, stop).as_dtype(dtype)


@task
def all_ids(parts: list[np.ndarray], files: bool) -> np.ndarray:
    """The ids of all parts, sorted as a reader sorts them: texts, where some of several files have texts."""
    whole = [part.dtype.kind in "iu" for part in parts if len(part)]
    labels, texts = np.empty(0, np.int64), files and not all(whole)
    for part in parts:
        part = part.astype(str) if texts and part.dtype.kind in "iu" else part
        labels = encode(joined(labels, part) if len(labels) else part)[1]
    return labels


def _at(labels: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The numbers of ids among those of all parts, which may be texts where these are integers."""
    known = IdMap(labels)
    at = known.index(ids, missing="mark")
    return at if (at >= 0).all() else known.index(ids.astype(str))


@task
def place(part: Part, users: np.ndarray, items: np.ndarray) -> Part:
    """The rows of a table by the numbers of all ids."""
    rows, cols = _at(users, part.rows), _at(items, cast(Any, part.cols)).astype(np.int32)
    order = np.argsort(rows)
    matrix = part.matrix.take_rows(order)
    return Part(replace(matrix, indices=cols[matrix.indices], n_cols=len(items)), rows[order])


@task
def number(chunk: CSR, first: int) -> Part:
    """The rows of a chunk by their numbers."""
    return Part(chunk, np.arange(first, first + chunk.n_rows))


@task
def turn(matrix: CSR, first: int, n_users: int) -> Part:
    """The columns of a block of users that are there, as rows."""
    turned = matrix.transpose()
    rows = np.flatnonzero(turned.row_counts)
    indptr = np.append(turned.indptr[rows], turned.nnz)
    indices = turned.indices + np.int32(first)
    return Part(replace(turned, indptr=indptr, indices=indices, n_cols=n_users), rows)


@task
def cut(part: Part, cuts: np.ndarray) -> list[Part]:
    """Rows by the block that they belong to."""
    ends = np.searchsorted(part.rows, cuts)
    return [Part(part.matrix.slice_rows(a, b), part.rows[a:b]) for a, b in pairwise(ends)]


@task
def merge(pieces: list[Part], first: int, shape: tuple[int, int], dtype: Any) -> CSR:
    """The block of a matrix that pieces have in their order; what is there twice is added."""
    rows = np.concatenate([piece.rows - first for piece in pieces])
    order = np.argsort(rows, kind="stable")
    found = CSR.stacked([piece.matrix for piece in pieces]).take_rows(order)
    indptr = found.indptr[np.searchsorted(rows[order], np.arange(shape[0] + 1))]
    found = replace(found, indptr=indptr, n_cols=shape[1])
    return as_csr(found.to_scipy(dtype), dtype=dtype, dislikes=True)


@task
def col_counts(matrix: CSR) -> tuple[np.ndarray, np.ndarray]:
    """Columns that have likes, and the likes of each."""
    return np.unique(matrix.likes.indices, return_counts=True)


@task
def add_counts(parts: list[tuple[np.ndarray, np.ndarray]], n: int) -> np.ndarray:
    """Interactions of all rows or columns."""
    at, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return np.bincount(at, counts, n).astype(np.int64)


@task
def values_of(matrix: CSR) -> tuple[Values, float, str]:
    """The values of the likes of a block, their sum, and a digest of all of it."""
    return Values.of(matrix.likes), float(matrix.likes.row_sums.sum()), fingerprint(matrix)


@task
def take_rows(matrix: CSR, at: np.ndarray) -> CSR:
    """Some rows of a block, without dislikes."""
    return matrix.likes.take_rows(at)


@dataclass
class Blocks:
    """A side of a matrix on the workers: futures of what belongs to each of its blocks."""

    name: str
    matrices: list[Any]
    cuts: list[int]
    blocks: list[Any] = field(default_factory=list)  # of `rgals.cluster.tasks.Block`
    kind: Any = None  # `rgals.cluster.tasks.Kind`
    prior: None = None  # as `rgals.solvers.als.ALS` asks: there are no features,
    ridge: None = None  # and ridges are on the workers


@dataclass
class Shards:
    """A matrix as blocks of users on workers; the client holds the margins of users and items.

    To rules and checkpoints it is the matrix: it has what these ask of a `CSR`.
    """

    graphs: Graphs
    users: list[Any]
    cuts: np.ndarray
    shape: tuple[int, int]
    labels: tuple[Any, Any]  # ids, or futures of them
    names: np.ndarray | None = None  # of columns
    row_counts: Any = None
    has_dislikes = False  # margins are those of the likes

    def __post_init__(self) -> None:
        self.n_rows, self.n_cols = self.shape
        found = self.graphs.results(self.graphs.each("users-values", values_of, self.users))
        self.values = Values.together(values for values, *_ in found)
        self.length = sum(length for _, length, _ in found)
        self.fingerprint = hashlib.sha256("".join(digest for *_, digest in found).encode()).hexdigest()
        self.nnz = self.values.nnz
        if not self.nnz:
            raise InputError(f"X has no interactions (shape {self.shape}); there is nothing to fit")

    @property
    def likes(self) -> "Shards":
        """Margins and samples are those of the likes."""
        return self

    @cached_property
    def col_counts(self) -> np.ndarray:
        """Interactions of each item."""
        return counted(self.graphs, "items", col_counts, self.users, self.n_cols)

    def weigh(self, values: str) -> Weighting:
        """The weighting of a fit; what "auto" takes follows from all values."""
        if values == AUTO:
            values = choose_values(self.values)
        counts = self.col_counts if values == "bm25" else None
        made = Weighting.unscaled(values, self.length, counts, self.n_rows)
        if values in ("raw", "binary"):
            return made
        totals = self.graphs.results(self.graphs.each("users-total", made.total, self.users))
        return made.scaled(sum(totals), self.nnz)

    def sides(self, weighting: Weighting, dtype: Any) -> tuple[Blocks, Blocks]:
        """Blocks of users and of items, with weights for values."""
        graphs, users, firsts = self.graphs, self.users, self.cuts[:-1].tolist()
        if weighting.kind != "raw":
            users = graphs.submit(graphs.each("users-weights", weighting.rows, users))
        cuts = pieces(self.col_counts, len(users), _ROW_COST)
        turned = graphs.each("items-turn", turn, users, firsts, always=(self.n_rows,))
        items = regroup(graphs, "items", turned, cuts, self.n_rows, dtype)
        return Blocks("users", users, self.cuts.tolist()), Blocks("items", items, cuts.tolist())

    cohesion = cached_property(cohesion)

    def take_rows(self, rows: np.ndarray) -> CSR:
        """The likes of the given users, in the given order."""
        block = np.searchsorted(self.cuts, rows, side="right") - 1
        own = [rows[block == i] - first for i, first in enumerate(self.cuts[:-1])]
        found = self.graphs.results(self.graphs.each("users-sample", take_rows, self.users, own))
        return CSR.stacked(found).take_rows(np.argsort(np.argsort(block, kind="stable")))

    def load(self) -> CSR:
        """The matrix in the client's memory."""
        return CSR.stacked(self.graphs.results(self.users))


def user_cuts(model: Any, counts: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Users at which blocks begin: their number decides the bits of a fit, and follows from data alone."""
    n_blocks = min(max(int(counts.sum()) // _BLOCK, _FEWEST), _MOST)
    n_blocks = min(n_blocks if model.n_blocks is None else model.n_blocks, *shape)
    return pieces(counts, n_blocks, _ROW_COST)


def counted(graphs: Graphs, what: str, count: Any, parts: list[Any], n: int) -> np.ndarray:
    """Interactions of each row or column, which ``count`` counts in parts."""
    found = graphs.each(f"{what}-count", count, parts)
    return graphs.results([graphs.one(f"{what}-counts", add_counts, found, n)])[0]


def regroup(
    graphs: Graphs, what: str, parts: list[Any], cuts: np.ndarray, n_cols: int, dtype: Any
) -> list[Any]:
    """Blocks of rows from parts that have some rows each."""
    pieces, blocks = graphs.each(f"{what}-cut", cut, parts, always=(cuts,)), []
    for j, (start, stop) in enumerate(pairwise(cuts.tolist())):
        own = graphs.each(f"{what}-{j}-piece", getitem, pieces, always=(j,))
        blocks.append(graphs.one(f"{what}-{j}", merge, own, start, (stop - start, n_cols), dtype))
    return graphs.submit(blocks)


def shards_of(graphs: Graphs, model: Any, X: Any, dtype: Any, ids: tuple[Any, Any], columns: Any) -> Shards:
    """Shards of a matrix, a dask array or dataframe, or files."""
    how = columns, dtype, takes_dislikes(model)
    if isinstance(X, str | os.PathLike):
        X = open_matrix(X) if Path(X, DESCRIPTION).is_file() else [X]
    paths = isinstance(X, list | tuple) and len(X) > 0 and all(isinstance(x, str | os.PathLike) for x in X)
    if paths:
        sources: Any = [str(path.absolute()) for path in files_of(X)]
    elif hasattr(X, "dask") and hasattr(X, "to_delayed"):
        if not isinstance(getattr(X, "ndim", None), int):
            raise InputTypeError(f"give a dask array or dataframe (bags have to_dataframe), not {type(X)}")
        sources = graphs.track(graphs.client.compute([*np.ravel(X.to_delayed())]))
    else:
        matrix, labels, names = read(model, X, dtype, *ids, columns)
        cuts = user_cuts(model, matrix.row_counts, matrix.shape)
        spans = list(pairwise(cuts.tolist()))
        if isinstance(X, Store):
            made = graphs.each("users", read_stored, [X.path] * len(spans), *zip(*spans), always=(dtype,))
        else:
            # In the graph, which the scheduler keeps: what is scattered would be gone with its worker.
            made = graphs.each("users", copy, [matrix.slice_rows(*span) for span in spans])
        return Shards(graphs, graphs.submit(made), cuts, matrix.shape, labels, names)
    if hasattr(X, "chunks"):
        if X.ndim != 2 or X.numblocks[1] != 1:
            raise InputError(f"X has blocks {X.numblocks}, not of whole rows; give X.rechunk({{1: -1}})")
        chunks = graphs.submit(graphs.each("chunks", read_chunk, sources, range(len(sources)), always=how))
        sizes = graphs.results(graphs.each("chunks-size", attrgetter("n_rows"), chunks))
        firsts = np.cumsum([0, *sizes]).tolist()
        parts = graphs.submit(graphs.each("chunks-rows", number, chunks, firsts[:-1]))
        shape = firsts[-1], int(X.shape[1])
        found: tuple = (None, None)
    else:
        of = sources, range(len(sources))
        tables = graphs.submit(graphs.each("parts", read_table, *of, always=how))
        sides = {side: graphs.each(f"{side}-ids", attrgetter(side), tables) for side in ("rows", "cols")}
        ids_of = [graphs.one(f"{side}-all-ids", all_ids, own, paths) for side, own in sides.items()]
        found = tuple(graphs.submit(ids_of))
        shape = tuple(graphs.results(graphs.each("ids-number", len, found)))
        n_marked, said = zip(*graphs.results(graphs.each("parts-told", attrgetter("told"), tables)))
        for line in dict.fromkeys(chain(*said)):
            warn(line)
        warn_of_marks(sum(n_marked), 'leave their rows out, or give columns={"split": None} to read no marks')
        parts = graphs.submit(graphs.each("parts-rows", place, tables, always=found))
    said = check_labels(*ids, shape)
    labels = said[0] if said[0] is not None else found[0], said[1] if said[1] is not None else found[1]
    counts = counted(graphs, "users", attrgetter("rows", "matrix.row_counts"), parts, shape[0])
    cuts = user_cuts(model, counts, shape)
    users = regroup(graphs, "users", parts, cuts, shape[1], dtype)
    return Shards(graphs, users, cuts, shape, labels)
