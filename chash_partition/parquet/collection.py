"""Dask DataFrames from shards and to shards."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from dask.dataframe.utils import clear_known_categories

from chash_partition._dask import (
    Blockwise,
    BlockwiseIO,
    Expr,
    PartitionsFiltered,
    Projection,
    Task,
    TaskRef,
    determine_column_projection,
    new_collection,
)
from chash_partition.cluster.live import active_client, known_addresses
from chash_partition.dataframe.corrected import Ours
from chash_partition.dataframe.expressions import Claim, Place
from chash_partition.dataframe.keys import key_columns, keys_of
from chash_partition.dataframe.knowledge import Known, labels
from chash_partition.dataframe.repartition import place, way_of
from chash_partition.hashing import hash_keys
from chash_partition.layout import Layout
from chash_partition.parquet.dataset import ShardedDataset
from chash_partition.parquet.filters import expression_of, shards_left
from chash_partition.parquet.frames import pandas_of, schema_of, table_of
from chash_partition.parquet.home import Home
from chash_partition.parquet.store import DatasetError, Store
from chash_partition.parquet.tables import (
    CATEGORIES,
    How,
    conform,
    in_shard,
    is_open,
    read_file,
    read_files,
    united,
    write_file,
)
from chash_partition.parquet.version import File, Version
from chash_partition.parquet.writing import Mode, begin, finish
from chash_partition.ring import integer

__all__ = ["read_parquet", "to_parquet"]


# ---------------------------------------------------------------------------------------------------- read


def read_parquet(
    path: str | os.PathLike[str],
    columns: list[str] | None = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    roots: Mapping[Any, str] | None = None,
) -> dd.DataFrame:
    """Read a dataset of shards as a placed frame: partition i is shard i.

    Parameters
    ----------
    path : str or path
        As for `ShardedDataset`.
    columns : list of str, optional
        By default all. Without the key columns the frame is not a placed one.
    filters : list of (column, operator, value), or list of such lists, or pyarrow Expression, optional
        Rows for which all of the list are true, or all of one of the lists. ``==`` and ``in`` on the key
        leave only the shards that can have such rows: the partitions of all others are empty and read
        nothing. In the others, row groups are left out by their statistics. Values are compared exactly and
        must be of the column's kind (a Timestamp with a time zone for a column with one). ``in`` finds nulls
        where they are listed, and ``not in`` where they are not; the other operators pass no null.
    storage_options : mapping, optional
        For fsspec.
    roots : mapping of node to str, optional
        For node-local storage, as for `ShardedDataset`.

    Returns
    -------
    dask.dataframe.DataFrame
        Lazy, of the version that is the latest now. Group-bys and merges on the key need no shuffle, and
        ``df.chash.persist()`` reads each shard on its owner.

    Raises
    ------
    DatasetError
        A ValueError: if there is no dataset, it lacks one of the columns, or the filters do not fit them.

    Examples
    --------
    >>> import pandas as pd, dask.dataframe as dd
    >>> from chash_partition import chash_repartition, read_parquet
    >>> df = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1], "x": [1, 2, 3]}), npartitions=1)
    >>> df.pipe(chash_repartition, on="k", npartitions=4).chash.to_parquet("memory://read-example")
    >>> read_parquet("memory://read-example").chash.layout
    Layout(on=k, 4 partitions on 1 node: 4 each, version 0)
    >>> read_parquet("memory://read-example", filters=[("k", "==", 1)]).x.sum().compute()
    np.int64(4)
    """
    dataset = ShardedDataset(path, storage_options, roots=roots)
    version, schema = dataset._now, dataset.schema
    if isinstance(columns, str) or (columns is not None and not all(isinstance(c, str) for c in columns)):
        raise DatasetError(f"columns must be a list of column names, got {columns!r:.200}")
    wanted = list(schema.names if columns is None else columns)
    if not wanted:
        raise DatasetError(f"columns names none: the dataset has {schema.names}")
    if missing := [name for name in wanted if name not in schema.names]:
        raise DatasetError(f"column {missing[0]!r} is not in the dataset, which has {schema.names}")
    if twice := [name for name in wanted if wanted.count(name) > 1]:
        raise DatasetError(f"column {twice[0]!r} is given twice in columns={wanted}")
    expression, left = None, None
    needed: list[str] = []
    if filters is not None and not (isinstance(filters, (list, tuple)) and not filters):
        expression, needed = expression_of(filters, schema)
        left = shards_left(filters, schema, version.layout)
    source = Source(
        dataset._home, version, expression, tuple(needed), None if left is None else frozenset(left)
    )
    return new_collection(Claim(ReadShards(source, wanted)))


@dataclass(frozen=True, eq=False)
class Source:
    """What is read: a version, rows for which an expression is true, and the shards that can have them."""

    home: Home
    version: Version
    expression: pc.Expression | None
    needed: tuple[str, ...]
    shards: frozenset[int] | None

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return (
            "chash_partition.Source",
            self.home.__dask_tokenize__(),
            self.version.commit,
            # Not as it prints, which leaves out the middle of long lists and strings.
            None if self.expression is None else pickle.dumps(self.expression),
            None if self.shards is None else sorted(self.shards),
        )


class ReadShards(Ours, PartitionsFiltered, BlockwiseIO):
    """Partition i is shard i of a version."""

    _parameters = ["source", "wanted", "_partitions"]
    _defaults = {"_partitions": None}

    def __str__(self) -> str:
        return f"ReadShards({self.source.home.store.url!r}, version={self.source.version.number})"

    @functools.cached_property
    def _schema(self) -> pa.Schema:
        schema = self.source.version.schema
        return pa.schema([schema.field(name) for name in self.wanted])

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        try:
            meta = pandas_of(self._schema.empty_table())
            unknown = [
                field.name
                for field in self._schema
                if pa.types.is_dictionary(field.type) and CATEGORIES not in (field.metadata or {})
            ]
            return clear_known_categories(meta, [name for name in unknown if _is_category(meta[name])])
        except Exception as error:  # of metadata that pandas cannot make sense of
            raise DatasetError(
                f"{self.source.home.store.url!r}: pandas has no dtypes for the schema: {error}"
            ) from error

    @property
    def columns(self) -> list[Hashable]:
        return list(self.wanted)

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.source.version.layout.npartitions + 1)

    def _known(self) -> Known | None:
        layout = self.source.version.layout
        return None if self._filtered else Known(layout.on, layout)

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        if not isinstance(parent, Projection):
            return None
        wanted = set(labels(determine_column_projection(self, parent, dependents)))
        columns = [column for column in self.wanted if column in wanted] or self.wanted[:1]
        if len(columns) == len(self.wanted):
            return None
        return self.substitute_parameters({"wanted": columns})[parent.operand("columns")]

    def _filtered_task(self, name: Any, index: int) -> Task:
        source = self.source
        files: tuple[File, ...] = ()
        if source.shards is None or index in source.shards:
            files = source.version.by_shard.get(index, ())
        store = source.home.store_of(source.version, index) if files else source.home.store
        whole = source.version.schema if source.expression is not None else self._schema
        return Task(
            name, read_block, store, files, whole, list(self.wanted), source.expression, source.needed
        )


def _is_category(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype)


def read_block(
    store: Store,
    files: tuple[File, ...],
    schema: pa.Schema,
    columns: list[str],
    expression: pc.Expression | None,
    needed: tuple[str, ...],
) -> pd.DataFrame:
    return pandas_of(read_files(store, files, schema, columns, expression, needed))


# --------------------------------------------------------------------------------------------------- write


def to_parquet(
    df: dd.DataFrame,
    layout: Layout,
    path: str | os.PathLike[str],
    mode: Mode,
    how: How,
    storage_options: Mapping[str, Any] | None,
    roots: Mapping[Any, str] | None,
) -> None:
    """See `ChashAccessor.to_parquet`; `df` is placed, and `layout` is the one it has now."""
    home = Home.of(path, storage_options, roots)
    if any(name is not None for name in df._meta.index.names):
        if twice := [name for name in df._meta.index.names if name in df._meta.columns]:
            raise DatasetError(
                f"index level {twice[0]!r} has the name of a column, and both would be columns of the file: "
                f"df.reset_index(drop=True) leaves it out"
            )
        df = df.reset_index()
    schema, open_ = schema_of(df._meta)
    since, pending = begin(home, mode, layout, schema, how)
    if layout.on != pending.layout.on or not layout.same_partitions(pending.layout):
        df = _into(df, pending.layout)
    open_ = frozenset(name for name in open_ if is_open(pending.schema.field(name).type))
    written = new_collection(WriteShards(df.expr, Target(home, pending, open_, how))).compute()
    files = [File(*map(_plain, row)) for row in written[list(File._fields)].itertuples(index=False)]
    if open_ and files:
        schemas = [pa.ipc.read_schema(pa.py_buffer(text)) for text in written["schema"]]
        pending = replace(pending, schema=united([pending.schema, *schemas]))
        again = [i for i, schema in enumerate(schemas) if schema.types != pending.schema.types]
        stores = [home.store_of(pending, files[i].shard) for i in again]
        mended = dask.compute(
            *(
                dask.delayed(rewrite)(store, pending.folder, files[i], pending.schema, how)
                for i, store in zip(again, stores, strict=True)
            )
        )
        for i, file in zip(again, mended, strict=True):
            files[i] = file
    finish(home, mode, since, pending, files)


def _into(df: dd.DataFrame, layout: Layout) -> dd.DataFrame:
    """The frame in the layout of the dataset, by the same key columns."""
    columns = key_columns(df, list(layout.on))
    hash_keys(keys_of(df._meta, columns))
    client = active_client()
    return place(
        df, columns, layout, way_of("auto", client is not None), known_addresses(client) if client else {}
    )


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


@dataclass(frozen=True, eq=False)
class Target:
    """Where rows go, and how: `version` has no files yet, and columns in `open` have no types yet."""

    home: Home
    version: Version
    open: frozenset[str]
    how: How

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "chash_partition.Target", self.version.commit

    @property
    def meta(self) -> pd.DataFrame:
        return ENTRIES

    def task(self, name: Any, block: Any, partition: int) -> Task:
        version = self.version
        layout = version.layout
        return Task(
            name,
            write_block,
            block,
            partition,
            self.home.store_of(version, partition),
            version.folder,
            (layout.on, layout.npartitions, layout.seed),
            version.schema,
            self.open,
            self.how,
        )


ENTRIES = pd.DataFrame(
    {
        "path": pd.Series([], dtype=object),
        "rows": pd.Series([], dtype="int64"),
        "nbytes": pd.Series([], dtype="int64"),
        "checksum": pd.Series([], dtype=object),
        "schema": pd.Series([], dtype=object),
    }
)


class WriteShards(Ours, Blockwise):
    """Writes partition i as a file of shard i, and gives what a version is to say of it."""

    _parameters = ["frame", "target"]

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        return ENTRIES

    def _divisions(self) -> tuple[Any, ...]:
        return (None,) * (self.frame.npartitions + 1)

    def _broadcast_dep(self, dep: Expr) -> bool:
        return False

    def _lower(self) -> Expr | None:
        return self.frame.followed_by(self.target) if type(self.frame) is Place else None

    def _task(self, name: Any, index: int) -> Task:
        task: Task = self.target.task(name, TaskRef((self.frame._name, index)), index)
        return task


def write_block(
    block: pd.DataFrame,
    shard: int,
    store: Store,
    folder: str,
    key: tuple[tuple[Hashable, ...], int, int],
    schema: pa.Schema,
    open_: Iterable[str],
    how: How,
) -> pd.DataFrame:
    """Write the rows of a shard; without rows, nothing."""
    if not len(block):
        return ENTRIES
    try:
        table = table_of(block)
        if open_:
            schema = pa.schema([table.schema.field(f.name) if f.name in open_ else f for f in schema])
        table = conform(table, schema)
    except DatasetError as error:
        raise DatasetError(f"partition {shard}: {error}") from None
    in_shard(table, *key, shard)
    file = write_file(store, folder, shard, table, how)
    row: dict[Any, Any] = {**file._asdict(), "schema": schema.serialize().to_pybytes()}
    return pd.DataFrame({name: pd.Series([row[name]], dtype=ENTRIES[name].dtype) for name in ENTRIES})


def rewrite(store: Store, folder: str, file: File, schema: pa.Schema, how: How) -> File:
    """The same rows in the schema that all files turned out to have."""
    return write_file(store, folder, file.shard, read_file(store, file, schema, schema.names), how)


def how_asked(compression: str | None, row_group_size: int | None, sort_within: Any) -> How:
    """The arguments of `to_parquet`, checked.

    Raises
    ------
    DatasetError
    """
    codec = "none" if compression is None else compression
    if not isinstance(codec, str) or (codec != "none" and not _has_codec(codec)):
        raise DatasetError(
            f"compression must be 'snappy', 'zstd', 'gzip', 'brotli', 'lz4' or None, got {compression!r}"
        )
    try:
        size = None if row_group_size is None else integer("row_group_size", row_group_size, 1, 2**31 - 1)
    except ValueError as error:
        raise DatasetError(str(error)) from None
    names: Any = () if sort_within is None else tuple(labels(sort_within))
    if bad := [name for name in names if not isinstance(name, str)]:
        raise DatasetError(f"sort_within must be a column or a list of columns, got {bad[0]!r}")
    return How(codec, size, names)


def _has_codec(name: str) -> bool:
    try:
        return bool(pa.Codec.is_available(name))
    except (ValueError, pa.ArrowException):
        return False
