"""TPC-H's lineitem and orders as shards: joined shard by shard, and looked up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import duckdb
import pandas as pd
import pytest
from frames import shuffles

from chash_partition import ShardedDataset, chash_repartition, read_parquet

# Dask's own reader of Parquet warns with pandas 3.1.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:The inplace keyword")]
SHARDS = 64


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tpch import generate

    folder = tmp_path_factory.mktemp("tpch")
    generate(folder, 1)
    with dask.config.set(scheduler="threads"):
        lines = dd.read_parquet(folder / "lineitem").pipe(chash_repartition, "l_orderkey", npartitions=SHARDS)
        lines.chash.to_parquet(folder / "lines", sort_within="l_orderkey", row_group_size=2_000)
        layout = lines.chash.layout.rename("o_orderkey")
        orders = dd.read_parquet(folder / "orders").pipe(chash_repartition, "o_orderkey", layout=layout)
        orders.chash.to_parquet(folder / "orders-shards")
    return folder


def test_rows_are_those_of_the_tables(tables: Path) -> None:
    with duckdb.connect() as connection:
        for table, shards in (("lineitem", "lines"), ("orders", "orders-shards")):
            dataset = ShardedDataset(tables / shards)
            assert dataset.verify() == []
            a = f"(FROM read_parquet('{tables / table}/*'))"
            b = f"(FROM read_parquet({dataset.files()}, hive_partitioning = false))"
            for one, other in ((a, b), (b, a)):
                difference = f"SELECT count(*) FROM ({one} EXCEPT ALL {other})"
                assert connection.sql(difference).fetchall() == [(0,)]


MEASURES = "count(*), sum(l_linenumber * o_custkey)::BIGINT, sum(hash(l_comment, o_comment))::VARCHAR"


def test_a_join_shard_by_shard_is_the_join(tables: Path) -> None:
    lines, orders = ShardedDataset(tables / "lines"), ShardedDataset(tables / "orders-shards")
    with duckdb.connect() as connection:
        join = "SELECT {} FROM read_parquet({}) AS l JOIN read_parquet({}) AS o ON l_orderkey = o_orderkey"
        whole = join.format(MEASURES, f"'{tables}/lineitem/*'", f"'{tables}/orders/*'")
        expected = connection.sql(whole).fetchone()
        sums = [0, 0, 0]
        for shard in range(SHARDS):
            sources = (f"{dataset.files(shard)}, hive_partitioning = false" for dataset in (lines, orders))
            row = connection.sql(join.format(MEASURES, *sources)).fetchone()
            assert row is not None
            sums = [total + int(value) for total, value in zip(sums, row, strict=True)]
        assert expected is not None
        assert sums == [int(value) for value in expected]

    left, right = read_parquet(tables / "lines"), read_parquet(tables / "orders-shards")
    joined = left.merge(right, left_on="l_orderkey", right_on="o_orderkey")
    assert shuffles(joined) == []
    products = (joined["l_linenumber"] * joined["o_custkey"]).sum()
    with dask.config.set(scheduler="threads"):
        assert list(dask.compute(joined.shape[0], products)) == [int(v) for v in expected[:2]]


def bytes_read(function: Callable[[], Any]) -> tuple[int, Any]:
    """What this process reads from files meanwhile, as Linux counts it, and what the function returns."""

    def so_far() -> int:
        return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])

    before = so_far()
    out = function()
    return so_far() - before, out


def test_lookup_reads_a_hundredth_of_what_a_filter_reads(tables: Path) -> None:
    """The filter is over the same rows unsharded, in files of rows in no order."""
    dataset = ShardedDataset(tables / "lines")
    mixed = pd.read_parquet(tables / "lineitem").sample(frac=1, random_state=0)
    (tables / "mixed").mkdir()
    for i in range(16):
        mixed.iloc[i::16].to_parquet(tables / "mixed" / f"{i:02}.parquet", index=False)
    with dask.config.set(scheduler="threads"):
        for key in mixed["l_orderkey"].iloc[:5].tolist():
            filters = [("l_orderkey", "==", key)]
            theirs, frame = bytes_read(
                lambda f=filters: dd.read_parquet(tables / "mixed", filters=f).compute()
            )
            ours, table = bytes_read(lambda key=key: dataset.lookup(key))
            assert table.num_rows == len(frame) > 0
            assert theirs > 100 * ours > 0
