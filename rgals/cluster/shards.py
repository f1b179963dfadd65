"""The shards of a matrix: blocks of its rows and of its columns, read and regrouped on the workers."""

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
from rgals.datasets.columns import IDS
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

_ROW_COST = 32  # cost of a row, beside its interactions, in interactions: balances the blocks
_BLOCK_SIZE = 1 << 20  # interactions of a block
_MIN_BLOCKS, _MAX_BLOCKS = 8, 128  # of a side, whatever the cluster


class Part(NamedTuple):
    """Some rows of the whole matrix; or, before the ids of all parts are known, a table with its own ids."""

    matrix: CSR
    rows: np.ndarray  # their numbers, ascending; of a table, ids of users
    cols: np.ndarray | None = None  # of a table, ids of items; None: the matrix has all columns
    n_marked: int = 0  # of a table: interactions that are marked as a test
    warnings: tuple[str, ...] = ()  # of its reader


@task
def read_table(source: Any, number: int, columns: Any, dtype: Any, dislikes: bool) -> Part:
    """One part of a table: a frame, or a file."""
    with hear() as said:
        if isinstance(source, str):
            try:
                source = read_interactions(source, **wanted_columns(columns))
            except NoRowsError:  # Spark writes such parquet files
                source = ()
        if hasattr(source, "__len__") and not len(source):
            return Part(CSR.empty(0, 0), np.empty(0, np.int64), np.empty(0, np.int64))
        found = _given(source, columns, f"part {number} of X")
    if found.user_ids is None or found.item_ids is None:
        raise InputError("a dask dataframe needs a column of users and one of items; name them in columns=")
    matrix = as_csr(found.matrix, dtype=dtype, dislikes=dislikes)
    return Part(matrix, found.user_ids, found.item_ids, found.n_marked, tuple(said))


def _given(source: Any, columns: Any, what: str) -> Any:
    """`rgals.datasets.given.given`, whose errors name the part."""
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
    """Some users of a store, whose folder the worker reaches by the same path as the client."""
    return open_matrix(path).matrix.slice_rows(start, stop).as_dtype(dtype)


@task
def all_ids(parts: list[np.ndarray], files: bool) -> np.ndarray:
    """The ids of all parts, sorted as a reader sorts them: texts if one of the files has texts."""
    integers = [part.dtype.kind in "iu" for part in parts if len(part)]
    labels, texts = np.empty(0, np.int64), files and not all(integers)
    for part in parts:
        part = part.astype(str) if texts and part.dtype.kind in "iu" else part
        labels = encode(joined(labels, part) if len(labels) else part)[1]
    return labels


def _at(labels: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Positions of ids among those of all parts, which may be texts although these are integers."""
    known = IdMap(labels)
    at = known.index(ids, missing="mark")
    return at if (at >= 0).all() else known.index(ids.astype(str))


@task
def place(part: Part, users: np.ndarray, items: np.ndarray) -> Part:
    """The rows of a table, numbered by the ids of all parts."""
    rows, cols = _at(users, part.rows), _at(items, cast(Any, part.cols)).astype(np.int32)
    order = np.argsort(rows)
    matrix = part.matrix.take_rows(order)
    return Part(replace(matrix, indices=cols[matrix.indices], n_cols=len(items)), rows[order])


@task
def number(chunk: CSR, first: int) -> Part:
    """The rows of a chunk, numbered in the whole array."""
    return Part(chunk, np.arange(first, first + chunk.n_rows))


@task
def turn(matrix: CSR, first: int, n_users: int) -> Part:
    """The transpose of a block of users, without empty rows."""
    turned = matrix.transpose()
    rows = np.flatnonzero(turned.row_counts)
    indptr = np.append(turned.indptr[rows], turned.nnz)
    indices = turned.indices + np.int32(first)
    return Part(replace(turned, indptr=indptr, indices=indices, n_cols=n_users), rows)


@task
def cut(part: Part, cuts: np.ndarray) -> list[Part]:
    """The rows of a part, split by the block that they belong to."""
    ends = np.searchsorted(part.rows, cuts)
    return [Part(part.matrix.slice_rows(a, b), part.rows[a:b]) for a, b in pairwise(ends)]


@task
def merge(pieces: list[Part], first: int, shape: tuple[int, int], dtype: Any) -> CSR:
    """A block from its pieces; values of a pair that occurs in several pieces are added in their order."""
    rows = np.concatenate([piece.rows - first for piece in pieces])
    order = np.argsort(rows, kind="stable")
    found = CSR.stacked([piece.matrix for piece in pieces]).take_rows(order)
    indptr = found.indptr[np.searchsorted(rows[order], np.arange(shape[0] + 1))]
    found = replace(found, indptr=indptr, n_cols=shape[1])
    return as_csr(found.to_scipy(dtype), dtype=dtype, dislikes=True)


@task
def col_counts(matrix: CSR) -> tuple[np.ndarray, np.ndarray]:
    """Columns that have likes, and the number of likes of each."""
    return np.unique(matrix.likes.indices, return_counts=True)


@task
def add_counts(parts: list[tuple[np.ndarray, np.ndarray]], n: int) -> np.ndarray:
    """Number of interactions of each of ``n`` rows or columns."""
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
    """One side of a matrix on the workers, block by block."""

    name: str  # "users" or "items"
    matrices: list[Any]  # futures of `CSR`, with weights for values
    cuts: list[int]  # first row of each block, and the number of all rows
    blocks: list[Any] = field(default_factory=list)  # futures of `rgals.cluster.tasks.Block`
    interaction: float = 0.0  # `rgals.losses.base.Side.interaction`
    coupled: bool = False  # whether it couples the rows
    # `rgals.solvers.als.ALS` reads these two: there are no features, and ridges stay on the workers.
    prior: None = None
    ridge: None = None


@dataclass
class Shards:
    """A matrix as blocks of users on workers; the client holds the margins of users and items."""

    # It stands in for a `CSR` in the rules of losses and in checkpoints, and has the members that these read.

    graphs: Graphs
    users: list[Any]  # futures of `CSR`, one for each block
    cuts: np.ndarray  # first user of each block, and the number of all users
    shape: tuple[int, int]
    labels: tuple[Any, Any]  # ids of users and items, or futures of them
    names: np.ndarray | None = None  # of the columns of a frame
    row_counts: Any = None
    has_dislikes = False  # margins count likes alone

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
        """The same: margins and samples are of the likes already."""
        return self

    @cached_property
    def col_counts(self) -> np.ndarray:
        """Number of interactions of each item."""
        return counted(self.graphs, "items", col_counts, self.users, self.n_cols)

    def weigh(self, values: str) -> Weighting:
        """The weighting of a fit; "auto" is decided by the values of all blocks."""
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
        return Blocks("users", users, self.cuts.tolist()), Blocks("items", items, cuts.tolist(), coupled=True)

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
    """First user of each block. Their number decides the bits of a fit: it follows from the data alone."""
    n_blocks = min(max(int(counts.sum()) // _BLOCK_SIZE, _MIN_BLOCKS), _MAX_BLOCKS)
    n_blocks = min(n_blocks if model.n_blocks is None else model.n_blocks, *shape)
    return pieces(counts, n_blocks, _ROW_COST)


def counted(graphs: Graphs, what: str, count: Any, parts: list[Any], n: int) -> np.ndarray:
    """Number of interactions of each row or column, added over parts, in which ``count`` counts them."""
    found = graphs.each(f"{what}-count", count, parts)
    return graphs.results([graphs.one(f"{what}-counts", add_counts, found, n)])[0]


def regroup(
    graphs: Graphs, what: str, parts: list[Any], cuts: np.ndarray, n_cols: int, dtype: Any
) -> list[Any]:
    """Futures of blocks of rows, merged from parts that have some rows of any block."""
    pieces, blocks = graphs.each(f"{what}-cut", cut, parts, always=(cuts,)), []
    for j, (start, stop) in enumerate(pairwise(cuts.tolist())):
        own = graphs.each(f"{what}-{j}-piece", getitem, pieces, always=(j,))
        blocks.append(graphs.one(f"{what}-{j}", merge, own, start, (stop - start, n_cols), dtype))
    return graphs.submit(blocks)


def shards_of(graphs: Graphs, model: Any, X: Any, dtype: Any, ids: tuple[Any, Any], columns: Any) -> Shards:
    """Shards of a matrix, a dask array or dataframe, or files."""
    options = columns, dtype, takes_dislikes(model)
    if isinstance(X, str | os.PathLike):
        X = open_matrix(X) if Path(X, DESCRIPTION).is_file() else [X]
    if isinstance(X, list | tuple) and len(X) > 0 and all(isinstance(x, str | os.PathLike) for x in X):
        files = [str(path.absolute()) for path in files_of(X)]
        parts, shape, labels = _read_tables(graphs, files, options, ids, files=True)
    elif hasattr(X, "dask") and hasattr(X, "to_delayed"):
        if not isinstance(getattr(X, "ndim", None), int):
            raise InputTypeError(f"give a dask array or dataframe (bags have to_dataframe), not {type(X)}")
        is_array = hasattr(X, "chunks")
        if is_array and (X.ndim != 2 or X.numblocks[1] != 1 or np.isnan(X.shape[1])):
            why = "give two dimensions, the second of known size and in one block: X.rechunk({1: -1})"
            raise InputError(f"X has shape {X.shape} in {X.numblocks} blocks; {why}")
        sources = graphs.track(graphs.client.compute([*np.ravel(X.to_delayed())]))
        if is_array:
            parts, n_rows = _read_chunks(graphs, sources, options)
            shape = n_rows, int(X.shape[1])
            labels = check_labels(*ids, shape)
        else:
            parts, shape, labels = _read_tables(graphs, sources, options, ids, files=False)
    else:
        matrix, labels, names = read(model, X, dtype, *ids, columns)
        cuts = user_cuts(model, matrix.row_counts, matrix.shape)
        spans = list(pairwise(cuts.tolist()))
        if isinstance(X, Store):
            users = graphs.each("users", read_stored, [X.path] * len(spans), *zip(*spans), always=(dtype,))
        else:
            # Arguments of tasks stay with the scheduler; what is scattered would be lost with its worker.
            users = graphs.each("users", copy, [matrix.slice_rows(*span) for span in spans])
        return Shards(graphs, graphs.submit(users), cuts, matrix.shape, labels, names)
    counts = counted(graphs, "users", attrgetter("rows", "matrix.row_counts"), parts, shape[0])
    cuts = user_cuts(model, counts, shape)
    users = regroup(graphs, "users", parts, cuts, shape[1], dtype)
    return Shards(graphs, users, cuts, shape, labels)


def _read_chunks(graphs: Graphs, chunks: list[Any], options: tuple) -> tuple[list[Any], int]:
    """Futures of the `Part` of every chunk of a dask array, and the number of all rows."""
    matrices = graphs.submit(graphs.each("chunks", read_chunk, chunks, range(len(chunks)), always=options))
    sizes = graphs.results(graphs.each("chunks-size", attrgetter("n_rows"), matrices))
    firsts = np.cumsum([0, *sizes]).tolist()
    return graphs.submit(graphs.each("chunks-rows", number, matrices, firsts[:-1])), firsts[-1]


def _read_tables(
    graphs: Graphs, sources: list[Any], options: tuple, ids: tuple[Any, Any], *, files: bool
) -> tuple[Any, ...]:
    """Futures of the `Part` of every table; the shape of the whole matrix; futures of user and item ids."""
    for side, of in zip(IDS, ids, strict=True):
        if of is not None:
            why = f"{side}_ids is in the order of a matrix, which is sorted; these rows are in any order"
            raise InputError(f'{why}; name the column of their ids: columns={{"{side}": NAME}}')
    tables = graphs.submit(graphs.each("parts", read_table, sources, range(len(sources)), always=options))
    sides = {side: graphs.each(f"{side}-ids", attrgetter(side), tables) for side in ("rows", "cols")}
    all_of = [graphs.one(f"{side}-all-ids", all_ids, ids, files) for side, ids in sides.items()]
    users, items = graphs.submit(all_of)
    n_users, n_items = graphs.results(graphs.each("ids-number", len, (users, items)))
    reports = graphs.results(graphs.each("parts-reports", attrgetter("n_marked", "warnings"), tables))
    n_marked, warnings = zip(*reports)
    for line in dict.fromkeys(chain(*warnings)):  # each once, whatever the number of parts
        warn(line)
    warn_of_marks(sum(n_marked), 'leave their rows out, or give columns={"split": None} to read no marks')
    parts = graphs.submit(graphs.each("parts-rows", place, tables, always=(users, items)))
    return parts, (n_users, n_items), (users, items)
