"""Every kind of column that Parquet can hold, there and back; and what other engines read of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from datasets import assert_sound, bare, counted, rows, whole, write
from frames import blocks_of
from tiers import together

from chash_partition import Layout, ShardedDataset, read_parquet
from chash_partition.parquet.store import DatasetError

LAYOUT = Layout.create("k", 6, ["n"])
N = 40
NOW = timedelta(0)
CONFIG = {"scheduler": "sync", "dataframe.shuffle.method": "tasks"}


def every(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values in turn, with nulls."""
    return pa.array([None if i % 5 == 0 else values[i % len(values)] for i in range(N)], kind)


INTS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TIMES = [datetime(2020, 1, 2, 3, 4, 5), datetime(1890, 1, 1), datetime(2200, 12, 31)]
ARROW: dict[str, pa.Array] = {
    **{str(kind): every([0, 1, 2 ** (kind.bit_width - 2)], kind) for kind in INTS},
    "float16": pa.array([None if i % 5 == 0 else np.float16(i / 2) for i in range(N)], pa.float16()),
    "float": every([0.5, -1.0, float("inf")], pa.float32()),
    "double": every([0.1, -0.0, 1e300], pa.float64()),
    "bool": every([True, False], pa.bool_()),
    "string": every(["a", "", "ü€😀", "x" * 1000], pa.string()),
    "large_string": every(["a", ""], pa.large_string()),
    "binary": every([b"", b"\x00\xff"], pa.binary()),
    "fixed": every([b"ab", b"\x00\x01"], pa.binary(2)),
    "decimal128": every([Decimal("1.23"), Decimal("-99999999.99")], pa.decimal128(20, 2)),
    "decimal256": every([Decimal("1.5")], pa.decimal256(50, 3)),
    "date32": every([date(2020, 2, 29), date(1500, 1, 1)], pa.date32()),
    "date64": every([date(2020, 2, 29)], pa.date64()),
    "time32s": every([time(1, 2, 3)], pa.time32("s")),
    "time64": every([time(1, 2, 3, 4)], pa.time64("us")),
    "time64ns": every([1000, 10**12], pa.time64("ns")),
    **{f"timestamp-{unit}": every(TIMES, pa.timestamp(unit)) for unit in ("s", "ms", "us")},
    "timestamp-ns": every(TIMES[:1], pa.timestamp("ns")),
    "timestamp-tz": every(TIMES, pa.timestamp("us", "America/New_York")),
    "timestamp-s-tz": every(TIMES, pa.timestamp("s", "UTC")),
    **{f"duration-{unit}": every([timedelta(days=3)], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")},
    "null": pa.nulls(N),
    "list": every([[1, None], [], [2]], pa.list_(pa.int32())),
    "large_list": every([["a"], []], pa.large_list(pa.string())),
    "fixed_list": every([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
    "struct": every(
        [{"a": 1, "b": "x"}, {"a": None, "b": None}], pa.struct({"a": pa.int8(), "b": pa.string()})
    ),
    "map": every([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "nested": every([[{"a": [1, 2]}], []], pa.list_(pa.struct({"a": pa.list_(pa.int64())}))),
    "dictionary": every(["a", "b"], pa.string()).dictionary_encode(),
    "dictionary-int": every([7, 8], pa.int64()).dictionary_encode(),
    "dictionary-int8": every(["a"], pa.string())
    .dictionary_encode()
    .cast(pa.dictionary(pa.int8(), pa.string())),
}


@together("names", ARROW)
def test_arrow_columns(tmp_path: Path, names: list[str]) -> None:
    columns = {name: ARROW[name] for name in names}
    table = pa.table({"k": pa.array([i % 9 for i in range(N)]), "row": range(N), **columns})
    write(tmp_path, table.slice(0, 25), layout=LAYOUT)
    dataset = write(tmp_path, table.slice(25), "append")
    for operation in (dataset.compact, lambda: dataset.split(2), lambda: dataset.vacuum(NOW)):
        operation()
        back = whole(dataset).sort_by("row")
        for name in names:
            assert dataset.schema.field(name).type == table.schema.field(name).type
            assert back[name].to_pylist() == table[name].to_pylist(), name
        assert dataset.verify() == []
    read = read_parquet(tmp_path)
    with dask.config.set(scheduler="sync"):
        for block in blocks_of(read):
            assert block["row"].dtype == read.dtypes["row"]
            for name in names:
                assert (block[name].isna() == (block["row"] % 5 == 0)).all() or name == "null"


# Other engines, given the data folder alone, or the files


def by_duckdb(what: Any) -> pa.Table:
    import duckdb

    source = f"'{what}/**/*.parquet'" if isinstance(what, Path) else str(what)
    with duckdb.connect() as connection:
        options = f"hive_partitioning = {isinstance(what, Path)}, union_by_name = true"
        return connection.sql(f"SELECT * FROM read_parquet({source}, {options})").to_arrow_table()


def by_polars(what: Any) -> pa.Table:
    import polars as pl

    source = what / "**/*.parquet" if isinstance(what, Path) else what
    frame = pl.scan_parquet(source, hive_partitioning=isinstance(what, Path), missing_columns="insert")
    return frame.collect().to_arrow()


def by_pyarrow(what: Any) -> pa.Table:
    return ds.dataset(
        what, format="parquet", partitioning="hive" if isinstance(what, Path) else None
    ).to_table()


@pytest.mark.parametrize("engine", [by_duckdb, by_polars, by_pyarrow])
def test_other_engines_read_the_same(tmp_path: Path, engine: Callable[[Any], pa.Table]) -> None:
    def same(dataset: ShardedDataset, expected: pa.Table) -> None:
        assert_sound(dataset, expected)
        assert_same(engine(dataset.files()), expected)
        dataset.vacuum(NOW)
        table = engine(tmp_path / "data")
        shards = [int(shard) for shard in table["chash_shard"].to_pylist()]
        assert shards == dataset.layout.partition_of(table).tolist()
        assert_same(table.drop_columns(["chash_shard"]), expected)

    same(write(tmp_path, rows(0, 100)), rows(0, 100))
    dataset = write(tmp_path, rows(100, 150), "append")
    same(dataset, rows(0, 150))
    dataset.compact()
    same(dataset, rows(0, 150))
    dataset.assign(["c"])
    same(dataset, rows(0, 150))
    dataset.split(4)
    same(dataset, rows(0, 150))
    same(write(tmp_path, rows(0, 60), "overwrite"), rows(0, 60))
    more = rows(60, 90).append_column("extra", pa.array([1.5] * 30))
    dataset = write(tmp_path, more, "append")
    dataset.compact()
    same(dataset, pa.concat_tables([rows(0, 60), more], promote_options="default"))


def assert_same(got: pa.Table, expected: pa.Table) -> None:
    assert got.column_names == expected.column_names
    assert counted(got) == counted(expected)


def test_other_engines_read_an_empty_dataset(tmp_path: Path) -> None:
    write(tmp_path, rows(0, 0))
    for engine in (by_duckdb, by_polars, by_pyarrow):
        assert engine(tmp_path / "data").drop_columns(["chash_shard"]).shape == (0, 3)


def test_a_join_in_duckdb_shard_by_shard(tmp_path: Path) -> None:
    import duckdb

    left = write(tmp_path / "left", rows(0, 200))
    right_rows = rows(100, 400).rename_columns(["k", "other", "note"])
    right = write(tmp_path / "right", right_rows)
    tables = []
    with duckdb.connect() as connection:
        for shard in range(left.layout.npartitions):
            a, b = left.files(shard), right.files(shard)
            if a and b:
                left_rows, right_rows_ = (f"read_parquet({f}, hive_partitioning = false)" for f in (a, b))
                query = f"SELECT * FROM {left_rows} AS a JOIN {right_rows_} AS b USING (k)"
                tables.append(connection.sql(query).to_arrow_table())
        x, y = rows(0, 200), right_rows  # noqa: F841
        expected = connection.sql("SELECT * FROM x JOIN y USING (k)").to_arrow_table()
    assert counted(pa.concat_tables(tables)) == counted(expected)
    assert expected.num_rows > 0


# Columns that change, and how files are written


def test_appended_rows_may_have_more_columns(place: dict[str, Any]) -> None:
    write(table=rows(0, 20), **place)
    more = rows(20, 40).append_column("extra", pa.array(range(20), pa.int64()))
    dataset = write(table=more, mode="append", **place)
    dataset = write(table=rows(40, 60), mode="append", **place)
    expected = pa.concat_tables([rows(0, 20), more, rows(40, 60)], promote_options="default")
    assert dataset.schema.names == [*rows(0, 0).column_names, "extra"]
    assert_sound(dataset, expected)
    assert dataset.lookup(5)["extra"].to_pylist() == [None, None]
    dataset.compact()
    assert_sound(dataset, expected)
    dataset.vacuum(NOW)
    if isinstance(place["path"], Path):
        assert counted(bare(place["path"])) == counted(expected)


def test_a_type_that_does_not_fit_is_refused(place: dict[str, Any]) -> None:
    dataset = write(table=rows(0, 20), **place)
    for kind in (pa.string(), pa.float64()):
        table = rows(20, 40)
        bad = table.set_column(1, "row", table["row"].cast(kind))
        with pytest.raises(DatasetError, match=f"'row' is {kind} here and int64 in the dataset"):
            write(table=bad, mode="append", **place)
    narrow = rows(20, 40).cast(pa.schema({"k": pa.int8(), "row": pa.int16(), "text": pa.large_string()}))
    assert_sound(write(table=narrow, mode="append", **place), rows(0, 40))
    assert dataset.refresh().schema.field("row").type == pa.int64()
    lacks = rows(0, 9).drop_columns(["k"])
    with pytest.raises(DatasetError, match="key column 'k'"):
        write(table=lacks, mode="append", **place)


@pytest.mark.parametrize("name", ["chash_shard", "CHASH_SHARD"])
def test_the_name_of_shards_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DatasetError, match=f"column '{name}' has the name"):
        write(tmp_path, rows(0, 9).append_column(name, pa.array(range(9))))


def test_compact_keeps_how_files_were_written(tmp_path: Path) -> None:
    how: dict[str, Any] = {"compression": "zstd", "row_group_size": 4, "sorting": ("text",)}
    write(tmp_path, rows(0, 100), **how)
    dataset = write(tmp_path, rows(100, 200), "append", **how)
    dataset.compact()
    for file in dataset.files():
        metadata = pq.ParquetFile(file).metadata
        group = metadata.row_group(0)
        assert group.column(0).compression == "ZSTD"
        assert group.num_rows <= 4
        texts = pq.read_table(file, partitioning=None)["text"].to_pylist()
        assert texts == sorted(texts)
