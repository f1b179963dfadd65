"""`read_interactions`: one entry for every source of interactions."""

import codecs
import errno
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.frames import array_columns, frame_columns, matrix_columns, parquet_columns
from rgals.datasets.ids import Coded, IdMap, encode
from rgals.datasets.interactions import Columns, Interactions, build, check_options
from rgals.datasets.layout import open_bytes
from rgals.datasets.lines import gathered, is_lists, pairs
from rgals.datasets.text import read_text
from rgals.files.archive import UNREADABLE
from rgals.matrix.validate import MAX_INDEX, as_csr, is_frame
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import FileFormatError, InputError, InputTypeError, ParameterError

_PARQUET = b"PAR1"
FORMS = ("auto", "table", "jsonl", "lists")
# What reads files that are none of interactions; rgals takes the frame.
_READERS = {"pandas.read_excel": ".xlsx .xls .xlsm .ods", "pandas.read_feather": ".feather .arrow .ipc"}
_READERS |= {"pandas.read_hdf": ".h5 .hdf .hdf5", "pandas.read_orc": ".orc", "pandas.read_stata": ".dta"}
_READERS |= {"pandas.read_spss": ".sav", "numpy.load": ".npy", "scipy.io.loadmat": ".mat"}
_READERS |= {"scipy.io.mmread": ".mtx"}
_OTHERS = ".pkl .pickle .joblib .zip .7z .rar .tar .tgz .zst .db .sqlite .pdf"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
# Of npz files: key, kinds of dtype that it may have.
_KINDS = {"user": "iu", "item": "iu", "rating": "fiub", "timestamp": "iufM", "split": "iub"}
_ID_KEYS = [f"{side}_{key}" for side in ("user", "item") for key in ("labels", "text", "offsets", "integer")]
_SPARSE = ("indptr", "indices", "data", "shape", "format")


def read_interactions(
    source: Any,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    value: str | int | None = "auto",
    timestamp: str | int | None = "auto",
    split: str | int | None = "auto",
    min_value: float | None = None,
    binarize: bool | None = None,
    dislike_below: float | None = None,
    duplicates: str = "sum",
    delimiter: str | None = None,
    header: bool | None = None,
    encoding: str = "utf-8",
    engine: str = "auto",
    form: str = "auto",
) -> Interactions:
    r"""Read who interacted with what into a matrix users x items.

    Parameters
    ----------
    source : path, DataFrame, arrow table, tuple of arrays, or sparse matrix
        A file: npz (arrays ``user``, ``item`` and optionally ``rating``, ``timestamp``, ``split``; also what
        `Interactions.save` or `scipy.sparse.save_npz` wrote), parquet (needs pyarrow), or text: csv, tsv,
        MovieLens ``::``, RecBole's ``.inter`` and the like, jsonl (a JSON object a line), or LightGCN's lists
        (a user and all its items a line), plain or packed with gzip, bzip2 or xz. Empty lines of text are
        skipped; a line of nothing but spaces or delimiters is an error. A name that ends in what is read
        otherwise (``.xlsx``) is refused with the line that would be right.
        Or a pandas or polars DataFrame, pyarrow Table, ``(users, items[, values[, timestamps]])``, a matrix.
    user, item : str or int, optional
        Column by name or by position from 0. By default a column with a usual name (``user_id``,
        ``movieId``, ``asin`` ...), in a table without names the first and the second column.
    value, timestamp, split : str, int or None, default "auto"
        The same for the weight, the time and a given split (0 train, 1 test, 2 validation). ``"auto"`` uses
        a column with a usual name (``rating``, ``count`` ...), in a table without names the third and the
        fourth column if they hold numbers. None: do not read one; every value is then 1.
    min_value : float, optional
        Keep interactions whose value is at least this. Applied after duplicates are merged.
    binarize : bool, optional
        Set every kept value to 1. Default: where there is a ``min_value``, which makes ratings positives.
    dislike_below : float, optional
        Values below this become dislikes, of value -1: 3 for stars, 0 for thumbs of -1 and 1, 1 for those of
        0 and 1. Others are kept as ``min_value`` says, which must not be less. See `rgals.IALS`.
    duplicates : {"sum", "last", "max", "error"}, default "sum"
        What several rows with the same user and item become. "last" is the latest by timestamp, or the last
        of the file without. The merged timestamp is the latest, the merged split is training if any is.
    delimiter : str, optional
        One character or ``"::"``; found from the first lines by default.
    header : bool, optional
        Whether the first line holds names; found by default: it does if columns are asked for by name, if
        two fields are usual names, or if it holds no number and the line below does.
    encoding : str, default "utf-8"
        Of a text file.
    engine : {"auto", "pyarrow", "python"}, default "auto"
        How text is read; all give the same result. "auto" takes pyarrow where it is installed; what that
        refuses is read by Python's csv module, which names the line of an error. "numpy" means "python".
    form : {"auto", "table", "jsonl", "lists"}, default "auto"
        Of a text file. By default lines that begin with ``{`` are jsonl, and lines of integers are lists if
        they are of different lengths and each begins with another user.

    Returns
    -------
    Interactions
        ``matrix`` (csr_array of float32), ``user_ids`` and ``item_ids`` (sorted labels), ``timestamp`` and
        ``split`` aligned with ``matrix.data``. Times are integers or other numbers as they are, and dates in
        any usual form (ISO 8601 with or without a zone, ``31.01.2024``, ``1/31/2024``, ``Jan 31, 2024``) as
        nanoseconds since 1970; where no date of the column tells the day from the month, it is refused. Ids
        are integers where all are plain ones, else strings. Values of 0 are no interaction; users and items
        without any are left out.

    Raises
    ------
    FileFormatError
        The file cannot be understood; the message names the file, for text also the line.
    InputError
        A column or a value is missing, NaN, infinite or negative.
    InputTypeError
        The source is of a type that cannot be read.
    MissingDependencyError
        A parquet file without pyarrow.
    OSError
        The file does not exist or may not be read.
    ParameterError
        A column of what has none, or an option that there is not.

    Examples
    --------
    >>> import os, tempfile
    >>> from rgals.datasets import read_interactions
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "ratings.csv")
    ...     with open(path, "w") as file:
    ...         n = file.write("userId,movieId,rating\n7,10,5\n7,20,1\n9,10,4\n")
    ...     data = read_interactions(path, min_value=3)
    >>> data.user_ids, data.item_ids
    (array([7, 9]), array([10]))
    >>> data.matrix.toarray()
    array([[1.],
           [1.]], dtype=float32)
    """
    check_options(min_value, binarize, duplicates, dislike_below)
    check_choice("engine", engine, ("auto", "pyarrow", "numpy", "python"))
    check_choice("form", form, FORMS)
    check_choice("header", header, (None, True, False))
    wanted = {"user": user, "item": item, "value": value, "timestamp": timestamp, "split": split}
    text = {"delimiter": delimiter, "header": header, "encoding": encoding}
    columns = _columns(source, wanted, engine, form, text)
    for role in ("value", "timestamp", "split"):
        if wanted[role] is None:
            setattr(columns, role, None)
    options = {"min_value": min_value, "binarize": binarize, "dislike_below": dislike_below}
    return build(columns, duplicates=duplicates, **options)


def _columns(source: Any, wanted: dict[str, Any], engine: str, form: str, text: dict[str, Any]) -> Columns:
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        kind = form_of(path, wanted, form, text)
        if kind == "parquet":
            return parquet_columns(path, wanted)
        if kind == "npz":
            return _npz(path)
        if kind == "table":
            return read_text(path, wanted, engine, **text)
        return gathered(partial(pairs, form=kind, wanted=wanted, encoding=text["encoding"]), [path])
    if sp.issparse(source):
        return matrix_columns(_unnamed(source, wanted))
    if is_frame(source):
        return frame_columns(source, wanted, "the table")
    if isinstance(source, tuple | list):
        return array_columns(_unnamed(source, wanted), wanted)
    arrays = "arrays (users, items[, values[, timestamps]]) or a sparse matrix"
    raise InputTypeError(f"give a path, a DataFrame, an arrow table, {arrays}, not {type(source).__name__}")


def form_of(path: Path, wanted: dict[str, Any], form: str, text: dict[str, Any]) -> str:
    """What a file is: "parquet", "npz" or one of `FORMS`; what is not read here is refused."""
    with open(path, "rb") as file:
        start = file.read(8)
    if start.startswith(_PARQUET):
        return "parquet"
    if path.suffix == ".npz" or (start.startswith(_ZIP) and _holds_arrays(path)):
        _unnamed(path, wanted)
        return "npz"
    suffix = path.suffix.lower()
    reader = next((reader for reader, ends in _READERS.items() if suffix in ends.split()), None)
    if reader or suffix in _OTHERS.split():
        line = f'read_interactions({reader}("{path}"))' if reader else "its content as csv, jsonl or parquet"
        raise FileFormatError(f"{path}: files of the kind {suffix} are not read here; give {line}")
    with open_bytes(path) as packed:
        first = packed.read(1 << 10).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if suffix == ".json" and first == b"[":
        advice = f'give read_interactions(pandas.read_json("{path}"))'
        raise FileFormatError(f"{path} is one JSON document, not a line for each interaction; {advice}")
    if form == "jsonl" or (form == "auto" and first == b"{"):
        return "jsonl"
    said = text["delimiter"] not in (None, " ", "\t") or text["header"] or wanted["user"] is not None
    if form == "lists" or (form == "auto" and not said and is_lists(path, text["encoding"])):
        _unnamed(path, wanted)
        return "lists"
    return "table"


def _unnamed(source: Any, wanted: dict[str, Any]) -> Any:
    """A source of which no column can be chosen; a `ParameterError` where one is asked for."""
    for role, column in wanted.items():
        if column not in (None, "auto"):
            what = source if isinstance(source, Path) else f"a {type(source).__name__}"
            raise ParameterError(role, column, f"{what} has no columns to choose from; leave it out")
    return source


# ------------------------------------ npz: checked before anything is loaded, never with pickle


def _array(archive: zipfile.ZipFile, key: str, path: Path) -> np.ndarray:
    """A member, once the shape and dtype that it declares are checked against its stored size."""
    info = archive.getinfo(f"{key}.npy")
    with archive.open(info) as member:
        major, _ = np.lib.format.read_magic(member)
        if major > 2:
            raise FileFormatError(f"{path}: {key} is stored in npy version {major}, which is not supported")
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        needed = member.tell() + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise FileFormatError(f"{path}: {key} holds Python objects; only plain numbers are read")
    if needed != info.file_size:
        problem = f"which needs {needed} bytes, but {info.file_size} are stored"
        raise FileFormatError(f"{path}: {key} declares shape {shape} of {dtype}, {problem}")
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _refuse_hidden(archive: zipfile.ZipFile, path: Path) -> None:
    """Members must lie one behind the other: a damaged directory must not make an array disappear."""
    assert archive.fp is not None
    end, gaps = 0, []
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        gaps.append(info.header_offset - end)
        archive.open(info).close()  # compares the name in the directory with that before the data
        archive.fp.seek(info.header_offset + 26)  # lengths of the name and of the rest of the local header
        end = info.header_offset + 30 + sum(struct.unpack("<HH", archive.fp.read(4))) + info.compress_size
    if not all(0 <= gap <= 24 for gap in (*gaps, archive.start_dir - end)):  # sizes may be behind the data
        raise FileFormatError(f"{path} is damaged: the members of the archive do not lie side by side")


def _load(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names):
            raise FileFormatError(f"{path}: a member occurs twice")
        _refuse_hidden(archive, path)
        keys = [name.removesuffix(".npy") for name in names if name.endswith(".npy")]
        if {"user", "item"} <= set(keys):
            wanted = [key for key in (*_KINDS, *_ID_KEYS) if key in keys]
        elif set(_SPARSE) <= set(keys):
            wanted = list(_SPARSE)
        else:
            needed = "the arrays user and item (and may hold rating, timestamp, split)"
            matrix = f"a matrix written by scipy.sparse.save_npz; it holds: {', '.join(keys) or 'nothing'}"
            raise FileFormatError(f"{path} needs {needed}, or {matrix}")
        arrays = {key: _array(archive, key, path) for key in wanted}
    for key in (key for key in _KINDS if key in arrays):
        array, kinds = arrays[key], _KINDS[key]
        if array.dtype.kind not in kinds:
            what = "numbers" if "f" in kinds else "integers"
            raise FileFormatError(f"{path}: {key} must hold {what}, not {array.dtype}")
        if array.ndim != 1 or array.shape != arrays["user"].shape:
            advice = f"all arrays must be as long as user, {arrays['user'].shape}"
            raise FileFormatError(f"{path}: {key} has shape {array.shape}; {advice}")
    return arrays


def _holds_arrays(path: Path) -> bool:
    """Whether a file is a zip archive of npy members, whatever its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def _npz(path: Path) -> Columns:
    """Columns of a npz in the project's form, or of a matrix that scipy wrote."""
    try:
        arrays = _load(path)
        matrix = as_csr(sp.load_npz(path), name=str(path), dislikes=True) if "indptr" in arrays else None
    except FileFormatError:
        raise
    except (*UNREADABLE, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise FileFormatError(f"{path} is no readable npz file: {error}") from error

    if matrix is not None:
        return matrix_columns(matrix)

    def where(k: int) -> str:
        return f"{path}, row {k} (user {arrays['user'][k]}, item {arrays['item'][k]})"

    if len(arrays["user"]) == 0:
        raise FileFormatError(f"{path} holds no rows")
    user, item = (_side(arrays, side, path, where) for side in ("user", "item"))
    value, timestamp, split = (arrays.get(key) for key in ("rating", "timestamp", "split"))
    return Columns(*user, *item, value, timestamp, split, where)


def _side(arrays: dict[str, np.ndarray], side: str, path: Path, where: Callable[[int], str]) -> Coded:
    """Codes and labels of the users or of the items."""
    codes, labels = arrays[side], None
    if f"{side}_labels" in arrays or f"{side}_text" in arrays:
        try:
            labels = IdMap.from_arrays(arrays, f"{side}_", side).labels
        except InputError as error:
            raise FileFormatError(f"{path}: {error}") from error
    limit = MAX_INDEX if labels is None else len(labels) - 1
    bad = np.flatnonzero((codes < 0) | (codes > limit))
    if len(bad):
        raise FileFormatError(f"{where(int(bad[0]))}: the {side} is outside 0..{limit}")
    codes = codes.astype(np.int64)
    return encode(codes) if labels is None else (codes, labels)
