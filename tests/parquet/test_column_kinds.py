"""Every kind of column that Parquet can hold, there and back; and what other engines read of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from datasets import assert_sound, counted, rows, whole, write
from frames import assert_same_rows, assert_unchanged, blocks_of
from tiers import thorough

from chash_partition import Layout, ShardedDataset, chash_repartition, read_parquet
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


def label(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "all"


@pytest.mark.parametrize("names", [list(ARROW), *thorough(*([name] for name in ARROW))], ids=label)
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


PANDAS: dict[str, Callable[[], Any]] = {
    "int8": lambda: np.arange(N, dtype="int8"),
    "uint64": lambda: np.arange(N, dtype="uint64") + 2**63,
    "float32": lambda: np.where(np.arange(N) % 3, np.arange(N) / 3, np.nan).astype("float32"),
    "bool": lambda: np.arange(N) % 2 == 0,
    "Int64": lambda: pd.array([None, 2**62 + 1] * (N // 2), dtype="Int64"),
    "UInt8": lambda: pd.array([None, 255] * (N // 2), dtype="UInt8"),
    "Float32": lambda: pd.array([None, 0.5] * (N // 2), dtype="Float32"),
    "boolean": lambda: pd.array([None, True] * (N // 2), dtype="boolean"),
    "string": lambda: pd.array([None, "ü"] * (N // 2), dtype="string[pyarrow]"),
    "string-python": lambda: pd.array([None, "ü"] * (N // 2), dtype="string[python]"),
    "arrow-int": lambda: pd.array([None, 3] * (N // 2), dtype=pd.ArrowDtype(pa.int16())),
    "arrow-string": lambda: pd.array([None, "x"] * (N // 2), dtype=pd.ArrowDtype(pa.string())),
    "arrow-list": lambda: pd.array([None, [1]] * (N // 2), dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
    "arrow-decimal": lambda: pd.array(
        [None, Decimal("1.5")] * (N // 2), dtype=pd.ArrowDtype(pa.decimal128(9, 1))
    ),
    "arrow-time": lambda: pd.array(
        [None, TIMES[0]] * (N // 2), dtype=pd.ArrowDtype(pa.timestamp("us", "UTC"))
    ),
    "datetime-ns": lambda: pd.to_datetime(["2020-01-01 00:00:00.000000001", None] * (N // 2)).as_unit("ns"),
    "datetime-s": lambda: np.array(["1500-01-01", "NaT"] * (N // 2), dtype="datetime64[s]"),
    "datetime-tz": lambda: (
        pd.to_datetime(["2020-01-01", None] * (N // 2)).as_unit("us").tz_localize("Europe/Oslo")
    ),
    "timedelta": lambda: pd.to_timedelta(["1 days", None] * (N // 2)).as_unit("ns"),
    "object-str": lambda: pd.Series(["a", None] * (N // 2), dtype=object),
    "object-bytes": lambda: pd.Series([b"a", None] * (N // 2), dtype=object),
    "object-decimal": lambda: pd.Series([Decimal(i).scaleb(-2) for i in range(N)], dtype=object),
    "object-date": lambda: pd.Series([date(2020, 1, 1), None] * (N // 2), dtype=object),
    "object-none": lambda: pd.Series([None] * N, dtype=object),
    "object-one": lambda: pd.Series([None] * (N - 1) + [time(1)], dtype=object),
    "period": lambda: pd.period_range("2020-01", periods=N, freq="M"),
    "interval": lambda: pd.interval_range(0, N),
}


@pytest.mark.parametrize("names", [list(PANDAS), *thorough(*([name] for name in PANDAS))], ids=label)
def test_pandas_columns(names: list[str]) -> None:
    frame = pd.DataFrame({"k": np.arange(N) % 9, **{name: PANDAS[name]() for name in names}})
    path = f"memory://kind-{uuid.uuid4().hex}"
    with dask.config.set({**CONFIG, "dataframe.convert-string": False}):
        df = dd.from_pandas(frame, npartitions=3, sort=False).pipe(chash_repartition, "k", layout=LAYOUT)
        for mode in ("append", "append"):
            df.chash.to_parquet(path, mode=mode)
        back = read_parquet(path)
        if "object-str" in names and back.dtypes["object-str"].name != "object":  # pandas 3 reads it as str
            back, frame = back.drop(columns="object-str"), frame.drop(columns="object-str")
        assert back.dtypes.tolist() == frame.dtypes.tolist()
        got = [block.set_index(pd.RangeIndex(len(block)) * 0) for block in blocks_of(back)]
        assert_unchanged(got, pd.concat([frame, frame]).set_index(pd.RangeIndex(2 * N) * 0))
    assert ShardedDataset(path).verify() == []


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("values", [["b", "a", "unused", "c"], [3, 1, 2, 5]])
def test_categories(known: bool, ordered: bool, values: list[Any]) -> None:
    column = pd.Categorical([values[i % 2] if i % 5 else None for i in range(N)], values, ordered)
    frame = pd.DataFrame({"k": np.arange(N) % 9, "x": column, "row": range(N)})
    path = f"memory://kind-{uuid.uuid4().hex}"
    with dask.config.set(CONFIG):
        df = dd.from_pandas(frame, npartitions=3, sort=False)
        df = df if known else df.assign(x=df.x.cat.as_unknown())
        df = df.pipe(chash_repartition, "k", layout=LAYOUT)
        if ordered and not known:
            with pytest.raises(DatasetError, match=r"column 'x' is an ordered category.*as_known"):
                df.chash.to_parquet(path)
            return
        df.chash.to_parquet(path)
        got = read_parquet(path).compute().sort_values("row")
    assert got["x"].astype(object).where(got["x"].notna(), None).tolist() == [
        None if pd.isna(v) else v for v in frame["x"]
    ]
    assert got["x"].cat.ordered == ordered
    if ordered:
        assert got["x"].cat.categories.tolist() == values
        other = frame.assign(x=frame["x"].cat.reorder_categories(values[::-1]))
        df = dd.from_pandas(other, npartitions=1).pipe(chash_repartition, "k", layout=LAYOUT)
        with pytest.raises(DatasetError, match="ordered category of other categories"):
            df.chash.to_parquet(path, mode="append")


def test_decimals_of_several_scales(tmp_path: Path) -> None:
    frame = pd.DataFrame({"k": range(N), "x": [Decimal(i) / 2 ** (i % 20) for i in range(N)]})
    with dask.config.set({**CONFIG, "dataframe.convert-string": False}):
        df = dd.from_pandas(frame, npartitions=3).pipe(chash_repartition, "k", npartitions=16)
        df.chash.to_parquet(tmp_path)
        assert_same_rows(read_parquet(tmp_path).compute(), frame)
    assert ShardedDataset(tmp_path).verify() == []


def test_objects_of_several_kinds_are_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"k": range(10), "x": pd.Series([1, "a"] * 5, dtype=object)})
    with dask.config.set({**CONFIG, "dataframe.convert-string": False}):
        df = dd.from_pandas(frame, npartitions=1).pipe(chash_repartition, "k", npartitions=1)
        with pytest.raises(DatasetError, match="partition 0: column 'x'"):
            df.chash.to_parquet(tmp_path)
        df = dd.from_pandas(frame, npartitions=1).pipe(chash_repartition, "k", npartitions=64)
        with pytest.raises(DatasetError, match=r"column 'x' is .* in one partition and .* in another"):
            df.chash.to_parquet(tmp_path)
    with pytest.raises(DatasetError, match="no dataset"):
        ShardedDataset(tmp_path)


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
