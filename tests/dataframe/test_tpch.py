"""The tables of TPC-H, row for row as DuckDB has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pytest
from distributed import Client, LocalCluster, Worker, wait
from frames import shuffles

from chash_partition import Layout, chash_repartition


def checked(
    block: pd.DataFrame, layout: Layout, meta: pd.DataFrame, partition_info: dict[str, int] | None = None
) -> pd.DataFrame:
    number = None if partition_info is None else partition_info["number"]
    placed = set(layout.partition_of(block[list(layout.on)]).tolist()) <= {number}
    return pd.DataFrame({"placed": [placed], "dtypes": [block.dtypes.equals(meta.dtypes)]})


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tpch import generate

    folder = tmp_path_factory.mktemp("tpch")
    generate(folder, 1)
    return folder


@pytest.fixture
def client(new_cluster: Callable[..., LocalCluster]) -> Iterator[Client]:
    with Client(new_cluster(2, "8GiB")) as client:
        yield client


@pytest.mark.long
def test_tables_at_scale_factor_1(tables: Path, client: Client, tmp_path: Path) -> None:
    import duckdb
    from tpch import KEYS

    with duckdb.connect() as connection:
        for table, key in KEYS.items():
            plain = dd.read_parquet(tables / table)
            placed = plain.pipe(chash_repartition, key, npartitions=64)
            layout, out = placed.chash.layout, tmp_path / f"{table}-placed"
            meta = {"placed": bool, "dtypes": bool}
            assert placed.map_partitions(checked, layout, plain._meta, meta=meta).compute().all(axis=None)
            placed.to_parquet(out, write_index=False)
            before, after = (f"(FROM read_parquet('{path}/*'))" for path in (tables / table, out))
            for a, b in ((before, after), (after, before)):
                assert connection.sql(f"SELECT count(*) FROM ({a} EXCEPT ALL {b})").fetchall() == [(0,)]
            [(rows, placed_rows)] = connection.sql(
                f"SELECT (SELECT count(*) FROM {before}), (SELECT count(*) FROM {after})"
            ).fetchall()
            assert rows == placed_rows > 0


def cents(amounts: pd.Series) -> pd.Series:
    return (amounts * 100).astype("int64")


def with_revenue(lines: pd.DataFrame) -> pd.DataFrame:
    """In ten-thousandths, exactly."""
    revenue = cents(lines["l_extendedprice"]) * (100 - cents(lines["l_discount"]))
    return lines[["l_orderkey"]].assign(revenue=revenue)


def with_cents(orders: pd.DataFrame) -> pd.DataFrame:
    return orders[["o_orderkey", "o_custkey"]].assign(spent=cents(orders["o_totalprice"]))


@pytest.mark.long
def test_queries_at_scale_factor_1(tables: Path, client: Client) -> None:
    import duckdb

    with duckdb.connect() as connection:
        lines, orders, customers = (
            dd.read_parquet(tables / name) for name in ("lineitem", "orders", "customer")
        )
        meta = {"l_orderkey": "int64", "revenue": "int64"}
        lines = lines.map_partitions(with_revenue, meta=meta)
        orders = orders.map_partitions(
            with_cents, meta=dict.fromkeys(("o_orderkey", "o_custkey", "spent"), "int64")
        )

        # Orders by customer: the ten that spent most.
        by_customer = orders.pipe(chash_repartition, "o_custkey", npartitions=64).chash.persist()
        spent = by_customer.groupby("o_custkey").agg({"spent": "sum"}, split_out=True)
        assert shuffles(spent) == []
        found = spent.compute().reset_index().sort_values(["spent", "o_custkey"], ascending=[False, True])
        expected = connection.sql(
            f"SELECT o_custkey, CAST(sum(o_totalprice) * 100 AS BIGINT) AS spent "
            f"FROM read_parquet('{tables}/orders/*') GROUP BY o_custkey "
            f"ORDER BY spent DESC, o_custkey LIMIT 10"
        ).fetchall()
        assert list(found.head(10).itertuples(index=False, name=None)) == expected

        # Lines and orders by order, then by customer: revenue of each nation.
        by_order = lines.pipe(chash_repartition, "l_orderkey", npartitions=64).chash.persist()
        layout = by_order.chash.layout.rename("o_orderkey")
        orders = orders.pipe(chash_repartition, "o_orderkey", layout=layout).chash.persist()
        wait([by_order, orders])
        before = received(client)
        joined = by_order.merge(orders, left_on="l_orderkey", right_on="o_orderkey")
        assert shuffles(joined) == []
        joined = joined.persist()
        wait(joined)
        assert received(client) == before
        placed = customers[["c_custkey", "c_nationkey"]].pipe(
            chash_repartition, "c_custkey", layout=by_customer.chash.layout.rename("c_custkey")
        )
        whole = placed.chash.merge(
            joined[["o_custkey", "revenue"]], left_on="c_custkey", right_on="o_custkey"
        )
        assert len(shuffles(whole)) == 2
        revenue = whole.groupby("c_nationkey")["revenue"].sum().compute().sort_index()
        expected = connection.sql(
            f"""SELECT c_nationkey, CAST(sum(l_extendedprice * (1 - l_discount)) * 10000 AS BIGINT)
            FROM read_parquet('{tables}/lineitem/*') JOIN read_parquet('{tables}/orders/*')
            ON l_orderkey = o_orderkey JOIN read_parquet('{tables}/customer/*')
            ON o_custkey = c_custkey GROUP BY c_nationkey ORDER BY c_nationkey"""
        ).fetchall()
        assert list(revenue.items()) == expected


def received(client: Client) -> int:
    """Bytes that workers have had from each other."""

    def log(dask_worker: Worker) -> int:
        return sum(entry["total"] for entry in dask_worker.transfer_incoming_log)

    return sum(client.run(log).values())
