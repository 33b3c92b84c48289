"""The rows that come out of `chash_repartition` are those that went in, each in its partition."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.utils import UNKNOWN_CATEGORIES
from distributed import Client, LocalCluster
from frames import (
    assert_placed,
    assert_same_rows,
    assert_unchanged,
    blocks_of,
    of_blocks,
    sample,
    shuffles,
    split,
)
from hypothesis import given
from hypothesis import strategies as st
from pandas.api.types import union_categoricals
from tiers import thorough

from chash_partition import Layout, chash_repartition

P = 7
N = 24

Case = tuple[dd.DataFrame, pd.DataFrame]


def _keyed(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"k": np.arange(N) % 9, **columns})


def _numbers() -> Case:
    kinds = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
    frame = _keyed(
        **{kind: np.arange(N).astype(kind) for kind in kinds},
        bool=np.arange(N) % 2 == 0,
        complex=np.arange(N) * (1 + 2j),
        special=np.resize([-0.0, np.inf, -np.inf, np.nan, 1e-320], N),
    )
    return split(frame), frame


def _times() -> Case:
    days = pd.date_range("1999-12-30", periods=N, freq="D")
    frame = _keyed(
        ns=days.astype("M8[ns]"),
        us=days.astype("M8[us]"),
        s=days.astype("M8[s]"),
        tz=days.tz_localize("Europe/Berlin"),
        utc=days.tz_localize("UTC"),
        nat=[pd.NaT, *days[1:]],
        delta=days - days[0],
        delta_s=(days - days[0]).astype("m8[s]"),
    )
    return split(frame), frame


def _extension() -> Case:
    some = [None if i % 5 == 0 else i for i in range(N)]
    frame = _keyed(
        Int8=pd.array(some, dtype="Int8"),
        UInt64=pd.array(some, dtype="UInt64"),
        Float32=pd.array(some, dtype="Float32"),
        boolean=pd.array([None if v is None else v % 2 == 0 for v in some], dtype="boolean"),
        string=pd.array([None if v is None else f"s{v}" for v in some], dtype="string[python]"),
        arrow_string=pd.array([None if v is None else f"s{v}" for v in some], dtype="string[pyarrow]"),
        period=pd.period_range("2000-01", periods=N, freq="M"),
        interval=pd.interval_range(0, N, closed="left"),
        sparse=pd.arrays.SparseArray(np.arange(N) % 3 - 1.0, fill_value=0.0),
        sparse_int=pd.arrays.SparseArray(np.arange(N) % 3),
    )
    return split(frame), frame


def _arrow() -> Case:
    some = [None if i % 5 == 0 else i for i in range(N)]
    moment = datetime(2020, 1, 1)
    columns = {
        "int32": pa.array(some, pa.int32()),
        "bool": pa.array([None if v is None else v > 7 for v in some]),
        "large": pa.array([None if v is None else str(v) for v in some], pa.large_string()),
        "binary": pa.array([None if v is None else bytes([v]) for v in some], pa.binary()),
        "decimal": pa.array([None if v is None else Decimal(v) / 4 for v in some], pa.decimal128(20, 3)),
        "time": pa.array([None if v is None else time(v % 24, 1) for v in some], pa.time64("us")),
        "stamp": pa.array([None if v is None else moment + timedelta(v) for v in some], pa.timestamp("ms")),
        "zoned": pa.array([None if v is None else v for v in some], pa.timestamp("us", "Asia/Tokyo")),
        "duration": pa.array(some, pa.duration("s")),
        "date32": pa.array(some, pa.date32()),
        "date64": pa.array([None if v is None else v * 86_400_000 for v in some], pa.date64()),
        "time32": pa.array(some, pa.time32("s")),
        "float16": pa.array(np.arange(N, dtype="float16")),
        "fixed": pa.array([None if v is None else bytes([v] * 16) for v in some], pa.binary(16)),
        "odd": pa.array([None if v is None else bytes([v] * 3) for v in some], pa.binary(3)),
        "decimal256": pa.array([None if v is None else Decimal(v) / 8 for v in some], pa.decimal256(50, 3)),
        "null": pa.nulls(N),
        "list": pa.array([None if v is None else [v, None] for v in some], pa.list_(pa.int64())),
        "struct": pa.array([None if v is None else {"a": v} for v in some]),
        "dictionary": pa.array([None if v is None else str(v % 3) for v in some]).dictionary_encode(),
    }
    frame = _keyed(
        **{name: pd.array(array, dtype=pd.ArrowDtype(array.type)) for name, array in columns.items()}
    )
    return split(frame), frame


def _categories() -> Case:
    frame = _keyed(
        c=pd.Categorical(np.resize(["b", "a", None], N), categories=["b", "a", "never"]),
        ordered=pd.Categorical(np.resize(["lo", "hi"], N), categories=["lo", "hi"], ordered=True),
        numbers=pd.Categorical(np.resize([3, 1, 2], N)),
        times=pd.Categorical(np.resize(pd.date_range("2000", periods=3), N)),
        bins=pd.cut(np.arange(N), 4),
        empty=pd.Categorical([None] * N, categories=pd.Index([], dtype=object)),
    )
    return split(frame), frame


def _categories_of_each_block() -> Case:
    values = [["a", "b"], ["b", "c"], ["d", "a"]]
    blocks = [
        pd.DataFrame({"k": np.arange(8), "c": pd.Categorical(np.resize(v, 8), categories=v)}, index=range(8))
        for v in values
    ]
    meta = blocks[0].iloc[:0].assign(c=pd.Categorical([], categories=[UNKNOWN_CATEGORIES]))
    everything = pd.concat([block[["k"]] for block in blocks])
    return of_blocks(blocks, meta), everything.assign(c=union_categoricals([block.c for block in blocks]))


def _objects() -> Case:
    kinds = [
        ["text", 1, 2.5, None, (1, 2), b"raw", float("nan"), pd.NA],
        [[1, 2], [], None, [None]],
        [{"a": 1}, {}, {"b": [1]}],
        [Decimal("1.50"), Decimal("NaN"), Decimal(2)],
        [date(2020, 1, 1), None, date(1066, 10, 14)],
        [UUID(int=1), UUID(int=2)],
        [True, False, None],
        [np.arange(2), np.zeros((1, 1))],
        [pd.Timestamp("2020", tz="UTC"), datetime(1, 1, 1, tzinfo=timezone.utc), pd.NaT],
        [2**70, -(2**70)],
        ["a\udc80", "é"],
    ]
    columns = {}
    for i, values in enumerate(kinds):
        column = np.empty(N, dtype=object)
        for row in range(N):
            column[row] = values[row % len(values)]
        columns[f"o{i}"] = pd.Series(column, dtype=object)
    frame = _keyed(**columns)
    return of_blocks([frame[:10], frame[10:10], frame[10:]]), frame


def _labels(labels: list[Any], **names: Any) -> Callable[[], Case]:
    def case() -> Case:
        frame = pd.DataFrame(np.arange(N * len(labels)).reshape(N, -1) % 11)
        frame.columns = pd.Index(labels, dtype=object, **names)
        return split(frame), frame

    return case


def _index(make: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[], Case]:
    def case() -> Case:
        frame = make(sample(N))
        return of_blocks([frame[:9], frame[9:]]), frame

    return case


def _rows(rows: int) -> Callable[[], Case]:
    def case() -> Case:
        frame = sample(N).assign(s="text", c=pd.Categorical(["a"] * N))[:rows]
        return split(frame), frame

    return case


CASES: dict[str, tuple[Any, Callable[[], Case]]] = {
    "numbers": ("k", _numbers),
    "times": ("k", _times),
    "extension": ("k", _extension),
    "arrow": ("k", _arrow),
    "categories": ("k", _categories),
    "categories of each block": ("k", _categories_of_each_block),
    "objects": ("k", _objects),
    "labels: internal": ("_partitions", _labels(["_partitions", "c0", "", "index", "c2"])),
    "labels: empty": ("", _labels(["", "c0", "__index_level_0__", "_index"])),
    "labels: numbers": (0, _labels([0, 2, 1.5, -1])),
    "labels: mixed": ([3, "k"], _labels([3, "k", None, b"b", date(2020, 1, 1)])),
    "labels: tuples": ([("a", 1)], _labels([("a", 1), ("a", 2), ("b",)], tupleize_cols=False)),
    "labels: named": ("k", _labels(["k", "x"], name="fields")),
    "index: named": ("k", _index(lambda f: f.set_index("row"))),
    "index: repeated": ("k", _index(lambda f: f.set_index(pd.Index(np.arange(N) % 3)))),
    "index: as the key": ("k", _index(lambda f: f.set_index(pd.Index(f.k * 2, name="k")))),
    "index: strings": ("k", _index(lambda f: f.set_index(pd.Index([f"i{i}" for i in range(N)])))),
    "index: times": ("k", _index(lambda f: f.set_index(pd.date_range("2000", periods=N, tz="UTC")))),
    "index: categories": ("k", _index(lambda f: f.set_index(pd.CategoricalIndex(f.j.astype(str), name="c")))),
    "index: mixed": ("k", _index(lambda f: f.set_index(pd.Index([*"ab", *range(N - 2)], dtype=object)))),
    "index: periods": ("k", _index(lambda f: f.set_index(pd.period_range("2000", periods=N, freq="D")))),
    "index: levels": ("k", _index(lambda f: f.set_index(["j", "row"]))),
    "index: unnamed levels": ("k", _index(lambda f: f.set_index(["j", "row"]).rename_axis([None, "j"]))),
    "key alone": ("k", _index(lambda f: f[["k"]])),
    "two keys": (["k", "j"], _index(lambda f: f)),
    "key in the index": ("row", _index(lambda f: f.set_index("row"))),
    "key in the index, alone": ("k", _index(lambda f: f[["k"]].set_index("k"))),
    "keys in levels": (["row", "j"], _index(lambda f: f.set_index(["j", "row"]))),
    "keys in the index and a column": (["j", "k"], _index(lambda f: f.set_index("j"))),
    "one key as a list": (["k"], _index(lambda f: f)),
    "no rows": ("k", _rows(0)),
    "one row": ("k", _rows(1)),
}


@pytest.fixture
def objects_as_they_are() -> Iterator[None]:
    """Dask makes strings of object columns where it reads a frame, unless told not to."""
    with dask.config.set({"dataframe.convert-string": False}):
        yield


WAYS = ("local-tasks", "local-disk", "cluster-tasks", "cluster-p2p")


def in_turn(name: str, values: Iterable[Any]) -> pytest.MarkDecorator:
    """Each value in each way that rows can travel, of which `make test` runs one for each value, in turn."""
    cases = [
        pytest.param(value, way, marks=() if number % len(WAYS) == turn else pytest.mark.thorough)
        for number, value in enumerate(values)
        for turn, way in enumerate(WAYS)
    ]
    return pytest.mark.parametrize((name, "engine"), cases, indirect=["engine"])


# The disk shuffle asks for the values of a PeriodIndex in a way that pandas 3 frowns upon.
@pytest.mark.filterwarnings("ignore:PeriodIndex.values")
@in_turn("kind", CASES)
def test_rows_are_unchanged_and_in_their_partition(kind: str, engine: str, objects_as_they_are: None) -> None:
    on, case = CASES[kind]
    plain, expected = case()
    placed = plain.pipe(chash_repartition, on, npartitions=P, nodes=["0", "1", "2", "3"], engine=engine)
    layout = placed.chash.layout
    blocks = blocks_of(placed)
    assert_placed(blocks, layout)
    assert_unchanged(blocks, expected)


KEYS: dict[str, Any] = {
    "int64": np.arange(N) % 9 - 4,
    "int8": (np.arange(N) % 9 - 4).astype("int8"),
    "uint64": np.resize(np.array([2**64 - 1, 0, 2**63], "uint64"), N),
    "bool": np.arange(N) % 2 == 0,
    "float64": np.resize([0.5, -0.0, 0.0, np.nan, np.inf, 1e300, 7.0], N),
    "float32": np.resize(np.array([0.5, np.nan], "float32"), N),
    "Int64": pd.array(np.resize([1, None, 3], N), dtype="Int64"),
    "boolean": pd.array(np.resize([True, None, False], N), dtype="boolean"),
    "str": pd.Series(np.resize(["a", "", "é" * 40, None], N)),
    "object str": pd.Series(np.resize(["a", "", None], N), dtype=object),
    "string": pd.array(np.resize(["a", None], N), dtype="string[python]"),
    "large string": pd.array(np.resize(["a", None], N), dtype=pd.ArrowDtype(pa.large_string())),
    "dictionary": pd.array(
        pa.array(["a", None, "b"] * 8).dictionary_encode(),
        dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string())),
    ),
    "category": pd.Categorical(np.resize(["x", None, "y"], N), categories=["y", "x", "z"]),
    "category of ints": pd.Categorical(np.resize([5, 3], N)),
    "datetime[ns]": pd.date_range("2000", periods=N).astype("M8[ns]"),
    "datetime[s]": pd.date_range("2000", periods=N).astype("M8[s]"),
    "zoned": pd.date_range("2000-03-26", periods=N, freq="h", tz="Europe/Berlin"),
    "timedelta": pd.to_timedelta(np.arange(N), unit="h"),
    "date32": pd.array([date(2020, 1, i + 1) for i in range(N)], dtype=pd.ArrowDtype(pa.date32())),
    "null": pd.Series([None] * N, dtype=object),
    "NaN": np.full(N, np.nan),
}


@pytest.mark.parametrize("engine", ["local-tasks", *thorough("cluster-p2p")], indirect=True)
@pytest.mark.parametrize("kind", KEYS)
def test_rows_with_keys_of_any_type_are_unchanged(kind: str, engine: str, objects_as_they_are: None) -> None:
    frame = pd.DataFrame({"x": np.arange(N), "k": KEYS[kind]})
    plain = of_blocks([frame[:7], frame[7:7], frame[7:]])
    placed = plain.pipe(chash_repartition, "k", npartitions=P, nodes=["0", "1"], engine=engine)
    blocks = blocks_of(placed)
    assert_placed(blocks, placed.chash.layout)
    assert_unchanged(blocks, frame)
    assert sum(block["k"].isna().any() for block in blocks[1:]) == 0  # null keys are in partition 0
    held = [set(block["k"].dropna().tolist()) for block in blocks]
    assert sum(map(len, held)) == len(set.union(*held))


MIXED = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.binary(max_size=5),
    st.dates(),
    st.decimals(allow_nan=True, places=3).filter(lambda value: not value.is_snan()),
    st.uuids(),
)


@given(
    rows=st.lists(st.tuples(MIXED, st.integers(-3, 3), MIXED), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    npartitions=st.integers(1, 9),
    seed=st.integers(0, 2**64 - 1),
    both=st.booleans(),
)
def test_any_rows_are_unchanged_and_in_their_partition(
    rows: list[Any], cuts: list[int], npartitions: int, seed: int, both: bool
) -> None:
    frame = pd.DataFrame({c: pd.Series([row[i] for row in rows], dtype=object) for i, c in enumerate("kjx")})
    frame["j"] = frame["j"].astype("int16")
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    raw = {"dataframe.convert-string": False}
    with dask.config.set({"scheduler": "sync", "dataframe.shuffle.method": "tasks"} | raw):
        plain = of_blocks([frame[a:b] for a, b in pairwise(edges)])
        placed = plain.pipe(
            chash_repartition, ["k", "j"] if both else "k", npartitions=npartitions, seed=seed
        )
        blocks = blocks_of(placed)
    assert_placed(blocks, placed.chash.layout)
    assert_unchanged(blocks, frame)


@in_turn("wanted", [list(range(40))[::-1], [3], [39, 2, 20], [1, 1, 38]])
def test_some_partitions_in_any_order(wanted: list[int], engine: str) -> None:
    frame = sample()
    placed = split(frame).pipe(chash_repartition, "k", npartitions=40, nodes=["0", "1"], engine=engine)
    here = placed.chash.layout.partition_of(frame)
    blocks = blocks_of(placed.partitions[wanted])
    assert len(blocks) == len(wanted)
    for block, partition in zip(blocks, wanted, strict=True):
        assert_same_rows(block, frame[here == partition])


def test_rows_keep_their_order_within_a_partition(engine: str) -> None:
    frame = pd.DataFrame({"k": np.arange(1200) % 97, "row": np.arange(1200)})
    plain = of_blocks([frame[a : a + 100] for a in range(0, 1200, 100)])
    placed = plain.pipe(chash_repartition, "k", npartitions=P, nodes=["0", "1", "2", "3"], engine=engine)
    for block in blocks_of(placed):
        assert block["row"].is_monotonic_increasing


def test_rows_of_all_kinds_of_columns_at_once_are_unchanged(
    client: Client, objects_as_they_are: None
) -> None:
    cases = {"n": _numbers, "t": _times, "e": _extension, "a": _arrow, "o": _objects}
    parts = [case()[1].drop(columns="k").add_prefix(name) for name, case in cases.items()]
    frame = pd.concat(parts, axis=1)
    frame = pd.concat([frame] * 25, ignore_index=True).assign(k=np.arange(25 * N) % 97)
    plain = of_blocks([frame[a:b] for a, b in pairwise([0, 1, 180, 181, 450, 25 * N])])
    placed = plain.pipe(chash_repartition, "k", npartitions=16)
    blocks = blocks_of(placed)
    assert_placed(blocks, placed.chash.layout)
    assert_unchanged(blocks, frame)


def test_persisted_rows_are_the_same(engine: str) -> None:
    frame = sample().assign(s=lambda f: f.k.astype(str), c=lambda f: f.j.astype("category"))
    lazy = split(frame).pipe(chash_repartition, "k", npartitions=P, nodes=["0", "1", "2", "3"], engine=engine)
    placed = lazy.chash.persist()
    assert placed.chash.layout == lazy.chash.layout
    assert_placed(blocks_of(placed), placed.chash.layout)
    assert_unchanged(placed.compute(), split(frame).compute())
    assert shuffles(placed) == []


def test_defaults_without_a_cluster(local: None) -> None:
    placed = split(sample()).pipe(chash_repartition, "k")
    assert placed.npartitions == placed.chash.layout.npartitions == 16
    assert len(placed.chash.layout.nodes) == 1
    assert split(sample(), 20).pipe(chash_repartition, "k").npartitions == 20
    assert shuffles(placed) == ["TaskPlace"]


def test_defaults_on_a_cluster(client: Client) -> None:
    placed = split(sample()).pipe(chash_repartition, "k")
    assert placed.chash.layout.nodes == ("0", "1", "2", "3")
    assert placed.npartitions == 64
    assert [name for name in shuffles(placed) if "P2P" in name] == ["P2PPlace"]


def test_arguments_make_the_layout(local: None) -> None:
    nodes = {"a": 1, "b": 0.5}
    placed = split(sample()).pipe(
        chash_repartition, ["k", "j"], npartitions=12, nodes=nodes, placement="ring", vnodes=16, seed=5
    )
    assert placed.chash.layout == Layout.create(["k", "j"], 12, nodes, placement="ring", vnodes=16, seed=5)


def test_a_layout_is_shared(local: None) -> None:
    layout = Layout.create("k", 5, ["a"])
    one = split(sample()).pipe(chash_repartition, "k", layout=layout)
    two = split(sample(seed=1).rename(columns={"k": "id"})).pipe(
        chash_repartition, "id", layout=one.chash.layout.rename("id")
    )
    assert one.chash.layout == layout
    assert two.chash.layout == layout.rename("id")
    assert_placed(blocks_of(two), layout, on=["id"])


PROGRAM = """
import dask.dataframe as dd, pandas as pd
from chash_partition import chash_repartition
frame = pd.DataFrame({"k": [1, 2, 3], "s": ["a", "b", "c"], "x": 1.5})
plain = dd.from_pandas(frame, npartitions=2)
placed = plain.pipe(chash_repartition, ["k", "s"], nodes=["b", "a", "c"], npartitions=8)
other = plain.pipe(chash_repartition, ["k", "s"], layout=placed.chash.layout)
derived = placed[placed.x > 1].merge(other.rename(columns={"x": "y"}), on=["s", "k"])
for df in (placed, derived, placed.groupby(["k", "s"]).agg({"x": "sum"})):
    # Fused, Dask 2025.7 names a merge by the order of a set.
    optimized = df.optimize(fuse=False)
    print(df._name, optimized._name, optimized.__dask_keys__())
"""


def test_names_are_the_same_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    # The hashes of strings differ from those here.
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    env = {**os.environ, "PYTHONHASHSEED": seed}
    there = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, check=True, capture_output=True, text=True
    )
    exec(PROGRAM, {})
    here = capsys.readouterr().out
    assert len(here.splitlines()) == 3
    assert here == there.stdout


def test_names_say_what_is_placed_and_how(local: None) -> None:
    def name(frame: pd.DataFrame | None = None, on: Any = "k", **how: Any) -> str:
        plain = split(sample() if frame is None else frame)
        return plain.pipe(chash_repartition, on, **{"npartitions": P, "nodes": ["a", "b"], **how})._name

    assert name() == name() == name(nodes=["b", "a"]) == name(on=["k"]) == name(layout=None)
    ways = [
        {},
        {"on": "j"},
        {"on": ["k", "j"]},
        {"on": ["j", "k"]},
        {"npartitions": 8},
        {"nodes": ["a", "c"]},
        {"nodes": {"a": 1, "b": 2}},
        {"seed": 1},
        {"placement": "ring"},
        {"vnodes": 8},
        {"frame": sample(seed=1)},
    ]
    assert len({name(**way) for way in ways}) == len(ways)


def _reads(frame: Any) -> list[list[str]]:
    """The columns of each plain frame that the optimised expression still reads."""
    nodes = frame.optimize(fuse=False).expr.find_operations(type(split(sample()).optimize(fuse=False).expr))
    return sorted({node._name: list(node.columns) for node in nodes}.values())


def test_reads_only_the_columns_in_use(local: None) -> None:
    frame = sample()
    placed = split(frame).pipe(chash_repartition, "k", npartitions=P)
    for got, expected, columns in [
        (placed.x, frame.x, ["k", "x"]),
        (placed[["row", "x"]], frame[["row", "x"]], ["k", "x", "row"]),
        (placed[["k"]], frame[["k"]], ["k"]),
        (placed[placed.y > 500].x, frame[frame.y > 500].x, ["k", "x", "y"]),
        (placed.assign(z=placed.x + 1)[["z"]], frame.assign(z=frame.x + 1)[["z"]], ["k", "x"]),
        (placed.drop(columns=["y", "row"]), frame.drop(columns=["y", "row"]), ["k", "j", "x"]),
        (placed.rename(columns={"x": "z"})[["z"]], frame.rename(columns={"x": "z"})[["z"]], ["k", "x"]),
    ]:
        assert _reads(got) == [columns]
        assert_same_rows(got.compute(), expected)
    summed = placed.groupby("k").agg({"x": "sum"})
    assert _reads(summed) == [["k", "x"]]
    assert _reads(placed.merge(placed.rename(columns={"x": "z"})[["k", "z"]], on="k")[["x", "z"]]) == [
        ["k", "x"]
    ]


def _filters_first(frame: Any) -> bool:
    """Whether rows are filtered before they travel: the shuffle is above the filter."""
    expr = frame.optimize(fuse=False).expr
    (shuffle,) = (node for node in expr.walk() if type(node).__name__ == "TaskPlace")
    return any(type(node).__name__ == "Filter" for node in shuffle.walk()) and not any(
        type(node).__name__ == "Filter" and any(shuffle._name == below._name for below in node.walk())
        for node in expr.walk()
    )


def _above(frame: Any, column: str, value: int) -> Any:
    return frame[frame[column] > value]


ROW_WISE: dict[str, Callable[[Any], Any]] = {
    "compare": lambda df: df[df.x > 3],
    "key": lambda df: df[df.k == 4],
    "and": lambda df: df[(df.x > 3) & (df.y < 500)],
    "arithmetic": lambda df: df[(df.x + df.y) % 3 == 0],
    "not": lambda df: df[~(df.x > 3)],
    "isin": lambda df: df[df.k.isin([1, 2, 3])],
    "between": lambda df: df[df.x.between(1, 9)],
    "fillna": lambda df: df[df.x.fillna(0) > 3],
    "twice": lambda df: _above(_above(df, "x", 3), "y", 100),
}


@pytest.mark.parametrize("how", ROW_WISE)
def test_filters_rows_before_they_travel(how: str, local: None) -> None:
    placed = split(sample()).pipe(chash_repartition, "k", npartitions=P)
    got = ROW_WISE[how](placed)
    assert _filters_first(got)
    assert_unchanged(got.compute(), ROW_WISE[how](sample()))
    assert got.chash.layout == placed.chash.layout


# What these say of a row depends on other rows, or on where it lies.
NOT_ROW_WISE: dict[str, Callable[[Any], Any]] = {
    "mean": lambda df: df[df.x > df.x.mean()],
    "mean inside": lambda df: df[df.x.fillna(df.y.mean()) > df.x.min() + 3],
    "cumsum": lambda df: df[df.x.cumsum() > 3],
    "cumsum inside": lambda df: df[(df.x.cumsum() + df.y) % 3 == 0],
    "shift": lambda df: df[df.x.shift(1) > 3],
    "diff": lambda df: df[df.x.diff() > 3],
    "first of block": lambda df: df[_mapped(df.x, lambda s: s.rank() == 1)],
}


def _mapped(column: Any, function: Callable[[pd.Series], pd.Series]) -> Any:
    return column.map_partitions(function, meta=("x", bool))


@pytest.mark.parametrize("how", NOT_ROW_WISE)
def test_a_predicate_that_looks_at_other_rows_stays_where_it_is(how: str, local: None) -> None:
    placed = split(sample()).pipe(chash_repartition, "k", npartitions=P)
    got = NOT_ROW_WISE[how](placed).compute()
    # The same of a frame that has its partitions already, where there is nothing to push.
    assert_unchanged(got, NOT_ROW_WISE[how](of_blocks(blocks_of(placed))).compute())


@pytest.mark.parametrize("how", ["mean", "mean inside"])
def test_a_predicate_of_the_whole_frame_means_the_whole_frame(how: str, local: None) -> None:
    placed = split(sample()).pipe(chash_repartition, "k", npartitions=P)
    assert_unchanged(NOT_ROW_WISE[how](placed).compute(), NOT_ROW_WISE[how](sample()))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"on": "k", "nodes": 2}, ValueError, "nodes must be a list"),
        ({"on": "nope"}, ValueError, "'nope'.*columns.*levels"),
        ({"on": ["k", "nope"]}, ValueError, "'nope'"),
        ({"on": ["k", "k"]}, ValueError, "'k' is given twice"),
        ({"on": []}, ValueError, "names no key column"),
        ({"on": "k", "nodes": []}, ValueError, "node"),
        ({"on": "k", "nodes": {"a": 0}}, ValueError, "'a'.*0"),
        ({"on": "k", "nodes": {"a": 1025}}, ValueError, "'a'.*1024"),
        ({"on": "k", "nodes": {"a": -1}}, ValueError, "'a'"),
        ({"on": "k", "nodes": {"a": float("nan")}}, ValueError, "'a'"),
        ({"on": "k", "nodes": ["a", "a"]}, ValueError, "'a'"),
        ({"on": "k", "npartitions": 0}, ValueError, "npartitions.*0"),
        ({"on": "k", "npartitions": -3}, ValueError, "npartitions.*-3"),
        ({"on": "k", "npartitions": 2**31}, ValueError, "npartitions"),
        ({"on": "k", "npartitions": 2.5}, (TypeError, ValueError), "npartitions.*2.5"),
        ({"on": "k", "seed": -1}, ValueError, "seed.*-1"),
        ({"on": "k", "seed": 2**64}, ValueError, "seed"),
        ({"on": "k", "vnodes": 0}, ValueError, "vnodes.*0"),
        ({"on": "k", "placement": "random"}, ValueError, "placement.*'random'"),
        ({"on": "k", "engine": "fast"}, ValueError, "engine.*'fast'"),
        ({"on": "k", "engine": "p2p"}, ValueError, r"p2p.*Client\(\)"),
        ({"on": "k", "layout": Layout.create("j", 4, ["a"])}, ValueError, r"\['j'\].*on=\['k'\]"),
        ({"on": "k", "layout": Layout.create(["k", "j"], 4, ["a"])}, ValueError, r"\['k', 'j'\]"),
        ({"on": ["j", "k"], "layout": Layout.create(["k", "j"], 4, ["a"])}, ValueError, r"\['k', 'j'\]"),
        (
            {"on": "k", "layout": Layout.create("k", 4, ["a"]), "npartitions": 8},
            ValueError,
            "layout=.*npartitions",
        ),
        ({"on": "k", "layout": Layout.create("k", 4, ["a"]), "seed": 1}, ValueError, "layout=.*seed"),
        ({"on": "k", "layout": "k"}, TypeError, "Layout"),
    ],
    ids=repr,
)
def test_bad_arguments_are_refused_before_any_work(
    arguments: dict[str, Any], error: type[Exception], words: str, local: None
) -> None:
    with pytest.raises(error, match=f"(?s){words}"):
        chash_repartition(split(sample()), **arguments)


BAD_KEYS: dict[str, Any] = {
    "complex": np.zeros(N, complex),
    "period": pd.period_range("2000", periods=N, freq="D"),
    "interval": pd.interval_range(0, N),
    "list": pd.array([[1]] * N, dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
    "struct": pd.array([{"a": 1}] * N, dtype=pd.ArrowDtype(pa.struct({"a": pa.int64()}))),
}


@pytest.mark.parametrize("kind", BAD_KEYS)
def test_a_key_without_a_hash_is_refused_before_any_work(kind: str, local: None) -> None:
    frame = pd.DataFrame({"good": 1, "bad": BAD_KEYS[kind]})
    with pytest.raises(TypeError, match=f"'bad'.*{kind}"):
        split(frame).pipe(chash_repartition, ["good", "bad"])


def test_a_value_without_a_hash_is_named(local: None, objects_as_they_are: None) -> None:
    column = np.array([1, "a", [1], None], dtype=object)
    placed = of_blocks([pd.DataFrame({"bad": column})]).pipe(chash_repartition, "bad", npartitions=2)
    with pytest.raises(TypeError, match=r"'bad'.*row 2"):
        placed.compute()


def test_a_label_that_is_not_unique_is_refused(local: None) -> None:
    for labels, on in [(["k", "x", "x"], "k"), (["k", "k", "x"], "k")]:
        frame = pd.DataFrame(np.zeros((3, 3), int), columns=labels)
        with pytest.raises(ValueError, match="not unique") as raised:
            of_blocks([frame]).pipe(chash_repartition, on)
        assert repr(next(label for label in labels if labels.count(label) > 1)) in str(raised.value)


@pytest.mark.parametrize("frame", [sample(), split(sample()).x, None])
def test_only_dask_frames_are_placed(frame: Any) -> None:
    with pytest.raises(TypeError, match=r"dask\.dataframe\.DataFrame.*(from_pandas|to_frame)"):
        chash_repartition(frame, "k")


def test_a_cluster_without_workers_is_refused(new_cluster: Callable[..., LocalCluster]) -> None:
    with (
        Client(new_cluster(0, processes=False)),
        pytest.raises(ValueError, match=r"no workers yet.*wait_for_workers"),
    ):
        chash_repartition(split(sample()), "k")
