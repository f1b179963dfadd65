"""Tables of recommendations as files: csv, tsv, jsonl, parquet, npz; the same lists give the same bytes."""

import csv
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO, TextIO

import numpy as np

from rgals.datasets.ids import Parts, label_arrays
from rgals.files.archive import write_member
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import InputError, ParameterError
from rgals.runtime.lazy import optional

FORMATS = ("csv", "tsv", "jsonl", "parquet", "npz")
HEADER = ("user", "item", "rank", "score")
_ROW_GROUP = 1 << 18  # rows of a row group of parquet, which are in memory until it is written
lone_surrogate = re.compile("[\ud800-\udfff]").search  # finds what UTF-8 cannot express in a text
SUFFIXES = {f".{kind}": kind for kind in FORMATS} | {".ndjson": "jsonl", ".pq": "parquet"}

#: One batch: labels of users (users,); ids of items and scores, (users, n).
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
Batches = Callable[[], Iterator[Batch]]  # a function, as npz iterates twice


def choose_format(path: str | os.PathLike, given: str | None = None) -> str:
    """The kind of file to write: the given one, or that of the ending of the name."""
    if given is not None:
        return check_choice("format", given, FORMATS)
    suffix = os.path.splitext(str(path))[1].lower()
    if suffix not in SUFFIXES:
        advice = f"end the name in {', '.join(SUFFIXES)} or, to recommend_all, give format="
        raise ParameterError("out", str(path), advice)
    return SUFFIXES[suffix]


def check_writable(kind: str, labels: np.ndarray | None, what: str) -> None:
    """Raise `InputError`, before long work, for labels that this kind of file cannot hold or tell apart."""
    if kind == "parquet":
        pyarrow()
    if kind == "npz" or labels is None or labels.dtype.kind in "iu":
        return
    if labels.dtype == object and kind != "jsonl":
        known: dict[str, Any] = {}
        for label in labels.tolist():
            if known.setdefault(str(label), label) is not label:
                two = f"the integer and the text {str(label)!r} are two {what}s"
                advice = "write npz, or give the model labels of one type"
                raise InputError(f"{two}, which {kind} cannot tell apart; {advice}")
    for label in map(str, labels):
        if lone_surrogate(label):
            raise InputError(f"{what} {label!r} is no text in UTF-8; write npz instead of {kind}")
        if "\r" in label and kind in ("csv", "tsv"):  # before 3.13, Python's writer does not quote it
            raise InputError(f"{what} {label!r} holds the end of a line of {kind}; write parquet or npz")


def pyarrow() -> Any:
    """The package pyarrow, with its writer of parquet."""
    needed = 'writing parquet needs pyarrow: pip install "rgals[parquet]"'
    optional("pyarrow.parquet", needed)
    return optional("pyarrow", needed)


def arrow_labels(labels: np.ndarray) -> Any:
    """Labels as an arrow array of integers or of text."""
    pa = pyarrow()
    if labels.dtype.kind in "iu":
        return pa.array(labels)
    return pa.array([str(label) for label in labels.tolist()], pa.string())


def write(file: BinaryIO, kind: str, batches: Batches, task: Any) -> None:
    """Write the whole table of a `rgals.scoring._streaming.Task`; ``batches()`` starts from the first."""
    if kind == "parquet":
        _write_parquet(file, batches(), task)
    elif kind == "npz":
        _write_npz(file, batches, task)
    else:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        write_text(text, kind, batches(), task.items)
        text.flush()
        text.detach()


def _columns(batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Row in the batch, item, rank and score of every recommendation."""
    _, ids, scores = batch
    found = ids >= 0
    row, place = np.nonzero(found)
    return row, ids[found], (place + 1).astype(np.int32), scores[found]


def write_text(file: TextIO, kind: str, batches: Iterable[Batch], items: np.ndarray) -> None:
    """Write a header and rows, or for "jsonl" a JSON object a line, in which integer ids stay integers."""
    writer = csv.writer(file, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
    if kind != "jsonl":
        writer.writerow(HEADER)
    for batch in batches:
        row, item, rank, score = _columns(batch)
        texts = [f"{value:.6g}" for value in score.tolist()]
        columns = batch[0][row].tolist(), items[item].tolist(), rank.tolist()
        if kind != "jsonl":
            writer.writerows(zip(*columns, texts, strict=True))
            continue
        for record in zip(*columns, map(float, texts), strict=True):
            file.write(json.dumps(dict(zip(HEADER, record, strict=True)), ensure_ascii=False) + "\n")


def _write_parquet(file: BinaryIO, batches: Iterable[Batch], task: Any) -> None:
    pa, names = pyarrow(), arrow_labels(task.items)
    kinds = arrow_labels(task.names(0, 0)).type, names.type, pa.int32(), pa.from_numpy_dtype(task.dtype)
    schema = pa.schema(list(zip(HEADER, kinds, strict=True)))
    tables: list[Any] = [schema.empty_table()]
    with pa.parquet.ParquetWriter(file, schema) as writer:
        for batch in chain(batches, [None]):  # the end
            if batch is not None:
                row, item, rank, score = _columns(batch)
                columns = [arrow_labels(batch[0]).take(pa.array(row)), names.take(pa.array(item))]
                tables.append(pa.table([*columns, pa.array(rank), pa.array(score)], schema=schema))
            if tables and (batch is None or sum(map(len, tables)) >= _ROW_GROUP):
                writer.write_table(pa.concat_tables(tables).combine_chunks(), row_group_size=_ROW_GROUP)
                tables.clear()


def _write_npz(file: BinaryIO, batches: Batches, task: Any) -> None:
    shape = len(task), task.n
    arrays: list[Parts] = [("item", shape, "<i4", (ids for _, ids, _ in batches()))]
    arrays += [("score", shape, task.dtype, (scores for _, _, scores in batches()))]
    users = label_arrays("user_", task.names, len(task))
    items = label_arrays("item_", lambda start, stop: task.items[start:stop], len(task.items))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for array in chain(arrays, users, items):
            write_member(archive, *array)
