"""Datasets to try things on, and what others read in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chash_partition import Layout, ShardedDataset
from chash_partition.parquet.home import Home
from chash_partition.parquet.tables import How
from chash_partition.parquet.writing import write_table

LAYOUT = Layout.create("k", 8, ["a", "b"])

# For a test that `make test` is to run on S3 too.
each_storage = pytest.mark.parametrize("place", ["local", "memory", "s3"], indirect=True)


def rows(start: int, stop: int) -> pa.Table:
    """Rows with numbers of their own, some with a null key."""
    numbers = range(start, stop)
    return pa.table(
        {
            "k": pa.array([None if i % 7 == 0 else i // 2 for i in numbers], pa.int64()),
            "row": pa.array(numbers, pa.int64()),
            "text": pa.array([f"text {i}" for i in numbers], pa.string()),
        }
    )


def write(
    path: Any,
    table: pa.Table,
    mode: str = "error",
    layout: Layout = LAYOUT,
    storage_options: Mapping[str, Any] | None = None,
    roots: Mapping[str, str] | None = None,
    **how: Any,
) -> ShardedDataset:
    home = Home.of(path, storage_options, roots)
    write_table(home, table, layout, mode, How(**how))  # type: ignore[arg-type]
    return ShardedDataset(path, storage_options, roots=roots)


def counted(table: pa.Table) -> Counter[Hashable]:
    """How often each row is there."""
    columns = [[_hashable(v) for v in table.column(name).to_pylist()] for name in sorted(table.column_names)]
    return Counter(zip(*columns, strict=True))


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float) and value != value:
        return "NaN"
    return repr(value) if isinstance(value, (list, dict)) else value


def whole(dataset: ShardedDataset) -> pa.Table:
    """All rows."""
    return pa.concat_tables([dataset.read_shard(shard) for shard in range(dataset.layout.npartitions)])


def bare(path: Path) -> pa.Table:
    """All rows of all files in the data folder, whatever a version says."""
    tables = [pq.read_table(file, partitioning=None) for file in sorted(path.glob("data/**/*.parquet"))]
    return pa.concat_tables(tables, promote_options="default")


def assert_sound(dataset: ShardedDataset, expected: pa.Table) -> None:
    """The dataset has exactly these rows, and nothing wrong."""
    assert dataset.verify() == []
    assert counted(whole(dataset)) == counted(expected)


def at_once(monkeypatch: pytest.MonkeyPatch, first: Callable[[], Any], then: Callable[[], Any]) -> Any:
    """`first` happens right before `then` commits."""
    commit = Home.commit
    done: list[Any] = []

    def late(self: Home, *args: Any) -> Any:
        if not done:
            done.append(None)
            done.append(first())
        return commit(self, *args)

    monkeypatch.setattr(Home, "commit", late)
    return then()
