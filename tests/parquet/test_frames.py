"""Columns of every dtype of pandas, there and back."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from frames import assert_same_rows, assert_unchanged, blocks_of
from tiers import together

from chash_partition import Layout, ShardedDataset, chash_repartition, read_parquet
from chash_partition.parquet.store import DatasetError

LAYOUT = Layout.create("k", 6, ["n"])
N = 40
CONFIG = {"scheduler": "sync", "dataframe.shuffle.method": "tasks"}


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
        [None, datetime(2020, 1, 2, 3, 4, 5)] * (N // 2), dtype=pd.ArrowDtype(pa.timestamp("us", "UTC"))
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


@together("names", PANDAS)
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
