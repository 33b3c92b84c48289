"""Filters pass the rows of which they are true by arithmetic, whatever statistics the files have."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from chash_partition import ShardedDataset, chash_repartition, read_parquet
from chash_partition.parquet.filters import expression_of, is_null
from chash_partition.parquet.store import DatasetError

T = pd.Timestamp
INF = float("inf")
NUMBERS = [
    *(-129, -1, 0, -0.0, 0.0, 0.1, 0.5, np.float32(0.1), 1, 1.5, True, False, 2, 5, 5.0, 127.5),
    *(2**53, 2**53 + 1, 2.0**53, 2**63, 2**64 - 1, 10**20, -(10**20), 1e300, INF, -INF, float("nan"), None),
    *(Decimal("5"), Decimal("0.105"), np.int64(5), np.uint8(1)),
]
TIMES = [
    *(T("2024-01-01"), T("2024-01-01 00:00:00.000000001"), T("2024-01-01 05:00"), dt.date(2024, 1, 1)),
    *(dt.datetime(2024, 1, 1, 12), np.datetime64("2024-01-02"), T("1950-01-01"), pd.NaT, None),
]
# For each type, what a column holds and what may be asked of it.
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "int8": (pa.int8(), [-128, -1, 0, 1, 5, 127], NUMBERS),
    "int64": (pa.int64(), [-(2**63), -1, 0, 1, 5, 2**53 + 1, 2**63 - 1], NUMBERS),
    "uint64": (pa.uint64(), [0, 1, 5, 2**64 - 1], NUMBERS),
    "float32": (pa.float32(), [0.0, -0.0, 0.1, 0.2, 1.5, 5, INF, -INF], NUMBERS),
    "float64": (pa.float64(), [0.0, -0.0, 0.1, 1.5, 5, 2.0**60, INF], NUMBERS),
    "bool": (pa.bool_(), [True, False], NUMBERS),
    "decimal": (pa.decimal128(6, 2), [Decimal(d) for d in ("0", "0.10", "1.5", "-3.33", "5")], NUMBERS),
    "us": (
        pa.timestamp("us"),
        [T("2024-01-01"), T("2024-01-01 12:00"), T("1969-12-31 23:59:59.999999")],
        TIMES,
    ),
    "ns": (pa.timestamp("ns"), [T("2024-01-01"), T("2024-01-01 00:00:00.000000001")], TIMES),
    "date": (pa.date32(), [dt.date(2024, 1, 1), dt.date(2024, 1, 2)], TIMES),
    "zone": (
        pa.timestamp("us", tz="Asia/Tokyo"),
        [T("2024-01-01", tz="Asia/Tokyo"), T("2024-01-01 09:00", tz="Asia/Tokyo")],
        [T("2024-01-01", tz="UTC"), T("2024-01-01 00:00:00.000000001", tz="Asia/Tokyo"), pd.NaT],
    ),
    "duration": (
        pa.duration("ms"),
        [dt.timedelta(seconds=1), dt.timedelta(milliseconds=-5)],
        [dt.timedelta(seconds=1), pd.Timedelta("1.0005s"), np.timedelta64(-5, "ms"), pd.Timedelta("-5.5ms")],
    ),
    "string": (pa.string(), ["", "a", "b", "é"], ["", "a", "aa", "é", None, float("nan"), pd.NA]),
    "binary": (pa.binary(), [b"", b"a"], [b"", b"a", b"aa", None]),
    "time": (pa.time32("s"), [dt.time(1, 2, 3), dt.time(0)], [dt.time(1, 2, 3), dt.time(1, 2, 3, 5), None]),
}
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def exactly(value: Any) -> Any:
    """The value such that Python compares it without rounding."""
    if is_null(value):
        return None
    if isinstance(value, (dt.timedelta, np.timedelta64)):
        return pd.Timedelta(value).as_unit("ns").value
    if isinstance(value, (dt.date, np.datetime64)):
        return T(value).as_unit("ns").value
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (int, float, Decimal)):
        return value if abs(value) == INF else Fraction(value)
    return value


class Stored(NamedTuple):
    table: pa.Table
    exact: list[Any]  # its values, to be compared without rounding
    datasets: list[Any]  # of one file, of a row group a row, of a file a row


@pytest.fixture(scope="module")
def stored_columns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    """A column of each type, in files that have statistics of all rows or of each."""
    found = {}
    for name, (kind, held, _) in COLUMNS.items():
        table = pa.table({"c": pa.array([*held, None], kind), "row": range(len(held) + 1)})
        values = [None if one.as_py() is None else T(one.value) if "ns" in str(one.type) else one.as_py()
                  for one in table["c"]]  # fmt: skip
        folder = tmp_path_factory.mktemp(name)
        pq.write_table(table, folder / "all.parquet")
        pq.write_table(table, folder / "groups.parquet", row_group_size=1)
        each = [folder / f"{i}.parquet" for i in range(len(table))]
        for i, path in enumerate(each):
            pq.write_table(table.slice(i, 1), path)
        datasets = [
            pa.dataset.dataset(at) for at in (folder / "all.parquet", folder / "groups.parquet", each)
        ]
        found[name] = Stored(table, [exactly(value) for value in values], datasets)
    return found


def check(stored: Stored, datasets: list[Any], clause: Any, passes: Callable[[Any], bool]) -> None:
    expression, _ = expression_of([clause], stored.table.schema)
    expected = [i for i, value in enumerate(stored.exact) if passes(value)]
    assert stored.table.filter(expression)["row"].to_pylist() == expected, clause
    for dataset in datasets:
        assert sorted(dataset.to_table(filter=expression)["row"].to_pylist()) == expected, clause


@pytest.mark.parametrize("name", COLUMNS)
def test_comparisons(stored_columns: dict[str, Stored], name: str) -> None:
    column = stored_columns[name]
    for value in COLUMNS[name][2]:
        for operator, compare in COMPARED.items():
            asked = exactly(value)

            def passes(held: Any, asked: Any = asked, compare: Any = compare) -> bool:
                return held is not None and asked is not None and compare(held, asked)

            check(column, column.datasets[:2], ("c", operator, value), passes)


@pytest.mark.parametrize("name", COLUMNS)
@examples(0.2)
@given(data=st.data())
def test_lists(stored_columns: dict[str, Stored], name: str, data: st.DataObject) -> None:
    column = stored_columns[name]
    values = data.draw(st.lists(st.sampled_from(COLUMNS[name][2]), max_size=4))
    asked = {exactly(value) for value in values}
    check(column, column.datasets, ("c", "in", values), lambda held: held in asked)
    check(column, column.datasets, ("c", "not in", values), lambda held: held not in asked)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("int64", "1"), ("int64", np.timedelta64(1, "us")), ("bool", "true"), ("duration", 1000)),
        *(("string", b"a"), ("string", 1), ("us", "2024-01-01"), ("us", T("2024-01-01", tz="UTC"))),
        *(("zone", T("2024-01-01")), ("date", 1), ("time", dt.timedelta(1))),
    ],
)
@pytest.mark.parametrize("operator", ["==", "<", "in", "not in"])
def test_values_of_another_kind_are_refused(name: str, value: Any, operator: str) -> None:
    asked = [value] if "in" in operator else value
    with pytest.raises(DatasetError, match="give a value as the column holds them"):
        expression_of([("c", operator, asked)], pa.schema({"c": COLUMNS[name][0]}))


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([[]], "a list in it is empty"),
        ([("c", "==")], "is not \\(column, operator, value\\)"),
        ([("c", "~", 1)], "is none of"),
        ([("c", "in", "ab")], "takes a list"),
        ([("c", ">", "a")], "list the categories with 'in'"),
    ],
)
def test_filters_that_say_nothing_are_refused(filters: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        expression_of(filters, pa.schema({"c": pa.dictionary(pa.int32(), pa.string())}))


def stored(path: Path, frame: pd.DataFrame, mode: str = "error") -> None:
    placed = dd.from_pandas(frame, npartitions=2).pipe(chash_repartition, on="k", npartitions=4)
    placed.chash.to_parquet(path, mode=mode)


@pytest.mark.parametrize(
    "change", [lambda values: [*values[:19], 77, *values[20:]], lambda values: values[::-1]]
)
def test_frames_of_other_filters_have_other_names(local: None, tmp_path: Path, change: Any) -> None:
    stored(tmp_path / "x", pd.DataFrame({"k": range(100)}))
    one, two = list(range(40)), [*range(19), 77, *range(20, 40)]
    frames = [read_parquet(tmp_path / "x", filters=[("k", "in", values)]) for values in (one, two)]
    assert list(dask.compute(*(frame.k.sum() for frame in frames))) == [sum(one), sum(two)]
    text = ["a" * 120 + middle + "a" * 120 for middle in "bc"]
    stored(tmp_path / "y", pd.DataFrame({"k": text}))
    frames = [read_parquet(tmp_path / "y", filters=[("k", "==", key)]) for key in text]
    assert [frame.k.tolist() for frame in dask.compute(*frames)] == [[text[0]], [text[1]]]


def test_lookup_of_what_the_column_cannot_hold(local: None, tmp_path: Path) -> None:
    stored(tmp_path / "x", pd.DataFrame({"k": [-1, 1, 2], "x": 1}))
    dataset, frame = ShardedDataset(tmp_path / "x"), read_parquet(tmp_path / "x")
    assert dataset.lookup(-1).num_rows == len(frame.chash.lookup(-1)) == 1
    assert dataset.lookup(2**64 - 1).num_rows == len(frame.chash.lookup(2**64 - 1)) == 0
    for lookup in (dataset.lookup, frame.chash.lookup):
        with pytest.raises(TypeError, match="'k'"):
            lookup(np.timedelta64(1, "us"))
    stored(tmp_path / "t", pd.DataFrame({"k": [T("2024-01-01"), T("2024-01-02")], "x": 1}))
    dataset = ShardedDataset(tmp_path / "t")
    assert dataset.lookup(dt.date(2024, 1, 1)).num_rows == dataset.lookup(T("2024-01-01")).num_rows == 1
    frame = read_parquet(tmp_path / "t", filters=[("k", "==", dt.date(2024, 1, 2))])
    assert frame.compute()["k"].tolist() == [T("2024-01-02")]
    for lookup in (dataset.lookup, read_parquet(tmp_path / "t").chash.lookup):
        with pytest.raises(TypeError, match="'k'"):
            lookup(T("2024-01-01", tz="UTC"))


def test_a_category_that_came_later(local: None, tmp_path: Path) -> None:
    stored(tmp_path / "x", pd.DataFrame({"k": [1, 2, 3], "x": [1, 2, 3]}))
    stored(tmp_path / "x", pd.DataFrame({"k": [4], "c": pd.Categorical(["u"])}), "append")
    for operation in (lambda: None, ShardedDataset(tmp_path / "x").compact):
        operation()
        found = read_parquet(tmp_path / "x").compute().sort_values("k")
        assert found["c"].astype(object).where(found["c"].notna(), None).tolist() == [None, None, None, "u"]
