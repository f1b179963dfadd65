"""`read_interactions`: interactions from a file, a frame, arrays or a matrix."""

import codecs
import io
import os
from functools import partial
from pathlib import Path
from typing import Any

import scipy.sparse as sp

from rgals.datasets import frames
from rgals.datasets.columns import is_frame
from rgals.datasets.interactions import Columns, Interactions, build, check_rules
from rgals.datasets.layout import known_encoding, open_bytes
from rgals.datasets.text import gathered, is_lists, pairs, read_text
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import FileFormatError, InputTypeError, ParameterError

FORMS = ("auto", "table", "jsonl", "lists")
# Functions that read other kinds of files; `read_interactions` takes the frame or matrix that they return.
_READERS = {"pandas.read_excel": ".xlsx .xls .xlsm .ods", "pandas.read_feather": ".feather .arrow .ipc"}
_READERS |= {"pandas.read_hdf": ".h5 .hdf .hdf5", "pandas.read_orc": ".orc", "pandas.read_stata": ".dta"}
_READERS |= {"pandas.read_spss": ".sav", "numpy.load": ".npy", "scipy.io.loadmat": ".mat"}
_READERS |= {"scipy.io.mmread": ".mtx"}
_UNREADABLE = ".pkl .pickle .joblib .zip .7z .rar .tar .tgz .zst .db .sqlite .pdf"


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
        skipped; a line of nothing but spaces or delimiters is an error. Files of other kinds, told by their
        names (``.xlsx``), are refused with the line that reads them.
        Or a pandas or polars DataFrame, pyarrow Table, ``(users, items[, values[, timestamps]])``, a matrix.
    user, item : str or int, optional
        Column by name or by position from 0. By default a column with a usual name (``user_id``,
        ``movieId``, ``asin`` ...), in a table without names the first and the second column.
    value, timestamp, split : str, int or None, default "auto"
        Likewise the column of the weight, the time and a given split (0 train, 1 test, 2 validation).
        ``"auto"`` uses a column with a usual name (``rating``, ``count`` ...), in a table without names the
        third and the fourth column if they hold numbers. None reads no such column; every value is then 1.
    min_value : float, optional
        Keep interactions whose value is at least this. Applied after duplicates are merged.
    binarize : bool, optional
        Set every kept value to 1. Default: True if ``min_value`` is given, which makes ratings positives.
    dislike_below : float, optional
        Values below this become dislikes, of value -1: 3 for stars, 0 for thumbs of -1 and 1, 1 for those of
        0 and 1. Others are kept as ``min_value`` says, which must not be less. See `rgals.IALS`. Where it is
        above 0, each row is judged before duplicates are merged: a dislike then takes 1 from a sum.
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
        How tables of text are read; all give the same result. "auto" uses pyarrow if it is installed. What
        pyarrow refuses is read by Python's csv module, and errors name the line. "numpy" means "python".
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
        A column is asked for of a source without named columns, or an option is unknown.

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
    rules = check_rules(min_value, binarize, duplicates, dislike_below)
    check_choice("engine", engine, ("auto", "pyarrow", "numpy", "python"))
    check_choice("form", form, FORMS)
    check_choice("header", header, (None, True, False))
    wanted = {"user": user, "item": item, "value": value, "timestamp": timestamp, "split": split}
    text = {"delimiter": delimiter, "header": header, "encoding": encoding}
    columns = _columns(source, wanted, engine, form, text)
    for role in ("value", "timestamp", "split"):
        if wanted[role] is None:
            setattr(columns, role, None)
    return build(columns, rules)


def _columns(source: Any, wanted: dict[str, Any], engine: str, form: str, text: dict[str, Any]) -> Columns:
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        kind = form_of(path, wanted, form, text)
        if kind == "parquet":
            ((columns, _),) = frames.parquet_parts(path, wanted)
            return frames.columns_of(columns, str(path))
        if kind == "npz":
            return frames.read_npz(path)
        if kind == "table":
            return read_text(path, wanted, engine, **text)
        return gathered(partial(pairs, form=kind, wanted=wanted, encoding=text["encoding"]), [path])
    if is_frame(source):
        return frames.frame_columns(source, wanted, "the table")
    if isinstance(source, tuple | list):
        return frames.array_columns(_unnamed(source, wanted), wanted)
    if sp.issparse(source):
        return frames.matrix_columns(_unnamed(source, wanted))
    arrays = "arrays (users, items[, values[, timestamps]]) or a sparse matrix"
    made = next((f"; give its .{way}()" for way in ("collect", "read_all", "df") if hasattr(source, way)), "")
    what = f"{arrays}, not {type(source).__name__}{made}"  # a lazy frame, batches of arrow, a query of DuckDB
    raise InputTypeError(f"give a path, a DataFrame, an arrow table, {what}")


def form_of(path: Path, wanted: dict[str, Any], form: str, text: dict[str, Any]) -> str:
    """The form of a file: "parquet", "npz" or one of `FORMS`; other kinds of files are refused."""
    if path.is_dir():
        line = "rgals.matrix.convert makes a store of the files of a folder, open_matrix opens one"
        raise IsADirectoryError(f"{path} is a folder, not a file; {line}")
    with open_bytes(path) as file:
        start, is_plain = file.read(1 << 10), isinstance(file, io.BufferedReader)
    if start.startswith(b"PAR1"):
        if not is_plain:
            raise FileFormatError(f"{path} is a packed parquet file; unpack it first")
        return "parquet"
    if path.suffix == ".npz" or frames.holds_arrays(path):
        _unnamed(path, wanted)
        return "npz"
    suffix = path.suffix.lower()
    reader = next((reader for reader, ends in _READERS.items() if suffix in ends.split()), None)
    if reader or suffix in _UNREADABLE.split():
        line = f'read_interactions({reader}("{path}"))' if reader else "its content as csv, jsonl or parquet"
        raise FileFormatError(f"{path}: files of the kind {suffix} are not read here; give {line}")
    encoding, marks = known_encoding(text["encoding"]), (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    if start.startswith(marks) and b"\0" in start and not encoding.startswith(("utf-16", "utf-32")):
        wide = "UTF-32" if start.startswith(codecs.BOM_UTF32_LE) else "UTF-16"  # its mark begins as UTF-16's
        line = f"encoding={wide.lower()!r}, or convert it: iconv -f {wide} -t UTF-8 {path} > NEW"
        raise FileFormatError(f"{path}, line 1: this is {wide}, as its first bytes say; give {line}")
    first = start.decode(encoding, "ignore").lstrip("\ufeff\r\n\t ")[:1]
    called_json = {".json", ".jsonl", ".ndjson"} & {end.lower() for end in path.suffixes}
    if first == "[" and (form == "jsonl" or (form == "auto" and called_json)):
        read = f'read_interactions(pandas.read_json("{path}"'
        line = f"{read})), or of an array a line {read}, lines=True), user=0, item=1)"
        raise FileFormatError(f"{path}: the first line begins a JSON array, not an object; give {line}")
    if form == "jsonl" or (form == "auto" and first == "{"):
        return "jsonl"
    said = text["delimiter"] not in (None, " ", "\t") or text["header"] or wanted["user"] is not None
    if form == "lists" or (form == "auto" and not said and is_lists(path, text["encoding"])):
        _unnamed(path, wanted)
        return "lists"
    return "table"


def _unnamed(source: Any, wanted: dict[str, Any]) -> Any:
    """The ``source``, which has no columns to choose from; a `ParameterError` if one is asked for."""
    for role, column in wanted.items():
        if column not in (None, "auto"):
            what = source if isinstance(source, Path) else f"a {type(source).__name__}"
            raise ParameterError(role, column, f"{what} has no columns to choose from; leave it out")
    return source
