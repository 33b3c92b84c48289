"""The tables of TPC-H, row for row as DuckDB has them."""

from __future__ import annotations

import sys
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pytest
from distributed import Client, LocalCluster

from chash_partition import Layout, chash_repartition

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


def checked(
    block: pd.DataFrame, layout: Layout, meta: pd.DataFrame, partition_info: dict[str, int] | None = None
) -> pd.DataFrame:
    number = None if partition_info is None else partition_info["number"]
    placed = set(layout.partition_of(block[list(layout.on)]).tolist()) <= {number}
    return pd.DataFrame({"placed": [placed], "dtypes": [block.dtypes.equals(meta.dtypes)]})


@pytest.mark.long
def test_tables_at_scale_factor_1(tmp_path: Path) -> None:
    import duckdb
    from tpch import KEYS, generate

    generate(tmp_path, 1)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit="8GiB"
        ) as cluster,
        Client(cluster),
        duckdb.connect() as connection,
    ):
        for table, key in KEYS.items():
            plain = dd.read_parquet(tmp_path / table)
            placed = plain.pipe(chash_repartition, key, npartitions=64)
            layout, out = placed.chash.layout, tmp_path / f"{table}-placed"
            meta = {"placed": bool, "dtypes": bool}
            assert placed.map_partitions(checked, layout, plain._meta, meta=meta).compute().all(axis=None)
            placed.to_parquet(out, write_index=False)
            before, after = (f"(FROM read_parquet('{tmp_path / name}/*'))" for name in (table, out.name))
            for a, b in ((before, after), (after, before)):
                assert connection.sql(f"SELECT count(*) FROM ({a} EXCEPT ALL {b})").fetchall() == [(0,)]
            [(rows, placed_rows)] = connection.sql(
                f"SELECT (SELECT count(*) FROM {before}), (SELECT count(*) FROM {after})"
            ).fetchall()
            assert rows == placed_rows > 0
