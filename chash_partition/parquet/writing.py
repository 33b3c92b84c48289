"""What every writer does first and last; and a table written without Dask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal
from uuid import uuid4

import numpy as np
import pyarrow as pa

from chash_partition.layout import Layout
from chash_partition.parquet.home import Home, appended, replaced
from chash_partition.parquet.store import DatasetError
from chash_partition.parquet.tables import (
    How,
    checked_schema,
    conform,
    evolved,
    nullable,
    order_of,
    write_file,
)
from chash_partition.parquet.version import DATA, PATH, File, Version

__all__ = ["Mode", "begin", "finish", "write_table"]

Mode = Literal["error", "append", "overwrite"]
MODES = ("error", "append", "overwrite")


def begin(
    home: Home, mode: Mode, layout: Layout, schema: pa.Schema, how: How
) -> tuple[Version | None, Version]:
    """What is there, and a version without files that says how new ones are to be.

    Raises
    ------
    DatasetError
        If rows of that schema cannot be written so. Nothing was written.
    """
    if mode not in MODES:
        raise DatasetError(f"mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}")
    since = home.log.latest()
    if since is not None and mode == "error":
        raise DatasetError(
            f"there is a dataset at {home.store.url!r} (version {since.number}): use mode='append' or "
            "'overwrite'"
        )
    if since is None:
        alien = [name for name, _, _ in home.store.list(DATA) if not PATH.fullmatch(name)]
        if alien:
            raise DatasetError(
                f"{home.store.full(alien[0])} is in the way, and not a dataset of shards: choose another path"
            )
    if since is not None and mode == "append":
        layout = since.layout
        schema = evolved(since.schema, checked_schema(schema, layout.on))
    checked_schema(schema, layout.on)
    for name in how.sorting:
        if name not in schema.names:
            raise DatasetError(f"sort_within column {name!r} is not among the columns {schema.names}")
        try:
            order_of(schema.empty_table(), [name])
        except (pa.ArrowException, NotImplementedError):
            raise DatasetError(
                f"sort_within column {name!r} of type {schema.field(name).type} has no order"
            ) from None
    pending = Version(
        number=0,
        commit=uuid4().hex,
        operation=mode,
        layout=layout,
        schema=schema,
        folder=DATA if since is None else since.folder,
        node_local=bool(home.roots) if since is None else since.node_local,
    )
    if pending.node_local:
        for node in layout.nodes:
            home.at(node)
    _ = pending.to_json()  # labels of key columns that JSON does not know
    return since, pending


def finish(home: Home, mode: Mode, since: Version | None, pending: Version, files: Iterable[File]) -> Version:
    """Commit the files.

    Raises
    ------
    ConflictError
        If another writer was first, with what does not go together.
    """
    files = list(files)
    if not files:
        store, none = home.store_of(pending, 0), pending.schema.empty_table()
        files = [write_file(store, pending.folder, 0, none, How())]
    if mode == "append":
        change = appended(files, pending.schema, pending)
    else:
        change = replaced(pending.with_files(files), since)
    return home.commit("create" if since is None else mode, change, since)


def write_table(
    home: Home, table: pa.Table, layout: Layout, mode: Mode = "error", how: How | None = None
) -> Version:
    """Write a table in memory, shard by shard.

    Raises
    ------
    DatasetError, ConflictError
        As `begin` and `finish`.
    """
    how = How() if how is None else how
    schema = pa.schema([nullable(field) for field in table.schema])  # pandas has no nulls in integers
    since, pending = begin(home, mode, layout, schema, how)
    table = conform(table, pending.schema)
    shards = pending.layout.partition_of(table)
    files = [
        write_file(
            home.store_of(pending, shard), pending.folder, shard, table.filter(pa.array(shards == shard)), how
        )
        for shard in np.unique(shards).tolist()
    ]
    return finish(home, mode, since, replace(pending), files)
