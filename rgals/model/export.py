"""Factors for other programs: npy, parquet, and nearest-neighbour indexes."""

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np

from rgals.files.atomic import atomic_file
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import InputError
from rgals.runtime.lazy import optional
from rgals.scoring._tables import arrow_labels, lone_surrogate, pyarrow
from rgals.scoring._topk import as_factors, check_model

_PART = 1 << 14  # rows of a row group of parquet


def augment_items(items: np.ndarray) -> np.ndarray:
    """Item vectors whose Euclidean distances rank as the inner products do.

    One more column makes all of them equally long: ``q' = (q, sqrt(m^2 - |q|^2))`` with ``m = max |q|``. For
    ``p' = (p, 0)`` then ``|p' - q'|^2 = |p|^2 + m^2 - 2 p . q``, which falls as ``p . q`` rises (Bachrach et
    al., "Speeding up the Xbox recommender system using a Euclidean transformation for inner-product spaces",
    2014).

    Parameters
    ----------
    items : array of shape (N, K)

    Returns
    -------
    ndarray, shape (N, K + 1)
        float32 where the items are, else float64.

    Examples
    --------
    >>> import numpy as np
    >>> from rgals.model.export import augment_items
    >>> augment_items(np.array([[3.0, 4.0], [0.0, 3.0]]))
    array([[3., 4., 0.],
           [0., 3., 4.]])
    """
    items, _ = as_factors(items, items, ("items", "items"))
    squares = np.einsum("ij,ij->i", items, items, dtype=np.float64)
    rest = np.sqrt(np.maximum(squares.max(initial=0.0) - squares, 0.0))
    return np.concatenate([items, rest[:, None].astype(items.dtype)], axis=1)


def augment_queries(queries: np.ndarray) -> np.ndarray:
    """Query vectors for `augment_items`: a zero appended.

    Parameters
    ----------
    queries : array of shape (B, K)

    Returns
    -------
    ndarray, shape (B, K + 1)
        As `augment_items` gives items.
    """
    queries, _ = as_factors(queries, queries)
    return np.concatenate([queries, np.zeros((len(queries), 1), queries.dtype)], axis=1)


def export_index(
    model: Any, path: str | os.PathLike | None = None, *, kind: str = "flat", space: str = "ip"
) -> Any:
    """An index of the items for search with faiss.

    Parameters
    ----------
    model : fitted RGALS or SGDRanker
    path : str or path, optional
        Where to write it, for ``faiss.read_index``; atomically.
    kind : {"flat", "hnsw"}, default "flat"
        Exact, or approximate by a graph.
    space : {"ip", "l2"}, default "ip"
        Inner products of the factors; search with ``model.transform(rows)`` or ``model.user_factors_``. Or
        distances of `augment_items`, if inner products are missing; search with `augment_queries` of these.

    Returns
    -------
    faiss.Index
        In float32; entry ``k`` is item ``k``. It knows no filters: ask for more than needed and drop what a
        user has. For exact filters and everybody at once use `rgals.scoring.recommend_all`.

    Raises
    ------
    MissingDependencyError
        faiss is not installed.
    """
    check_model(model)
    check_choice("kind", kind, ("flat", "hnsw"))
    check_choice("space", space, ("ip", "l2"))
    faiss = optional("faiss", 'an index needs faiss: pip install "rgals[index]"')
    items = np.ascontiguousarray(model.item_factors_, np.float32)
    if space == "l2":
        items = augment_items(items)
    metric = faiss.METRIC_INNER_PRODUCT if space == "ip" else faiss.METRIC_L2
    width = items.shape[1]
    index = faiss.IndexFlat(width, metric) if kind == "flat" else faiss.IndexHNSWFlat(width, 32, metric)
    index.add(items)
    if path is not None:
        with atomic_file(path) as file:
            file.write(faiss.serialize_index(index).tobytes())
    return index


def export_factors(model: Any, folder: str | os.PathLike, *, format: str = "npy") -> list[str]:
    """Write the factors of users and items, with their ids, for other programs.

    Parameters
    ----------
    model : fitted RGALS or SGDRanker
    folder : str or path
        Made where it does not exist.
    format : {"npy", "parquet"}, default "npy"
        ``user_factors.npy`` and ``item_factors.npy``, with ``user_ids.npy`` and ``item_ids.npy`` where the
        model has ids (integers, or text of fixed width); or ``users.parquet`` and ``items.parquet`` with the
        columns ``id`` and ``factors``, a list of fixed length. A mixture of integers and text becomes text.

    Returns
    -------
    list of str
        The files.

    Raises
    ------
    InputError
        Two ids would be written alike, such as 1 and "1".
    MissingDependencyError
        parquet without pyarrow.

    Examples
    --------
    >>> import os, tempfile
    >>> from rgals import RGALS
    >>> from rgals.datasets import make_implicit
    >>> from rgals.model.export import export_factors
    >>> model = RGALS(K=8, random_state=0).fit(make_implicit(200, 100, random_state=0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(os.path.basename(path) for path in export_factors(model, folder))
    ['item_factors.npy', 'item_ids.npy', 'user_factors.npy', 'user_ids.npy']
    """
    check_model(model)
    check_choice("format", format, ("npy", "parquet"))
    target = Path(folder)
    model = copy.copy(model)  # one fit, even if another thread refits meanwhile
    if format == "parquet":
        pyarrow()
    ids = {side: _written(side, getattr(model, f"{side}_ids_"), format) for side in ("user", "item")}
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for factors, (side, labels) in zip(model.factors_, ids.items(), strict=True):
        if format == "parquet":
            written.append(target / f"{side}s.parquet")
            _write_parquet(written[-1], factors, np.arange(len(factors)) if labels is None else labels)
            continue
        for name, array in ((f"{side}_factors.npy", factors), (f"{side}_ids.npy", labels)):
            if array is not None:
                written.append(target / name)
                with atomic_file(written[-1]) as file:
                    np.save(file, array, allow_pickle=False)
    return [os.fspath(path) for path in written]


def _written(what: str, ids: Any, format: str) -> Any:
    """Ids as they are written, a mixture of types as text; refuses those that would read as other ids."""
    if ids is None or ids.dtype != object:
        return ids
    # npy needs text of fixed width, which loses NULs at its end.
    texts = np.array([str(label) for label in ids.tolist()], object if format == "parquet" else str)
    known = set(ids.tolist())
    for label, text in zip(ids.tolist(), texts.tolist(), strict=True):
        if text != label and (text in known or isinstance(label, str)):
            problem = f"the {what} {label!r} would be written as {text!r}, which is another id"
            line = f"numpy.savez(FILE, **IdMap(model.{what}_ids_).to_arrays()) keeps them apart"
            raise InputError(f"{problem}; fit the model to ids of one type without NUL at the end, or {line}")
    return texts


def _write_parquet(path: Path, factors: np.ndarray, ids: np.ndarray) -> None:
    pa = pyarrow()
    if ids.dtype.kind not in "iu" and any(map(lone_surrogate, ids.tolist())):
        raise InputError(f"an id is not text that UTF-8 can express; export npy instead of {path.name}")
    flat = pa.array(np.ascontiguousarray(factors).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(flat, factors.shape[1])
    with atomic_file(path) as file:
        table = pa.table({"id": arrow_labels(ids), "factors": lists})
        pa.parquet.write_table(table, file, row_group_size=_PART)
