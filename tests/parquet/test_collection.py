"""Frames to shards and back: `df.chash.to_parquet` and `read_parquet`."""

from __future__ import annotations

import pickle
from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from dask.callbacks import Callback
from dask.utils import key_split
from datasets import assert_sound, each_storage, write
from distributed import Client
from frames import assert_placed, assert_same_rows, blocks_of, sample, shuffles, split
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples, thorough

from chash_partition import Layout, ShardedDataset, chash_repartition, read_parquet
from chash_partition.parquet import collection
from chash_partition.parquet.store import DatasetError

P = 7
FRAME = sample().assign(text=lambda df: df.row.astype(str))


def placed(frame: pd.DataFrame = FRAME, on: Any = "k", npartitions: int = P, **how: Any) -> dd.DataFrame:
    return split(frame).pipe(chash_repartition, on, npartitions=npartitions, **how)


# There and back


def test_a_frame_comes_back_placed(local: None, tmp_path: Path) -> None:
    df = placed()
    df.chash.to_parquet(tmp_path / "x")
    back = read_parquet(tmp_path / "x")
    assert back.chash.layout == df.chash.layout
    assert back.dtypes.tolist() == df.dtypes.tolist()
    assert_placed(blocks_of(back), back.chash.layout)
    assert_same_rows(back.compute(), FRAME)
    assert ShardedDataset(tmp_path / "x").verify() == []
    for partition in range(P):
        assert_same_rows(back.partitions[partition].compute(), df.partitions[partition].compute())


@each_storage
def test_each_kind_of_storage(local: None, place: dict[str, Any]) -> None:
    placed().chash.to_parquet(**place)
    placed(sample(seed=1).assign(text="x")).chash.to_parquet(**place, mode="append")
    back = read_parquet(**place)
    assert_same_rows(back.compute(), pd.concat([FRAME, sample(seed=1).assign(text="x")]))
    assert_same_rows(back.chash.lookup(5), back.compute().query("k == 5"))


def test_one_partition_reads_one_shard(local: None, tmp_path: Path) -> None:
    placed().chash.to_parquet(tmp_path / "x")
    back = read_parquet(tmp_path / "x")
    layout = back.chash.layout
    for file in (f for shard in range(P) if shard != 3 for f in ShardedDataset(tmp_path / "x").files(shard)):
        Path(file).unlink()
    expected = FRAME[layout.partition_of(FRAME) == 3]
    assert_same_rows(back.partitions[3].compute(), expected)
    assert_same_rows(back[["y"]].partitions[3:4].compute(), expected[["y"]])
    key = expected.k.iloc[0]
    assert_same_rows(back.chash.lookup(key), FRAME[FRAME.k == key])


def test_a_cluster_writes_and_reads(client: Client, tmp_path: Path) -> None:
    df = placed(npartitions=16)
    df.chash.to_parquet(tmp_path / "x")
    df.chash.persist().chash.to_parquet(tmp_path / "persisted")
    for path in ("x", "persisted"):
        back = read_parquet(tmp_path / path).chash.persist()
        assert_same_rows(back.compute(), FRAME)
        layout = back.chash.layout
        assert back.chash.placement().tolist() == [layout.owner_of(i) for i in range(16)]
    with pytest.raises(DatasetError, match="each process has a memory:// of its own"):
        df.chash.to_parquet("memory://of-one-process")


def test_partitions_are_written_by_the_tasks_that_make_them(local: None, tmp_path: Path) -> None:
    ran: list[str] = []
    with Callback(pretask=lambda key, *_: ran.append(key_split(key))):
        placed().chash.to_parquet(tmp_path / "x")
    assert ran.count("chash-write") == P
    assert "chash-unpack" not in ran


def test_a_read_frame_needs_no_shuffle(local: None, tmp_path: Path) -> None:
    placed().chash.to_parquet(tmp_path / "x")
    other = FRAME.drop_duplicates("k")[["k", "y"]].rename(columns={"y": "z", "k": "id"})
    placed(other, "id").chash.to_parquet(tmp_path / "y")
    left, right = read_parquet(tmp_path / "x"), read_parquet(tmp_path / "y")
    joined = left[left.x > 0].merge(right, left_on="k", right_on="id", how="left")
    expected = FRAME[FRAME.x > 0].merge(other, left_on="k", right_on="id", how="left")
    assert shuffles(joined) == []
    assert_same_rows(joined.compute(), expected)
    sums = left.groupby("k").agg({"y": "sum"}, split_out=True)
    assert shuffles(sums) == []
    assert_same_rows(sums.compute().reset_index(), FRAME.groupby("k", as_index=False).agg({"y": "sum"}))
    # What Dask would shuffle, it does: nothing is claimed for other columns.
    assert shuffles(left.groupby("j").agg({"y": "median"}, split_out=True)) != []
    assert shuffles(left.merge(split(other, 3).rename(columns={"id": "k"}), on="k", broadcast=False)) != []


def test_only_the_columns_wanted_are_read(
    local: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed().chash.to_parquet(tmp_path / "x")
    back = read_parquet(tmp_path / "x")
    read: list[list[str]] = []
    real = collection.read_files

    def noted(store: Any, files: Any, schema: Any, columns: list[str], *rest: Any) -> pa.Table:
        read.append(columns)
        return real(store, files, schema, columns, *rest)

    monkeypatch.setattr(collection, "read_files", noted)
    for frame, columns in (
        (back["x"], ["x"]),
        (back[["y", "x"]], ["x", "y"]),
        (back[back.j > 1]["x"], ["j", "x"]),
        (back.groupby("k").y.sum(), ["k", "y"]),
    ):
        read.clear()
        frame.compute()
        assert read == [columns] * P
    chosen = read_parquet(tmp_path / "x", columns=["y", "k"])
    assert_same_rows(chosen.compute(), FRAME[["y", "k"]])
    assert chosen.chash.layout.on == ("k",)
    without = read_parquet(tmp_path / "x", columns=["y"])
    assert_same_rows(without.compute(), FRAME[["y"]])
    with pytest.raises(ValueError, match="not placed"):
        _ = without.chash


def test_no_column_has_rows_too(local: None, tmp_path: Path) -> None:
    placed().chash.to_parquet(tmp_path / "x")
    back = read_parquet(tmp_path / "x")
    assert len(back) == len(back[[]].compute()) == len(FRAME)
    assert len(read_parquet(tmp_path / "x", filters=[("x", ">", 0)])) == (FRAME.x > 0).sum()
    with pytest.raises(DatasetError, match="columns names none"):
        read_parquet(tmp_path / "x", columns=[])


def test_sorted_within_columns_of_any_name_and_kind(local: None, tmp_path: Path) -> None:
    frame = FRAME.assign(**{"a.b": FRAME.x, "c": FRAME.text.astype("category")})
    placed(frame).chash.to_parquet(tmp_path / "x", sort_within=["c", "a.b"])
    placed(frame).chash.to_parquet(tmp_path / "x", mode="append", sort_within=["c", "a.b"])
    dataset = ShardedDataset(tmp_path / "x")
    dataset.compact()
    for shard in range(P):
        pairs = dataset.read_shard(shard).select(["c", "a.b"]).to_pylist()
        assert pairs == sorted(pairs, key=lambda pair: (pair["c"], pair["a.b"]))
    lists = frame.assign(l=pd.Series([[1]] * len(frame), dtype=pd.ArrowDtype(pa.list_(pa.int64()))))
    with pytest.raises(DatasetError, match=r"'l' of type list<.* has no order"):
        placed(lists).chash.to_parquet(tmp_path / "y", sort_within="l")


def test_what_was_read_is_a_value(local: None, tmp_path: Path) -> None:
    placed().chash.to_parquet(tmp_path / "x")
    back = read_parquet(tmp_path / "x", filters=[("k", "==", 3)])
    assert back._name == read_parquet(tmp_path / "x", filters=[("k", "==", 3)])._name
    names = {
        back._name,
        read_parquet(tmp_path / "x")._name,
        read_parquet(tmp_path / "x", filters=[("k", "==", 4)])._name,
    }
    assert len(names) == 3
    copy = pickle.loads(pickle.dumps(back))
    placed().chash.to_parquet(tmp_path / "x", mode="append")
    assert_same_rows(copy.compute(), FRAME[FRAME.k == 3])  # of its version
    assert len(read_parquet(tmp_path / "x", filters=[("k", "==", 3)])) == 2 * len(copy)


# Writing


def test_a_mode_says_what_becomes_of_the_rows_that_are_there(local: None, tmp_path: Path) -> None:
    path = tmp_path / "x"
    placed().chash.to_parquet(path, mode="append")
    with pytest.raises(DatasetError, match="mode='append' or 'overwrite'"):
        placed().chash.to_parquet(path)
    placed(FRAME.head(10), npartitions=3).chash.to_parquet(path, mode="overwrite")
    assert_same_rows(read_parquet(path).compute(), FRAME.head(10))
    assert ShardedDataset(path).layout.npartitions == 3


def test_a_frame_of_another_layout_is_appended_into_the_datasets(local: None, tmp_path: Path) -> None:
    path = tmp_path / "x"
    placed(npartitions=5, seed=3).chash.to_parquet(path)
    for other in (
        placed(npartitions=5),
        placed(npartitions=9, seed=3),
        placed(on="j"),
        placed(on=["k", "j"]),
    ):
        other.chash.to_parquet(path, mode="append")
    dataset = ShardedDataset(path)
    assert dataset.verify() == []
    assert (dataset.layout.npartitions, dataset.layout.seed, dataset.layout.on) == (5, 3, ("k",))
    assert_same_rows(read_parquet(path).compute(), pd.concat([FRAME] * 5))


def test_an_unplaced_frame_is_told_how(local: None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"df.pipe\(chash_repartition"):
        split(FRAME).chash.to_parquet(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "w"}, "mode must be one of"),
        ({"compression": "zip"}, "compression must be"),
        ({"compression": 3}, "compression must be"),
        ({"row_group_size": 0}, "row_group_size must be from 1"),
        ({"sort_within": "nope"}, "sort_within column 'nope'"),
        ({"sort_within": [1]}, "sort_within must be"),
        ({"roots": {"a": "/tmp/a"}}, r"give it in roots="),
    ],
)
def test_bad_arguments_fail_before_any_work(
    local: None, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        placed().chash.to_parquet(tmp_path / "x", **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chash_shard": 1}, "column 'chash_shard' has the name"),
        ({"c": 1j}, "column 'c'"),
        ({7: 1}, "column label 7"),
    ],
)
def test_bad_columns_fail_before_any_work(
    local: None, tmp_path: Path, change: dict[Any, Any], message: str
) -> None:
    frame = FRAME.copy()
    for name, value in change.items():
        frame[name] = value
    with pytest.raises(DatasetError, match=message):
        placed(frame).chash.to_parquet(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_files_elsewhere_are_refused(local: None, tmp_path: Path) -> None:
    for url in ("ftp://host/x", "http://host/x"):
        with pytest.raises(DatasetError, match="create a file only if there is none"):
            read_parquet(url)


@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "brotli", "lz4", None])
def test_how_files_are_written(local: None, tmp_path: Path, compression: str | None) -> None:
    placed().chash.to_parquet(
        tmp_path / "x", compression=compression, row_group_size=5, sort_within=["j", "x"]
    )
    for file in ShardedDataset(tmp_path / "x").files():
        metadata = pq.ParquetFile(file).metadata
        codec = metadata.row_group(0).column(0).compression.lower()
        assert codec == {None: "uncompressed"}.get(compression, compression)
        assert max(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)) <= 5
        table = pq.read_table(file, partitioning=None)
        pairs = list(zip(table["j"].to_pylist(), table["x"].to_pylist(), strict=True))
        assert pairs == sorted(pairs)
    assert_same_rows(read_parquet(tmp_path / "x").compute(), FRAME)


@pytest.mark.parametrize("npartitions", [1, 3, *thorough(4096)])
def test_any_number_of_partitions(local: None, npartitions: int) -> None:
    path = f"memory://p-{npartitions}"
    placed(npartitions=npartitions).chash.to_parquet(path)
    back = read_parquet(path)
    assert back.npartitions == npartitions
    assert_same_rows(back.compute(), FRAME)
    assert ShardedDataset(path).verify() == []


def test_empty_frames(local: None, tmp_path: Path) -> None:
    empty = placed()
    empty[empty.x > 1000].chash.to_parquet(tmp_path / "x")
    assert len(ShardedDataset(tmp_path / "x").files()) == 1
    back = read_parquet(tmp_path / "x")
    assert back.compute().shape == (0, FRAME.shape[1])
    assert back.compute().dtypes.tolist() == empty.dtypes.tolist()
    placed().chash.to_parquet(tmp_path / "x", mode="append")
    assert_same_rows(read_parquet(tmp_path / "x").compute(), FRAME)


def test_an_index_with_a_name_is_stored(local: None, tmp_path: Path) -> None:
    named = FRAME.set_index("row")
    for name, on in (("a", "k"), ("b", "row")):
        df = dd.from_pandas(named, npartitions=3, sort=False).pipe(chash_repartition, on, npartitions=P)
        df.chash.to_parquet(tmp_path / name)
        back = read_parquet(tmp_path / name)
        assert back.chash.layout.on == (on,)
        assert_same_rows(back.compute(), named.reset_index())
    twice = dd.from_pandas(FRAME.rename_axis("k"), npartitions=3, sort=False)
    with pytest.raises(DatasetError, match="index level 'k' has the name of a column"):
        twice.pipe(chash_repartition, "row", npartitions=P).chash.to_parquet(tmp_path / "c")


def test_a_failing_block_commits_nothing(local: None, tmp_path: Path) -> None:
    def fail(block: pd.DataFrame) -> pd.DataFrame:
        if 3 in set(block.k):
            raise RuntimeError("no")
        return block

    placed().chash.to_parquet(tmp_path / "x")
    bad = placed().map_partitions(fail, meta=FRAME.iloc[:0]).pipe(chash_repartition, "k", npartitions=P)
    with pytest.raises(RuntimeError, match="no"):
        bad.chash.to_parquet(tmp_path / "x", mode="overwrite")
    assert_same_rows(read_parquet(tmp_path / "x").compute(), FRAME)


def test_appended_frames_may_have_more_and_fewer_columns(local: None, tmp_path: Path) -> None:
    path = tmp_path / "x"
    placed().chash.to_parquet(path)
    more = sample(seed=1).assign(text="x", extra=1, flag=True, when=pd.Timestamp("2020"))
    placed(more).chash.to_parquet(path, mode="append")
    less = sample(seed=2)
    placed(less).chash.to_parquet(path, mode="append")
    back = read_parquet(path)
    assert_same_rows(back.compute(), pd.concat([FRAME, more, less]))
    for block in blocks_of(back):
        assert block.dtypes.tolist() == back.dtypes.tolist()
    ShardedDataset(path).compact()
    assert_same_rows(read_parquet(path).compute(), pd.concat([FRAME, more, less]))
    with pytest.raises(DatasetError, match=r"'extra' is (large_)?string here and int64 in the dataset"):
        placed(more.assign(extra="one")).chash.to_parquet(path, mode="append")


def test_read_errors_name_what_is_wrong(local: None, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="there is no dataset"):
        read_parquet(tmp_path / "x")
    placed().chash.to_parquet(tmp_path / "x")
    with pytest.raises(DatasetError, match="'nope' is not in the dataset"):
        read_parquet(tmp_path / "x", columns=["nope"])
    with pytest.raises(DatasetError, match="list of column names"):
        read_parquet(tmp_path / "x", columns="k")  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match="given twice"):
        read_parquet(tmp_path / "x", columns=["k", "k"])
    for filters in ([("nope", "==", 1)], [("k", "~", 1)], [("k", "==", "a")], "k", [1], [("k", "==")]):
        with pytest.raises(DatasetError, match="filters="):
            read_parquet(tmp_path / "x", filters=filters)


def test_node_local_frames(local: None, tmp_path: Path) -> None:
    roots = {node: str(tmp_path / node) for node in ("a", "b")}
    placed(nodes=["a", "b"]).chash.to_parquet(tmp_path / "x", roots=roots)
    placed(nodes=["a", "b"]).chash.to_parquet(tmp_path / "x", mode="append", roots=roots)
    assert_same_rows(read_parquet(tmp_path / "x", roots=roots).compute(), pd.concat([FRAME, FRAME]))
    with pytest.raises(DatasetError, match="roots="):
        read_parquet(tmp_path / "x")


# Filters


def read_shards_of(frame: dd.DataFrame) -> int:
    """How many shards are read."""
    [read] = frame.optimize(fuse=False).find_operations(collection.ReadShards)
    return sum(bool(read._task(("x", i), i).args[1]) for i in range(read.npartitions))


OPERATORS = ["==", "=", "!=", "<", ">=", "in", "not in"]
clauses = st.one_of(
    st.tuples(
        st.just("k"), st.sampled_from(OPERATORS[:5]), st.integers(-1, 24) | st.just(3.0) | st.just(2.5)
    ),
    st.tuples(st.just("x"), st.sampled_from(OPERATORS[:5]), st.integers(-60, 60)),
    st.tuples(
        st.just("k"), st.sampled_from(OPERATORS[5:]), st.lists(st.integers(0, 22), min_size=1, max_size=3)
    ),
    st.tuples(st.just("text"), st.sampled_from(["==", "<"]), st.sampled_from(["1", "50", "zz"])),
)


@pytest.fixture(scope="module")
def filtered() -> str:
    path = "memory://filtered"
    with dask.config.set({"scheduler": "sync", "dataframe.shuffle.method": "tasks"}):
        placed().chash.to_parquet(path, row_group_size=4, sort_within="x")
    return path


def holds(filters: list[Any]) -> pd.Series:
    ask = {
        "==": lambda c, v: c == v,
        "=": lambda c, v: c == v,
        "!=": lambda c, v: c != v,
        "<": lambda c, v: c < v,
        ">=": lambda c, v: c >= v,
        "in": lambda c, v: c.isin(v),
        "not in": lambda c, v: ~c.isin(v),
    }
    either = filters if filters and isinstance(filters[0], list) else [filters]
    out = pd.Series(False, index=FRAME.index)
    for each in either:
        true = pd.Series(True, index=FRAME.index)
        for column, operator, value in each:
            true &= ask[operator](FRAME[column], value)
        out |= true
    return out


@examples(0.3)
@given(
    filters=st.lists(clauses, min_size=1, max_size=3)
    | st.lists(st.lists(clauses, min_size=1, max_size=2), min_size=1, max_size=3)
)
def test_filters_leave_the_rows_they_should(filtered: str, filters: list[Any]) -> None:
    with dask.config.set({"scheduler": "sync"}):
        back = read_parquet(filtered, filters=filters)
        expected = FRAME[holds(filters)]
        assert_same_rows(back.compute(), expected)
        assert_same_rows(back[["y"]].compute(), expected[["y"]])
        assert back.npartitions == P


def test_filters_on_the_key_leave_shards_out(filtered: str) -> None:
    layout = ShardedDataset(filtered).layout
    for filters, keys in (
        ([("k", "==", 3)], [3]),
        ([("k", "in", [1, 2])], [1, 2]),
        ([("k", "in", {1, 2}), ("x", ">", 0)], [1, 2]),
        ([[("k", "==", 1), ("x", ">", 0)], [("k", "=", 2)]], [1, 2]),
        ([("k", "==", 3.0)], [3]),
    ):
        shards = {layout.partition_of_key(key) for key in keys}
        assert read_shards_of(read_parquet(filtered, filters=filters)) == len(shards)
    for filters in (
        [("k", ">", 3)],
        [[("k", "==", 1)], [("x", "==", 2)]],
        pc.field("k") == 3,
        [],
        None,
    ):
        assert read_shards_of(read_parquet(filtered, filters=filters)) == P
    placed_still = read_parquet(filtered, filters=[("k", "in", [1, 2])])
    assert shuffles(placed_still.groupby("k").agg({"y": "median"}, split_out=True)) == []


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [1, 2, None]),
    (pa.uint64(), [0, 2**64 - 1, None]),
    (pa.float32(), [0.5, np.float32(0.1), 3.0, float("nan")]),
    (pa.float64(), [0.1, -0.0, 2.0**60, float("nan"), None]),
    (pa.bool_(), [True, False, None]),
    (pa.string(), ["a", "", "ü", None]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b", None]),
    (pa.binary(), [b"", b"\x00", None]),
    (pa.timestamp("s"), [pd.Timestamp("2020-01-01"), pd.Timestamp("1900-05-05"), None]),
    (pa.timestamp("ns", "Europe/Oslo"), [pd.Timestamp("2020-01-01 12:00", tz="Europe/Oslo"), None]),
    (pa.date32(), [pd.Timestamp("2020-01-01").date(), None]),
    (pa.duration("ms"), [pd.Timedelta("1 days"), None]),
    (pa.decimal128(20, 2), [Decimal("0.10"), Decimal("5.00"), None]),
    (pa.time64("us"), [time(1, 2, 3), None]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=lambda v: str(v) if isinstance(v, pa.DataType) else "")
def test_keys_of_each_kind(local: None, kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(
        [v for v in values for _ in range(3)], pa.string() if pa.types.is_dictionary(kind) else kind
    )
    column = column.cast(kind) if column.type != kind else column
    table = pa.table({"k": column, "row": range(len(column))})
    path = f"memory://key-{kind}".replace(" ", "").replace("[", "-").replace("]", "")
    dataset = write(path, table, layout=Layout.create("k", 16, ["n"]), sorting=("k",), row_group_size=2)
    assert_sound(dataset, table)
    for number, value in enumerate(values):
        expected = list(range(3 * number, 3 * number + 3))
        if pd.isna(value):
            expected = [i for i, v in enumerate(values) if pd.isna(v) for i in range(3 * i, 3 * i + 3)]
        assert sorted(dataset.lookup(value)["row"].to_pylist()) == expected
        if not pd.isna(value):
            got = read_parquet(path, filters=[("k", "==", value)]).row.compute().tolist()
            assert sorted(got) == expected


def test_unicode_paths_and_columns_like_hives(local: None, tmp_path: Path) -> None:
    frame = FRAME.rename(columns={"k": "k=1", "j": "__HIVE_DEFAULT_PARTITION__", "x": "ключ/ %20"})
    for path in (tmp_path / "ü ñ=2" / "данные 表#?", f"memory://ü/{'x' * 50}=1"):
        df = placed(frame, ["k=1", "ключ/ %20"])
        df.chash.to_parquet(path)
        df.chash.to_parquet(path, mode="append")
        dataset = ShardedDataset(path)
        dataset.compact()
        dataset.split(2)
        dataset.vacuum(timedelta(0))
        assert dataset.verify() == []
        assert_same_rows(read_parquet(path).compute(), pd.concat([frame, frame]))
