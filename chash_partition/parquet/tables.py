"""Rows of one shard to a Parquet file and back.

All files of a dataset have its schema, but for what evolution adds: a column that came later is missing in
older files and read as nulls.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from xxhash import xxh64_hexdigest

from chash_partition.hashing import hash_keys, partition_ids
from chash_partition.parquet.store import DatasetError, Store
from chash_partition.parquet.version import SHARD, File, shard_folder

__all__ = ["How", "how_written", "read_file", "write_file"]

ROW_GROUP_SIZE = b"chash.row_group_size"  # in a file's
CATEGORIES = b"chash.categories"  # in a field's metadata: those of an ordered category, in their order
PANDAS = b"chash.pandas"  # in a field's metadata: the dtype that pandas is to make of it, if not its own
DICTIONARY = 128 * 1024  # bytes of distinct values after which plain ones are smaller, and faster to write


# ---------------------------------------------------------------------------------------------------- files


def encode(table: pa.Table, **how: Any) -> pa.Buffer:
    """The bytes of a Parquet file."""
    out = pa.BufferOutputStream()
    pq.write_table(table, out, **how)
    return out.getvalue()


class How(NamedTuple):
    """How a file was written, so that another can be written alike.

    Attributes
    ----------
    compression : str
    row_group_size : int or None
        In rows; None for pyarrow's default.
    sorting : tuple of str
        Columns by which its rows are sorted, ascending, nulls last.
    columns : frozenset of str
        What it has.
    """

    compression: str | None = "snappy"
    row_group_size: int | None = None
    sorting: tuple[str, ...] = ()
    columns: frozenset[str] = frozenset()


def how_written(store: Store, file: File) -> How:
    """How a file was written, from its footer."""
    with _blamed(store, file), store.open(file.path) as source:
        footer = pq.ParquetFile(source)
        columns = frozenset(footer.schema_arrow.names)
        size = (footer.metadata.metadata or {}).get(ROW_GROUP_SIZE, b"")
        row_group_size = int(size) if size.isdigit() and 0 < int(size) < 2**31 else None
        if not footer.num_row_groups:
            return How(row_group_size=row_group_size, columns=columns)
        group = footer.metadata.row_group(0)
        codec = group.column(0).compression.lower()
        sorting = tuple(
            group.column(s.column_index).path_in_schema
            for s in group.sorting_columns
            if not s.descending and not s.nulls_first
        )
        return How("none" if codec == "uncompressed" else codec, row_group_size, sorting, columns)


def write_file(store: Store, folder: str, shard: int, table: pa.Table, how: How) -> File:
    """Write rows of a shard, sorted, to a new file, which no version names yet."""
    options: dict[str, Any] = {}
    if how.sorting:
        table = table.take(order_of(table, how.sorting))
        order = [(name, "ascending") for name in how.sorting]
        options["sorting_columns"] = pq.SortingColumn.from_ordering(table.schema, order, "at_end")
    if how.row_group_size is not None:
        metadata = {**(table.schema.metadata or {}), ROW_GROUP_SIZE: str(how.row_group_size).encode()}
        table = table.replace_schema_metadata(metadata)
        options["row_group_size"] = how.row_group_size
    content = encode(
        table,
        compression=how.compression or "none",
        write_page_index=True,
        dictionary_pagesize_limit=DICTIONARY,
        **options,
    )
    path = f"{shard_folder(folder, shard)}/{uuid.uuid4().hex}.parquet"
    store.put(path, content)
    return File(path, table.num_rows, content.size, xxh64_hexdigest(memoryview(content)))


def read_file(
    store: Store,
    file: File,
    schema: pa.Schema,
    columns: Sequence[str],
    expression: pc.Expression | None = None,
    rows: Callable[[pa.Table], np.ndarray] | None = None,
    needed: Sequence[str] = (),
) -> pa.Table:
    """The columns of a file, in the dataset's schema.

    Parameters
    ----------
    store : Store
    file : File
    schema : pyarrow.Schema
        The dataset's.
    columns : sequence of str
    expression : pyarrow.compute.Expression, optional
        Only row groups whose statistics allow it are read, and of those the rows for which it is true.
    rows : callable, optional
        Takes the columns `needed` and returns which rows to read, as booleans; the other columns are read
        only if there is one. `expression` is then used for row groups alone.
    needed : sequence of str
        Columns that `expression` or `rows` looks at.

    Raises
    ------
    DatasetError
        If the file is gone, or is not a Parquet file of that schema.
    """
    with _blamed(store, file), store.open(file.path) as source:
        if expression is None:
            parquet = pq.ParquetFile(source)
            groups = list(range(parquet.num_row_groups))
        else:
            parquet, groups = _pruned(source, expression)
        return _read(parquet, groups, schema, columns, expression, rows, needed)


@contextmanager
def _blamed(store: Store, file: File) -> Iterator[None]:
    """What goes wrong in here is the file's fault."""
    try:
        yield
    except FileNotFoundError:
        raise DatasetError(
            f"{store.full(file.path)} is gone: if a later version has replaced it, vacuum has removed it "
            f"since this one was read; read the dataset anew. If not, see ShardedDataset.verify()"
        ) from None
    except DatasetError as error:
        raise DatasetError(f"{store.full(file.path)}: {error}") from None
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"{store.full(file.path)} cannot be read ({error}): ShardedDataset.verify() says what is damaged"
        ) from error


def read_files(
    store: Store,
    files: Sequence[File],
    schema: pa.Schema,
    columns: Sequence[str],
    expression: pc.Expression | None = None,
    needed: Sequence[str] = (),
) -> pa.Table:
    """The rows of several files, one after the other; see `read_file`."""
    none = pa.schema([schema.field(name) for name in columns]).empty_table()
    tables = [read_file(store, file, schema, columns, expression, None, needed) for file in files]
    return pa.concat_tables([none, *tables])


def _read(
    parquet: pq.ParquetFile,
    groups: list[int],
    schema: pa.Schema,
    columns: Sequence[str],
    expression: pc.Expression | None,
    rows: Callable[[pa.Table], np.ndarray] | None,
    needed: Sequence[str],
) -> pa.Table:
    def read(groups: Sequence[int], names: Iterable[str]) -> pa.Table:
        wanted = [name for name in schema.names if name in set(names)]
        table = parquet.read_row_groups(groups, [name for name in wanted if name in there], use_threads=False)
        if not table.num_columns:  # that has no rows, whatever the file has
            count = sum(parquet.metadata.row_group(group).num_rows for group in groups)
            table = pa.table({"": pa.nulls(count)})
        return conform(table, pa.schema([schema.field(name) for name in wanted]))

    there = set(parquet.schema_arrow.names)
    if rows is None:
        table = read(groups, {*columns, *needed})
    else:
        table = read(groups, needed)
        mask = rows(table)
        if not mask.any():
            return pa.schema([schema.field(name) for name in columns]).empty_table()
        return read(groups, columns).filter(pa.array(mask))
    return (table if expression is None else table.filter(expression)).select(list(columns))


def order_of(table: pa.Table, names: Sequence[str]) -> pa.Array:
    """Where each row comes from in ascending order of some columns, nulls last; equal ones as they are."""
    keys = [table.column(name) for name in names]
    keys = [key.cast(key.type.value_type) if pa.types.is_dictionary(key.type) else key for key in keys]
    by = pa.table(keys, names=list(map(str, range(len(keys)))))
    return pc.sort_indices(by, sort_keys=[(name, "ascending") for name in by.column_names])


def _pruned(source: Any, expression: pc.Expression) -> tuple[pq.ParquetFile, list[int]]:
    """The row groups whose statistics say that there may be rows for which the expression is true."""
    fragment = ds.ParquetFileFormat().make_fragment(source)
    try:
        groups = [
            group.id
            for group in fragment.subset(filter=expression, schema=fragment.physical_schema).row_groups
        ]
    except (pa.ArrowException, KeyError):  # a column that came later, or had no values then
        groups = list(range(fragment.num_row_groups))
    return pq.ParquetFile(source, metadata=fragment.metadata), groups


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in this schema: columns in its order, nulls where it has more, types cast where nothing is
    lost.

    Raises
    ------
    DatasetError
        If a column cannot be cast, naming it.
    """
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        try:
            columns.append(column if column.type == field.type else cast(column, field.type))
        except (pa.ArrowException, ValueError) as error:
            raise DatasetError(
                f"column {field.name!r} is {column.type}, and cannot be made {field.type}, as the dataset "
                f"has it: {error}"
            ) from None
    return pa.table(columns, schema=schema)


def cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column in another type of its family, if no value changes."""
    if pa.types.is_dictionary(kind):
        if pa.types.is_dictionary(column.type):
            chunks = [
                pa.DictionaryArray.from_arrays(
                    chunk.indices.cast(kind.index_type),
                    cast(pa.chunked_array([chunk.dictionary]), kind.value_type).combine_chunks(),
                    ordered=kind.ordered,
                )
                for chunk in column.chunks
            ]
            return pa.chunked_array(chunks, kind)
        return cast(column, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_dictionary(column.type):
        return cast(column.cast(column.type.value_type), kind)
    if family(column.type) != family(kind) and not pa.types.is_null(column.type):
        raise ValueError("they are of different kinds")
    return column.cast(kind)


FAMILIES: list[tuple[str, tuple[Callable[[pa.DataType], bool], ...]]] = [
    ("number", (pa.types.is_integer, pa.types.is_floating)),
    ("text", (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    ("bytes", (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)),
    ("date", (pa.types.is_date,)),
    ("time", (pa.types.is_time,)),
    ("duration", (pa.types.is_duration,)),
    ("decimal", (pa.types.is_decimal,)),
    ("nested", (pa.types.is_nested,)),
]


def family(kind: pa.DataType) -> str:
    """Types of one family hold values that can be equal; each other type is one of its own."""
    if pa.types.is_timestamp(kind):
        return f"timestamp {kind.tz or ''}"
    return next((name for name, tests in FAMILIES if any(test(kind) for test in tests)), str(kind))


# --------------------------------------------------------------------------------------------------- schemas


def checked_schema(schema: pa.Schema, on: Sequence[Hashable]) -> pa.Schema:
    """The schema, if a dataset can have it.

    Raises
    ------
    DatasetError
        Naming the column that no Parquet file can hold, or that has a name of ours.
    """
    for name in schema.names:
        if name.casefold() == SHARD:
            raise DatasetError(
                f"column {name!r} has the name that shards' folders have, by which engines know them: "
                f"rename it"
            )
        if schema.names.count(name) > 1:
            raise DatasetError(f"column {name!r} is there more than once: give each a name of its own")
    if missing := [name for name in on if name not in schema.names]:
        raise DatasetError(f"key column {missing[0]!r} is not among the columns {schema.names}")
    for field in schema:
        try:
            encode(pa.schema([field]).empty_table())
        except (pa.ArrowException, NotImplementedError) as error:
            raise DatasetError(
                f"column {field.name!r} of type {field.type} cannot be in a Parquet file ({error}): cast it "
                f"first"
            ) from None
    return schema


def nullable(field: pa.Field) -> pa.Field:
    """The field of a column that may have nulls where numpy has none: of an integer or a bool."""
    if PANDAS in (field.metadata or {}) or not (
        pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)
    ):
        return field
    name = (
        "boolean" if pa.types.is_boolean(field.type) else str(field.type).replace("i", "I").replace("u", "U")
    )
    return field.with_metadata({**(field.metadata or {}), PANDAS: name.encode()})


def evolved(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """The schema of a dataset to which rows of another schema are added.

    Columns that are new come last, and nulls are read where rows have none of a column.

    Raises
    ------
    DatasetError
        If a column has a type that the dataset's cannot hold, naming it.
    """
    for field in new:
        if field.name in old.names and not _fits(field.type, old.field(field.name).type):
            raise DatasetError(
                f"column {field.name!r} is {field.type} here and {old.field(field.name).type} in the "
                f"dataset: cast it first"
            )
    for field in new:
        if field.name in old.names and _categories(field) != _categories(old.field(field.name)):
            raise DatasetError(
                f"column {field.name!r} is an ordered category of other categories in the dataset: give it "
                f"those"
            )
    kept = [field if field.name in new.names else nullable(field) for field in old]
    fields = [*kept, *(nullable(field) for field in new if field.name not in old.names)]
    for i, field in enumerate(fields):
        if pa.types.is_null(field.type) and field.name in new.names:  # had no value so far
            fields[i] = new.field(field.name)
        elif field.name in new.names and PANDAS in (new.field(field.name).metadata or {}):
            fields[i] = nullable(field)
    return pa.schema(fields, old.metadata)


def _categories(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(CATEGORIES)


def _fits(kind: pa.DataType, into: pa.DataType) -> bool:
    """Whether each value of a type is one of the other."""
    if kind == into or pa.types.is_null(kind) or pa.types.is_null(into):
        return True
    if pa.types.is_dictionary(kind) or pa.types.is_dictionary(into):
        inside = [k.value_type if pa.types.is_dictionary(k) else k for k in (kind, into)]
        return _fits(*inside)
    if family(kind) == family(into) in ("text", "bytes"):
        return True
    for alike in (pa.types.is_signed_integer, pa.types.is_unsigned_integer, pa.types.is_floating):
        if alike(kind) and alike(into):
            return bool(kind.bit_width <= into.bit_width)
    unsigned_into_signed = pa.types.is_unsigned_integer(kind) and pa.types.is_signed_integer(into)
    return bool(unsigned_into_signed and kind.bit_width < into.bit_width)


def united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for what several blocks of a frame turned out to be: of the same columns, by their types."""

    def both(a: pa.Field, b: pa.Field) -> pa.Field:
        if a.type == b.type or pa.types.is_null(b.type):
            return a
        if pa.types.is_null(a.type):
            return b
        if pa.types.is_dictionary(a.type) and pa.types.is_dictionary(b.type):
            inside = both(pa.field(a.name, a.type.value_type), pa.field(a.name, b.type.value_type)).type
            return a.with_type(pa.dictionary(pa.int32(), inside, a.type.ordered and b.type.ordered))
        try:
            merged = pa.unify_schemas(
                [pa.schema([a.remove_metadata()]), pa.schema([b.remove_metadata()])],
                promote_options="permissive",
            )
        except pa.ArrowException as error:
            raise DatasetError(
                f"column {a.name!r} is {a.type} in one partition and {b.type} in another ({error}): give it "
                f"one dtype first"
            ) from None
        return merged.field(0).with_metadata(a.metadata)

    names = schemas[0].names
    return pa.schema([reduce(both, [schema.field(name) for schema in schemas]) for name in names])


def is_open(kind: pa.DataType) -> bool:
    """Whether a type says nothing of the values that may come."""
    return bool(pa.types.is_null(kind.value_type if pa.types.is_dictionary(kind) else kind))


def in_shard(table: pa.Table, on: Sequence[Hashable], npartitions: int, seed: int, shard: int) -> None:
    """Nothing, if all rows are of that shard.

    Raises
    ------
    DatasetError
    """
    shards = partition_ids(hash_keys(table.select(list(on)), seed=seed), npartitions)
    if len(wrong := np.flatnonzero(shards != shard)):
        raise DatasetError(
            f"shard {shard} has {len(wrong):,} rows whose keys belong elsewhere, the first (row {wrong[0]}) "
            f"to {shards[wrong[0]]}: place the rows with chash_repartition before they are written"
        )
