"""Frames to tables and back, each column in the dtype that it came from.

What pandas needs for that beyond Arrow's types is in the metadata of a field. The index is left out.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
from dask.dataframe.utils import pyarrow_strings_enabled

from chash_partition.parquet.store import DatasetError
from chash_partition.parquet.tables import CATEGORIES, PANDAS, cast, family

__all__ = ["pandas_of", "schema_of", "table_of"]

ARROW = "arrow"
PANDAS_3 = int(pd.__version__.split(".")[0]) >= 3


def schema_of(meta: pd.DataFrame) -> tuple[pa.Schema, frozenset[str]]:
    """The schema of a frame without rows, and the columns whose types only rows will tell."""
    for label in meta.columns:
        if not isinstance(label, str):
            raise DatasetError(
                f"column label {label!r} is not a str, and Parquet has no other: rename the column"
            )
        if list(meta.columns).count(label) > 1:
            raise DatasetError(f"column {label!r} is there more than once: give each a name of its own")
    open_, fields = [], []
    for field in table_of(meta).schema:
        dtype = meta[field.name].dtype
        if isinstance(dtype, pd.CategoricalDtype) and not _categories_known(dtype):
            if dtype.ordered:
                raise DatasetError(
                    f"column {field.name!r} is an ordered category, and Dask does not know its categories: "
                    f"df.assign(**{{{field.name!r}: df[{field.name!r}].cat.as_known()}}) makes them known"
                )
            field = field.with_type(pa.dictionary(pa.int32(), pa.null()))
        elif isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
            field = field.with_metadata({CATEGORIES: _as_text(dtype.categories)})
        if pa.types.is_null(field.type) or not _categories_known(dtype):
            open_.append(field.name)
        fields.append(field)
    return pa.schema(fields), frozenset(open_)


def _as_text(categories: pd.Index) -> bytes:
    """Categories as an Arrow stream, in base64."""
    column = pa.table({"": pa.Array.from_pandas(categories)})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, column.schema) as stream:
        stream.write_table(column)
    return base64.b64encode(out.getvalue())


def _from_text(text: bytes) -> pd.Index:
    table = pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text))).read_all()
    categories: pd.Index = pd.Index(table.column(0).to_pandas())
    return categories


def _categories_known(dtype: Any) -> bool:
    if not isinstance(dtype, pd.CategoricalDtype):
        return True
    return dtype.categories is not None and "__UNKNOWN_CATEGORIES__" not in list(dtype.categories)


def table_of(frame: pd.DataFrame) -> pa.Table:
    """The columns of a frame as a table; the index is left out.

    Raises
    ------
    DatasetError
        If values of a column are of several kinds.
    """
    arrays, fields = [], []
    for name in frame.columns:
        column = frame[name]
        try:
            array = pa.Array.from_pandas(column)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DatasetError(
                f"column {name!r} of dtype {column.dtype} cannot be in a Parquet file ({error}): cast it "
                f"first"
            ) from None
        kind = array.type
        if pa.types.is_dictionary(kind) and isinstance(column.dtype, pd.CategoricalDtype):
            kind = pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
            chunked = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
            array = cast(chunked, kind)
        mark = _mark(column.dtype)
        arrays.append(array)
        fields.append(pa.field(name, kind, metadata=None if mark is None else {PANDAS: mark}))
    if not fields:
        raise DatasetError("the frame has no columns")
    return pa.table(arrays, schema=pa.schema(fields))


def _mark(dtype: Any) -> bytes | None:
    """What to write down of a dtype so that `pandas_of` gives it back."""
    if isinstance(dtype, pd.ArrowDtype):
        return ARROW.encode()
    if isinstance(dtype, pd.StringDtype):
        return f"string[{dtype.storage}]".encode() if dtype.na_value is pd.NA else None
    masked = isinstance(dtype, pd.api.extensions.ExtensionDtype) and dtype.na_value is pd.NA
    return str(dtype).encode() if masked else None


def pandas_of(table: pa.Table) -> pd.DataFrame:
    """The frame of a table, each column in the dtype that it came from."""
    plain = [field.name for field in table.schema if PANDAS not in (field.metadata or {})]
    frame: pd.DataFrame = table.select(plain).to_pandas(ignore_metadata=True, types_mapper=_strings())
    for field in table.schema:
        if CATEGORIES in (field.metadata or {}):
            categories = _from_text(field.metadata[CATEGORIES])
            codes = categories.get_indexer(frame[field.name].cat.categories)
            if (codes < 0).any():
                raise DatasetError(f"column {field.name!r} has values that are none of its categories")
            frame[field.name] = frame[field.name].cat.set_categories(categories, ordered=True)
        elif pa.types.is_dictionary(field.type) and field.name in plain:
            column = frame[field.name].cat
            if column.categories.empty:  # of objects, which do not go with the categories of other files
                values = pa.table({field.name: pa.nulls(0, field.type.value_type)})
                dtype = values.to_pandas()[field.name].dtype
                frame[field.name] = column.set_categories(pd.Index([], dtype=dtype))
    if len(plain) == table.num_columns:
        return frame
    columns = {name: frame[name] for name in plain}
    for field in table.schema:
        if field.name not in columns:
            dtype = _dtype(field)
            columns[field.name] = pd.Series(dtype.__from_arrow__(table.column(field.name)), dtype=dtype)
    index = pd.RangeIndex(table.num_rows)
    return pd.DataFrame({name: columns[name] for name in table.column_names}, index=index)


def _dtype(field: pa.Field) -> Any:
    mark = field.metadata[PANDAS].decode()
    if mark == ARROW:
        return pd.ArrowDtype(field.type)
    return pd.api.types.pandas_dtype(mark)


def _strings() -> Callable[[pa.DataType], Any] | None:
    """What Dask makes of strings where pandas makes objects."""
    if PANDAS_3 or not pyarrow_strings_enabled():
        return None
    return lambda kind: pd.StringDtype("pyarrow") if family(kind) == "text" else None
